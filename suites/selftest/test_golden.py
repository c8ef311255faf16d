"""The golden files are in order, and each rule that keeps them so fires when it is broken."""

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from golden.__main__ import main
from golden.files import (
    OPERATIONS,
    ROOT,
    GoldenError,
    all_vectors,
    load_contracts,
    load_vectors,
    vector_paths,
)
from golden.lint import lint

CONTRACTS = "contracts.toml"
LOCK = "ids.lock"
NULL = "witness/locality_null.json"
RECALL = "witness/attention_mass_recall.json"
MERGE = "xattention/merge_softmax_stats.json"
SELECTION = "xattention/find_blocks_chunked.json"

FORMAT = "differs from what is generated; run `python -m golden format`"
SCHEMA = "differs from what is generated; run `python -m golden schema`"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A golden folder to break."""
    unread = shutil.ignore_patterns("recorded", "__pycache__")
    return Path(shutil.copytree(ROOT, tmp_path / "golden", ignore=unread))


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def replace(root: Path, file: str, old: str, new: str) -> None:
    """Change the first occurrence of ``old``; Latin-1, so that what is written may be no UTF-8."""
    text = (root / file).read_text(encoding="latin-1")
    assert old in text
    (root / file).write_text(text.replace(old, new, 1), encoding="latin-1")


def test_the_repository_is_clean() -> None:
    assert lint() == []


# --- a file that is not what its type says: file, what to replace, by what, a part of the message

EXPECTED = '"expected": {"dtype": "int32", "shape": [4], "data": [4, 5, 6, 7]}'

UNREADABLE: dict[str, tuple[str, str, str, str]] = {
    "invalid json": (NULL, '"schema": 1,', '"schema": 1', "malformed"),
    "no utf-8": (NULL, "The budget", "The \xff budget", "UTF-8"),
    "wrong type": (NULL, '"budget": 4', '"budget": "4"', "at `$.vectors[0].inputs"),
    "unknown field": (NULL, '"schema": 1,', '"schema": 1, "author": "me",', "`author`"),
    "id that is no slug": (NULL, '"four-of-eight"', '"Four of eight"', "at `$.vectors[0].id`"),
    "neither expected nor refusal": (NULL, f",\n      {EXPECTED}", "", "at `$.vectors[0]`"),
    "expected and refusal": (
        NULL,
        EXPECTED,
        EXPECTED + ', "refusal": {"argument": "budget"}',
        "vector 'four-of-eight' needs `expected` or `refusal`, and not both - at `$.vectors[0]`",
    ),
    "invalid toml": (CONTRACTS, 'kind = "identity"', "kind = identity", "at line "),
    "unknown kind": (CONTRACTS, '"identity"', '"theorem"', "at `$.contract[0].kind`"),
}


@pytest.mark.parametrize(("file", "old", "new", "part"), UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_file_is_one_line(
    copy: Path, file: str, old: str, new: str, part: str
) -> None:
    replace(copy, file, old, new)
    (problem,) = lint(copy)
    schema = "contracts" if file == CONTRACTS else "vectors"
    assert problem.startswith(f"golden/{file}: ")
    assert part in problem
    assert problem.endswith(f"; compare with golden/schema/{schema}.json")


# --- a rule broken: file, what to replace, by what, and the problems without the file's name -----

FAULTS: dict[str, tuple[str, str, str, str]] = {
    "another operation's name": (
        NULL,
        '"operation": "locality_null"',
        '"operation": "random_null"',
        "holds vectors of `random_null`, at `$.operation`; name the file random_null.json",
    ),
    # ids, notes and references
    "repeated contract": (
        CONTRACTS,
        'id = "witness.set.distinct"',
        'id = "witness.set.disjoint"',
        "a second contract `witness.set.disjoint`, at `$.contract[3].id`; give it an id of its own",
    ),
    "refused argument that is no input": (
        NULL,
        EXPECTED,
        '"refusal": {"argument": "length"}',
        "refused argument `length` is no input of `four-of-eight`, at `$.vectors[0].refusal`; "
        "name one of context_len, budget",
    ),
    "unused note": (
        RECALL,
        '"notes": ["unnormalised"]',
        '"notes": ["no-candidates"]',
        "no vector uses the note `unnormalised`, at `$.notes`; remove it or use it",
    ),
    "unknown note": (
        NULL,
        '"notes": ["boundary-token"]',
        '"notes": ["boundary"]',
        "unknown note `boundary` in `the-query-itself`, at `$.vectors[1].notes`; explain it in "
        "`$.notes`",
    ),
    "no note": (
        NULL,
        '"notes": ["boundary-token"]',
        '"notes": []',
        "no note in `the-query-itself`, at `$.vectors[1].notes`; say why the vector exists",
    ),
    "no contract": (
        NULL,
        '["witness.null.locality", "witness.null.budget", "witness.null.last-row"]',
        "[]",
        "no contract in `four-of-eight`, at `$.vectors[0].contracts`; name what the vector shows",
    ),
    "unknown contract": (
        NULL,
        '"witness.null.budget"',
        '"witness.null.budgets"',
        "unknown contract `witness.null.budgets` in `four-of-eight`, at `$.vectors[0].contracts`; "
        "correct it or add it to contracts.toml",
    ),
    "another operation's contract": (
        NULL,
        '"witness.null.budget"',
        '"witness.metric.recall"',
        "contract `witness.metric.recall` is not about witness locality_null, in `four-of-eight`, "
        "at `$.vectors[0].contracts`; remove it or extend the contract",
    ),
    "contract without a vector": (
        CONTRACTS,
        "no_vector = ",
        "# no_vector = ",
        "no vector shows `witness.layout.outside-untouched`; write one, or say why not in "
        "`no_vector`",
    ),
    "contract with a vector and a reason for none": (
        CONTRACTS,
        'source = "R-W7"\n',
        'source = "R-W7"\nno_vector = "Too obvious."\n',
        "`witness.set.run-bound` has a `no_vector` reason and the vector "
        "topology_witness_indices/run-of-unselected-tokens-reaches-the-bound; remove the reason",
    ),
    # tensors
    "fewer values than elements": (
        NULL,
        '"shape": [4]',
        '"shape": [5]',
        "4 values for 5 elements in `four-of-eight`, at `$.vectors[0].expected`; make `data` "
        "and `shape` agree",
    ),
    "integer out of range": (
        NULL,
        "[4, 5, 6, 7]",
        "[4, 5, 6, 2147483648]",
        "2147483648 is no int32 in `four-of-eight`, at `$.vectors[0].expected`; correct the "
        "value or the dtype",
    ),
    "float among integers": (
        NULL,
        "[4, 5, 6, 7]",
        "[4, 5, 6, 7.0]",
        "7.0 is no int32 in `four-of-eight`, at `$.vectors[0].expected`; correct the value or "
        "the dtype",
    ),
    "integers with bits": (
        NULL,
        '"data": [4, 5, 6, 7]',
        '"data": [4, 5, 6, 7], "bits": ["4"]',
        "bits of int32 values in `four-of-eight`, at `$.vectors[0].expected`; remove them: "
        "only floats have any",
    ),
    "boolean among integers": (
        NULL,
        "[4, 5, 6, 7]",
        "[4, 5, 6, true]",
        "True is no int32 in `four-of-eight`, at `$.vectors[0].expected`; correct the value or "
        "the dtype",
    ),
    "integer among booleans": (
        SELECTION,
        '"data": [true, true, true, false]',
        '"data": [true, true, true, 0]',
        "0 is no bool in `sink-and-diagonal-without-mass`, at `$.vectors[0].expected`; correct "
        "the value or the dtype",
    ),
    "booleans with bits": (
        SELECTION,
        '"data": [true, true, true, false]',
        '"data": [true, true, true, false], "bits": ["1"]',
        "bits of bool values in `sink-and-diagonal-without-mass`, at `$.vectors[0].expected`; "
        "remove them: only floats have any\n" + FORMAT,
    ),
    "data against bits in the second of two results": (
        MERGE,
        "[15.0]",
        "[16.0]",
        "16.0 and 41700000 are different float32 in `five-chunks`, at "
        "`$.vectors[14].expected[1]`; correct the wrong one",
    ),
    "floats without bits": (
        RECALL,
        ', "bits": ["3fee000000000000"]',
        "",
        "float64 values without bits in `policy-row`, at `$.vectors[0].expected`; run `python "
        "-m golden format`, which adds them\n" + FORMAT,
    ),
    "data against bits": (
        RECALL,
        "[0.9375]",
        "[0.9376]",
        "0.9376 and 3fee000000000000 are different float64 in `policy-row`, at "
        "`$.vectors[0].expected`; correct the wrong one",
    ),
    "too few digits": (
        RECALL,
        "3fee000000000000",
        "3fee",
        "float64 has 16 hexadecimal digits, got '3fee' in `policy-row`, at "
        "`$.vectors[0].expected`; correct the digits",
    ),
    "more patterns than values": (
        RECALL,
        '["3fee000000000000"]',
        '["3fee000000000000", "0000000000000000"]',
        "2 bit patterns for 1 values in `policy-row`, at `$.vectors[0].expected`; "
        "remove `bits` and run `python -m golden format`\n" + FORMAT,
    ),
    # generated text
    "vectors out of form": (NULL, '"schema": 1', '"schema":  1', FORMAT),
    "longer decimal than needed": (RECALL, "[0.9375]", "[0.93750]", FORMAT),
    "schema out of date": ("schema/vectors.json", '"enum"', '"const"', SCHEMA),
    # the lock
    "lock line out of order": (
        LOCK,
        "contract witness.arithmetic.exact\ncontract witness.arithmetic.length-types\n",
        "contract witness.arithmetic.length-types\ncontract witness.arithmetic.exact\n",
        FORMAT,
    ),
    "lock line malformed": (
        LOCK,
        "contract witness.arithmetic.exact\n",
        "witness.arithmetic.exact\n",
        "`witness.arithmetic.exact` is no lock line, in line 1; restore the file from version "
        "control",
    ),
    "lock line repeated": (
        LOCK,
        "contract witness.arithmetic.exact\n",
        "contract witness.arithmetic.exact\n" * 2,
        "`contract witness.arithmetic.exact` is a second line for its id, in line 2; restore "
        "the file from version control",
    ),
    "contract not locked": (
        LOCK,
        "contract witness.arithmetic.exact\n",
        "",
        "`contract witness.arithmetic.exact` is not locked yet; run `python -m golden format`",
    ),
    "contract gone": (
        LOCK,
        "contract witness.arithmetic.exact\n",
        "contract witness.arithmetic.easy\ncontract witness.arithmetic.exact\n",
        "`contract witness.arithmetic.easy` is gone, but ids are never removed; put it back",
    ),
}


@pytest.mark.parametrize(("file", "old", "new", "problems"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_reported(
    copy: Path, file: str, old: str, new: str, problems: str
) -> None:
    replace(copy, file, old, new)
    assert lint(copy) == [f"golden/{file}: {problem}" for problem in problems.splitlines()]


# --- faults that show in another file, or that are not made by replacing text --------------------


def test_a_repeated_vector_id_is_reported(copy: Path) -> None:
    replace(copy, NULL, '"id": "four-of-eight"', '"id": "zero-budget"')
    assert lint(copy)[0] == (
        "golden/witness/locality_null.json: 2 vectors with the id `zero-budget`; "
        "give each an id of its own"
    )


def test_a_fault_in_a_list_of_inputs_is_reported_with_its_place(copy: Path) -> None:
    replace(copy, MERGE, '"shape": [1, 1, 2]', '"shape": [1, 1, 3]')
    assert lint(copy)[0] == (
        "golden/xattention/merge_softmax_stats.json: 2 values for 3 elements in "
        "`one-chunk-alone`, at `$.vectors[0].inputs.m_chunks[0]`; make `data` and `shape` agree"
    )


def test_a_renamed_vector_is_gone_and_new(copy: Path) -> None:
    replace(copy, NULL, '"id": "four-of-eight"', '"id": "four-of-eight-tokens"')
    assert lint(copy) == [
        "golden/ids.lock: `vector locality_null/four-of-eight` is gone, but ids are never "
        "removed; put it back",
        "golden/ids.lock: `vector locality_null/four-of-eight-tokens` is not locked yet; "
        "run `python -m golden format`",
    ]


def test_changed_inputs_are_reported_and_a_corrected_expected_value_is_not(copy: Path) -> None:
    replace(copy, NULL, "[4, 5, 6, 7]", "[4, 5, 6, 6]")
    assert lint(copy) == []
    replace(copy, NULL, '"budget": 4', '"budget": 5')
    assert lint(copy) == [
        "golden/ids.lock: the inputs of `vector locality_null/four-of-eight` changed, but ids are "
        "never reused; restore them and give the new case an id of its own"
    ]


def test_a_contract_of_another_family_is_reported(copy: Path) -> None:
    head = 'id = "witness.metric.recall-no-mass"\nfamily = '
    replace(copy, CONTRACTS, head + '"witness"', head + '"xattention"')
    assert any(
        "`witness.metric.recall-no-mass` is not about witness attention_mass_recall" in problem
        for problem in lint(copy)
    )


@pytest.mark.parametrize("file", [CONTRACTS, LOCK, "schema/contracts.json", "schema/vectors.json"])
def test_a_missing_file_is_reported(copy: Path, file: str) -> None:
    (copy / file).unlink()
    assert lint(copy) == [
        f"golden/{file}: cannot be read, No such file or directory; restore it or write it"
    ]


def test_missing_vectors_are_reported_once_and_not_id_by_id(copy: Path) -> None:
    (copy / NULL).unlink()
    assert lint(copy) == [
        "golden: no vectors for `locality_null`; write <family>/locality_null.json"
    ]


def test_deep_nesting_is_no_traceback(copy: Path) -> None:
    (copy / CONTRACTS).write_text("contract = " + "[" * 100_000)
    assert [line.split(":")[0] for line in lint(copy)] == ["golden/contracts.toml"]


# --- format and schema ---------------------------------------------------------------------------


def test_format_and_schema_leave_files_in_order_as_they_are(copy: Path) -> None:
    before = contents(copy)
    assert main(["format"], copy) == 0
    assert main(["schema"], copy) == 0
    assert contents(copy) == before


def test_format_restores_layout_and_bits(copy: Path) -> None:
    def without_bits(value: dict[str, Any]) -> dict[str, Any]:
        return {key: item for key, item in value.items() if key != "bits"}

    before = contents(copy)
    for path in vector_paths(copy):
        bare = json.loads(path.read_text(), object_hook=without_bits)
        path.write_text(json.dumps(bare, indent=7))
    assert not contents(copy).items() & {name: before[name] for name in (NULL, RECALL)}.items()
    assert main(["format"], copy) == 0
    assert contents(copy) == before


def test_format_locks_a_new_vector_and_forgets_none(copy: Path) -> None:
    before = (copy / LOCK).read_text().splitlines()
    replace(copy, NULL, '"id": "four-of-eight"', '"id": "four-of-eight-tokens"')
    replace(copy, NULL, '"budget": 1', '"budget": 2')
    assert main(["format"], copy) == 0
    after = (copy / LOCK).read_text().splitlines()
    assert set(before) < set(after)
    (added,) = set(after) - set(before)
    assert added.startswith("vector locality_null/four-of-eight-tokens ")


def test_format_reports_a_file_it_cannot_read_and_leaves_it(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replace(copy, NULL, '"schema": 1,', '"schema": 1')
    before = contents(copy)
    assert main(["format"], copy) == 1
    assert capsys.readouterr().out.splitlines()[0].startswith(f"golden/{NULL}: JSON is malformed")
    assert contents(copy) == before


def test_schema_writes_the_schemas(copy: Path) -> None:
    before = contents(copy)
    shutil.rmtree(copy / "schema")
    assert main(["schema"], copy) == 0
    assert contents(copy) == before


# --- the command line ----------------------------------------------------------------------------


def test_the_last_line_counts_the_problems(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint"], copy) == 0
    assert capsys.readouterr().out == "0 problems\n"
    replace(copy, NULL, '"schema": 1', '"schema":  1')
    assert main(["lint"], copy) == 1
    assert capsys.readouterr().out == f"golden/{NULL}: {FORMAT}\n1 problem\n"


def test_a_missing_command_exits_with_2() -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])


def test_a_wrong_command_exits_with_2() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "golden", "tidy"], cwd=ROOT.parent, capture_output=True, text=True
    )
    assert run.returncode == 2
    assert "invalid choice: 'tidy'" in run.stderr


# --- the schemas ---------------------------------------------------------------------------------


def schema(name: str) -> jsonschema.Draft202012Validator:
    content = json.loads((ROOT / "schema" / name).read_text())
    jsonschema.Draft202012Validator.check_schema(content)
    return jsonschema.Draft202012Validator(content)


@pytest.mark.parametrize("path", vector_paths(), ids=lambda path: path.stem)
def test_the_schema_accepts_the_vectors_and_no_wrong_type(path: Path) -> None:
    file = json.loads(path.read_text())
    schema("vectors.json").validate(file)
    name = next(iter(file["vectors"][0]["inputs"]))
    file["vectors"][0]["inputs"][name] = "four"
    with pytest.raises(jsonschema.ValidationError):
        schema("vectors.json").validate(file)


def test_the_schema_accepts_the_contracts_and_no_wrong_type() -> None:
    file = tomllib.loads((ROOT / CONTRACTS).read_text())
    schema("contracts.json").validate(file)
    file["contract"][0]["operations"] = ["sort"]
    with pytest.raises(jsonschema.ValidationError):
        schema("contracts.json").validate(file)


# --- loading -------------------------------------------------------------------------------------


def test_the_loaders_agree_with_each_other() -> None:
    vectors = [(name, vector) for name in OPERATIONS for vector in load_vectors(name).vectors]
    assert sorted(all_vectors(), key=str) == sorted(vectors, key=str)
    assert all(name == contract.id for name, contract in load_contracts().items())


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (load_contracts, "golden/contracts.toml: Invalid value"),
        (all_vectors, "golden/witness/locality_null.json: JSON is malformed"),
        (lambda root: load_vectors("locality_null", root), f"golden/{NULL}: JSON is malformed"),
        (lambda root: load_vectors("merge", root), "golden: no vectors for `merge`; write"),
    ],
)
def test_a_loader_raises_one_line(copy: Path, load: Callable[[Path], object], message: str) -> None:
    replace(copy, NULL, '"schema": 1,', '"schema": 1')
    replace(copy, CONTRACTS, 'kind = "identity"', "kind = identity")
    with pytest.raises(GoldenError) as caught:
        load(copy)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
