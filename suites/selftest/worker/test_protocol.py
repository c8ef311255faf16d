"""The protocol as it is written down: its schema, its page, and messages that are sent."""

import json
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
import pytest

from kernels.worker import process, protocol, serve, supervision
from kernels.worker.declaration import KEYS, Declaration
from suites.selftest.whole_runs import ROOT
from suites.selftest.worker.declared import HOSTILE, hostile, indices, running

PAGE = (ROOT / "docs" / "worker-protocol.md").read_text(encoding="utf-8")
SCHEMA = ROOT / "docs" / "worker-protocol.json"


def test_the_schema_is_current() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == protocol.schema_text(), (
        "it differs from what is generated; run `python -m kernels.worker`"
    )


def valid(message: Any) -> bool:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    return bool(validator.is_valid(message))


def test_messages_that_are_sent_fit_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the suite and of a worker that was written from the page."""
    sent: list[Any] = []
    exchange = process.Process.exchange

    def noted(it: process.Process, header: bytes, *rest: Any) -> Any:
        answer = exchange(it, header, *rest)
        sent.extend(json.loads(text) for text in (header, answer[0]))
        return answer

    monkeypatch.setattr(process.Process, "exchange", noted)
    with running(hostile(tmp_path, "none")) as runner:
        runner.judge(indices(4))
    assert [each["type"] for each in sent] == ["hello", "hello", *["call", "result"] * 2]
    assert [each.get("poison") for each in sent[2::2]] == ["low", "high"]
    for each in sent:
        assert valid(each), each
        assert not valid(each | {"more": 1})
    assert not valid(sent[2] | {"number": "one"})


def test_the_examples_of_the_page_fit_the_schema() -> None:
    found = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
    found += [json.loads(text) for text in re.findall(r"`(\{\"type\": \"error\".*?\})`", PAGE)]
    assert [each["type"] for each in found] == ["hello", "call", "error"]
    assert all(map(valid, found))


def test_the_page_has_every_field_and_its_default() -> None:
    kind: type[msgspec.Struct]
    for kind in (protocol.Introduction, protocol.Returned, protocol.Refusal, protocol.Error):
        name = kind.__struct_config__.tag
        table = PAGE.partition(f"| `{name}` |")[2].partition("\n\n")[0]
        rows = re.findall(r"^\| `(\w+)` \|(?: (.*?) \|)?", table, re.MULTILINE)
        fields = msgspec.structs.fields(kind)
        assert [row[0] for row in rows] == [field.name for field in fields], name
        for (_, default), field in zip(rows, fields, strict=True):
            if not field.required:
                held = field.default if field.default_factory is msgspec.NODEFAULT else {}
                assert default == f"`{json.dumps(held)}`", field.name
    for described in (protocol.Tensor, protocol.Float, protocol.Dtype, protocol.Call):
        for field in msgspec.structs.fields(described):
            assert re.search(rf"[`\"]{field.name}[`\"]", PAGE), field.name


def test_the_page_has_the_numbers() -> None:
    for words in (
        f"`{protocol.MAGIC.decode()}`",
        f"at most 2^{protocol.HEADER_LIMIT.bit_length() - 1}",
        f"at most 2^{protocol.BUFFER_LIMIT.bit_length() - 1}",
        f"{Declaration('').time_limit:g} seconds by default",
        {120.0: "two minutes"}[supervision.START_LIMIT],
        {3: "three in a row"}[supervision.PATIENCE],
        *(f"`{capability}`" for capability in get_args(protocol.Capability)),
    ):
        assert words in PAGE, words


def test_the_page_for_implementers_has_every_key() -> None:
    page = (ROOT / "docs" / "implementers.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [*KEYS]


def test_both_sides_mean_the_same_frame() -> None:
    assert (serve.PROTOCOL, serve.MAGIC) == (protocol.VERSION, protocol.MAGIC)
    assert serve.PREFIX.format == protocol.PREFIX.format
    assert protocol.PREFIX.size == struct.calcsize("<4sIQ") == 16


def test_a_worker_in_python_ends_with_its_input() -> None:
    """Where the harness has gone, and where what comes is no frame; nothing is on stdout."""
    for given, code in ((b"", 0), (b"no frame at all, but text", 1)):
        ended = subprocess.run(
            [sys.executable, serve.__file__, "math"], input=given, capture_output=True, timeout=60
        )
        assert (ended.returncode, ended.stdout) == (code, b"")
    assert HOSTILE.is_file()
