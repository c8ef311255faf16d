"""A declared deviation excuses what it declares, and neither hides nor outlives anything."""

import datetime
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from golden import files
from golden.model import Tensor
from golden.record import Footer, Verdict
from kernels import catalog
from suites import deviations
from suites.cases import APPLY, MERGE, SELECT, STATS, Case, real
from suites.deviations import Condition, Deviation, DeviationError
from suites.selftest.whole_runs import ROOT, record_of, run_pytest

USAGE: Final = 4

# --- which cases a deviation is about ------------------------------------------------------------

SCORES = Tensor("float32", (1, 1, 2, 3), (0, 1, 2, "-inf", -7, 5), layout="padded")
STATISTICS = Case(
    STATS,
    {
        "attn_weights_slice": SCORES,
        "reshaped_block_size": 2,
        "segment_size": 4,
        "scale": real(0.5),
        "chunk_start": 6,
        "is_causal": True,
    },
)
PAIR = (Tensor("float32", (2,), ("nan", 1)), Tensor("float16", (2,), (3, 4)))
SELECTION = Case(
    SELECT,
    {
        "input_tensor": Tensor("float32", (1, 1, 1, 1), (0,)),
        "current_index": 0,
        "threshold": real(0.9),
        "mode": "decode",
    },
)
MERGED = Case(MERGE, {"m_chunks": PAIR, "l_chunks": PAIR})

ABOUT: dict[str, tuple[Case, dict[str, Any], bool]] = {
    "no condition": (STATISTICS, {}, True),
    "a number": (STATISTICS, {"chunk_start": 6}, True),
    "another number": (STATISTICS, {"chunk_start": 5}, False),
    "a float": (STATISTICS, {"scale": Condition(at_least=0.5, at_most=0.5)}, True),
    "a flag": (STATISTICS, {"is_causal": True}, True),
    "the other flag": (STATISTICS, {"is_causal": False}, False),
    "a word": (SELECTION, {"mode": "decode"}, True),
    "another word": (SELECTION, {"mode": "prefill"}, False),
    "a word is no number": (SELECTION, {"mode": Condition(at_least=0)}, False),
    "a default": (STATISTICS, {"kv_offset": 0}, True),
    "a default that is none": (SELECTION, {"num_to_choose": Condition(at_least=0)}, False),
    "too small": (STATISTICS, {"chunk_start": Condition(at_least=7)}, False),
    "too large": (STATISTICS, {"chunk_start": Condition(at_most=5)}, False),
    "a multiple": (STATISTICS, {"chunk_start": Condition(multiple_of=3)}, True),
    "no multiple": (STATISTICS, {"chunk_start": Condition(multiple_of=4)}, False),
    "not a multiple": (STATISTICS, {"chunk_start": Condition(not_multiple_of=4)}, True),
    "not no multiple": (STATISTICS, {"chunk_start": Condition(not_multiple_of=3)}, False),
    "of another input": (
        STATISTICS,
        {"chunk_start": Condition(not_multiple_of="segment_size")},
        True,
    ),
    "a multiple of another input": (
        STATISTICS,
        {"chunk_start": Condition(not_multiple_of="reshaped_block_size")},
        False,
    ),
    "a limit that is no number": (
        STATISTICS,
        {"chunk_start": Condition(not_multiple_of="chunk_end")},
        False,
    ),
    "a difference": (STATISTICS, {"chunk_start - kv_offset": 6}, True),
    "another difference": (
        STATISTICS,
        {"chunk_start - segment_size": Condition(at_least=3)},
        False,
    ),
    "a difference of what there is not": (STATISTICS, {"chunk_start - chunk_end": 0}, False),
    "a size": (STATISTICS, {"attn_weights_slice.shape[3]": 3}, True),
    "a size from the end": (STATISTICS, {"attn_weights_slice.shape[-2]": 3}, False),
    "a size past the end": (STATISTICS, {"attn_weights_slice.shape[4]": Condition()}, True),
    "a size past the end, of 1": (STATISTICS, {"attn_weights_slice.shape[4]": 1}, False),
    "an element": (STATISTICS, {"attn_weights_slice": -7}, True),
    "an infinite element": (STATISTICS, {"attn_weights_slice": float("-inf")}, True),
    "no such element": (STATISTICS, {"attn_weights_slice": float("inf")}, False),
    "one element within both limits": (
        STATISTICS,
        {"attn_weights_slice": Condition(at_least=-9, at_most=-1)},
        True,
    ),
    "two elements, each within one": (
        STATISTICS,
        {"attn_weights_slice": Condition(at_least=3, at_most=4)},
        False,
    ),
    "an element of several tensors": (MERGED, {"m_chunks": 4}, True),
    "NaN": (MERGED, {"m_chunks": float("nan")}, True),
    "no NaN": (STATISTICS, {"attn_weights_slice": float("nan")}, False),
    "a dtype of several": (MERGED, {"m_chunks": Condition(dtype=("float16",))}, True),
    "another dtype": (STATISTICS, {"attn_weights_slice": Condition(dtype=("float16",))}, False),
    "a layout": (STATISTICS, {"attn_weights_slice": Condition(layout=("wide", "padded"))}, True),
    "another layout": (STATISTICS, {"attn_weights_slice": Condition(layout=("wide",))}, False),
    "all of them": (STATISTICS, {"chunk_start": 6, "segment_size": 5}, False),
}


@pytest.mark.parametrize("inputs", ABOUT)
def test_what_a_deviation_is_about(inputs: str) -> None:
    case, conditions, about = ABOUT[inputs]
    declared = Deviation("a.b", "differ", "so", inputs=conditions)
    assert declared.is_about(case) is about


def test_a_deviation_of_one_operation_is_about_no_other() -> None:
    declared = Deviation("a.b", "differ", "so", inputs={}, operation=MERGE)
    assert declared.is_about(MERGED)
    assert not declared.is_about(STATISTICS)


def test_when_a_deviation_lapses() -> None:
    day = datetime.date(2026, 7, 31)
    until = Deviation("a.b", "differ", "so", expires=day)
    assert until.lapsed(day) == ""
    assert until.lapsed(day + datetime.timedelta(1)) == "expired on 2026-07-31"
    assert Deviation("a.b", "differ", "so", versions={"pytest": ">=8"}).lapsed(day) == ""
    old = Deviation("a.b", "differ", "so", versions={"pytest": "<8"}).lapsed(day)
    assert re.fullmatch(r"holds for pytest <8, and [\d.]+ is installed", old)


# --- files ---------------------------------------------------------------------------------------

SOUND = """schema = 1
implementation = "mine"

[[deviation]]
contract = "witness.merge.budget"
inputs = { num_segments = { multiple_of = 3 } }
statement = "elements differ"
reason = "threes are hard"
link = "https://example.org/3"
expires = 9999-12-31
"""

MISTAKES: dict[str, tuple[str, str, str]] = {
    "an unknown contract": (
        "merge.budget",
        "merge.budgt",
        "deviation 1: no contract `witness.merge.budgt`; golden/contracts.toml has them all",
    ),
    "an unknown field": (
        "link =",
        "url =",
        "Object contains unknown field `url` - at `$.deviation[0]`; correct it",
    ),
    "no deviation": (
        SOUND[SOUND.index("[[") :],
        "deviation = []",
        "Expected `array` of length >= 1 - at `$.deviation`; correct it",
    ),
    "no reason": (
        "threes are hard",
        " ",
        "deviation 1: no reason for departing from `witness.merge.budget`; say why it does",
    ),
    "nothing that it is about": (
        "inputs = { num_segments = { multiple_of = 3 } }",
        "",
        "deviation 1: it needs `cases` or `inputs`, and not both; say what it is about",
    ),
    "two things that it is about": (
        "statement",
        'cases = ["a"]\nstatement',
        "deviation 1: it needs `cases` or `inputs`, and not both; say what it is about",
    ),
    "no end": (
        "expires = 9999-12-31",
        "",
        "deviation 1: nothing ends it; set `expires` to a date, or `versions`",
    ),
    "no regular expression": (
        "elements differ",
        "elements (differ",
        "deviation 1: `statement` is no regular expression, missing ), unterminated subpattern "
        "at position 9; escape what is meant literally",
    ),
    "no range": (
        "expires = 9999-12-31",
        'versions = { torch = "2" }',
        'deviation 1: `2` is no range of versions; write it as in ">=1.2,<2"',
    ),
    "nothing of that name installed": (
        "expires = 9999-12-31",
        'versions = { torhc = ">2" }',
        "deviation 1: no distribution `torhc` is installed; correct `versions`",
    ),
    "no such input": (
        "num_segments",
        "num_segmnts",
        "deviation 1: no operation of `witness.merge.budget` has an input `num_segmnts`; name one "
        "of context_lens, learned_indices, learned_keep, max_replacements, num_segments, "
        "topk_indices",
    ),
    "no such limit": (
        "multiple_of = 3",
        'multiple_of = "topk"',
        "deviation 1: no operation of `witness.merge.budget` has an input `topk`; name one "
        "of context_lens, learned_indices, learned_keep, max_replacements, num_segments, "
        "topk_indices",
    ),
    "another operation": (
        "statement",
        'operation = "xattn_estimate"\nstatement',
        "deviation 1: `witness.merge.budget` is not about xattn_estimate; correct the operation",
    ),
    "another implementation": (
        '"mine"',
        '"torch"',
        "it is about the implementation torch, which is not the one tested, mine; "
        "correct `implementation`, or --impl",
    ),
}
MINE: Final = catalog.Implementation("mine", {APPLY: lambda: None})


def declared(text: str, folder: Path, *tested: catalog.Implementation) -> Any:
    (folder / "mine.toml").write_text(text, encoding="utf-8")
    found = deviations.of_implementations(
        ["mine.toml"], tested or (MINE,), folder, files.load_contracts()
    )
    return found["mine"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_file_is_one_line(mistake: str, tmp_path: Path) -> None:
    old, new, message = MISTAKES[mistake]
    assert old in SOUND
    with pytest.raises(DeviationError) as error:
        declared(SOUND.replace(old, new), tmp_path)
    assert str(error.value) == f"mine.toml: {message}"


def test_a_contract_of_which_the_implementation_has_nothing_is_a_mistake(tmp_path: Path) -> None:
    text = SOUND.replace("witness.merge.budget", "xattention.merge.formula")
    text = text.replace("num_segments", "m_chunks")
    with pytest.raises(DeviationError) as error:
        declared(text, tmp_path)
    assert str(error.value) == (
        "mine.toml: deviation 1: mine has no operation of `xattention.merge.formula`; "
        "remove the deviation"
    )


def test_an_implementation_may_name_its_file(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(SOUND, encoding="utf-8")
    tested = catalog.Implementation("mine", MINE.operations, deviations=own)
    contracts = files.load_contracts()
    (of_mine,) = deviations.of_implementations([], [tested], tmp_path, contracts).values()
    assert of_mine.shown == str(own)
    assert [each.reason for each in of_mine.deviations] == ["threes are hard"]
    with pytest.raises(DeviationError, match=r"own\.toml is about mine already; make them one"):
        declared(SOUND, tmp_path, tested)
    other = catalog.Implementation("other", MINE.operations, deviations=own)
    with pytest.raises(DeviationError, match="which is not the one tested, other; correct"):
        deviations.of_implementations([], [other], tmp_path, contracts)


# --- what becomes of a test ----------------------------------------------------------------------

MODULE = """
import time
from kernels.witness import torch_reference as honest


def apply_topology_witnesses(
    learned_indices, context_lens, learned_keep, num_segments, max_replacements
):
    n = num_segments
    if {crashes}:
        raise RuntimeError("no luck")
    if {hangs}:
        time.sleep(60)
    result = honest.apply_topology_witnesses(
        learned_indices, context_lens, learned_keep, num_segments, max_replacements
    )
    return result + 7 if {wrong} else result
"""

TESTS = """
import pytest
from hypothesis import given, strategies as st
from golden.model import Tensor
from suites.cases import APPLY, Case
from suites.contracts import contract, operations
from suites.verdicts import Nonconformance

def case(n):
    return Case(APPLY, {
        "learned_indices": Tensor("int32", (1, 4), (0, 1, 2, 3)),
        "context_lens": Tensor("int32", (1,), (16,)),
        "learned_keep": 2, "num_segments": n, "max_replacements": 2})

@contract("witness.merge.budget")
@operations(APPLY)
@given(n=st.integers(1, 9))
def test_drawn(implementation, n):
    implementation.judge(case(n))

@contract("witness.merge.budget")
@operations(APPLY)
def test_each(implementation):
    for n in range(1, 10):
        implementation.judge(case(n))

@contract("witness.merge.budget")
@operations(APPLY)
def test_three(implementation):
    implementation.judge(case(3))

@contract("witness.merge.budget")
@operations(APPLY)
@pytest.mark.timeout(5)
def test_slowly(implementation):
    implementation.judge(case(3))

@contract("witness.merge.budget")
@operations(APPLY)
def test_without_a_call(implementation):
    implementation.call(case(6))
    if FAILS:
        raise Nonconformance("6 elements differ", case(6))

@contract("witness.merge.budget", "witness.merge.width")
@operations(APPLY)
def test_two_contracts(implementation):
    implementation.judge(case(3))

@contract("witness.merge.budget")
@operations(APPLY)
def test_of_all(implementation_or_oracle):
    actual = implementation_or_oracle.call(case(3))
    implementation_or_oracle.require(case(3), not FAILS, "elements differ", actual)
"""


def run(
    folder: Path,
    text: str = SOUND,
    *arguments: str,
    tests: str = "test_drawn or test_each or test_three",
    **module: str,
) -> subprocess.CompletedProcess[str]:
    """``module``: in which cases of n segments it is wrong, crashes or hangs."""
    behaviour = {"wrong": "False", "crashes": "False", "hangs": "False"} | module
    fails = behaviour.pop("fails", "False")
    (folder / "mine.py").write_text(MODULE.format(**behaviour), encoding="utf-8")
    (folder / "test_some.py").write_text(f"FAILS = {fails}\n{TESTS}", encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    (folder / "mine.toml").write_text(text, encoding="utf-8")
    options = ["-p", "suites.plugin", "--impl", "mine", "--deviations", "mine.toml", "-k", tests]
    return run_pytest(folder, *options, *arguments)


def verdicts_of(folder: Path) -> dict[str, Verdict]:
    return {
        line.test.partition("::")[2]: line
        for line in record_of(folder)
        if isinstance(line, Verdict)
    }


def statuses(folder: Path) -> dict[str, str]:
    return {
        test.removesuffix("[mine]").removeprefix("test_"): verdict.status
        for test, verdict in verdicts_of(folder).items()
    }


THREES = "n % 3 == 0"
CASES = SOUND.replace("inputs = { num_segments = { multiple_of = 3 } }", "cases = {cases}")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_fails_as_declared_is_green(workers: str, tmp_path: Path) -> None:
    result = run(tmp_path, SOUND, "-n", workers, wrong=THREES)
    assert result.returncode == 0, result.stdout
    assert statuses(tmp_path) == dict.fromkeys(["drawn", "each", "three"], "deviates")
    assert re.search(r"witness\.merge\.budget +deviates \d+", result.stdout)
    assert "3 xfailed" in result.stdout
    verdict = verdicts_of(tmp_path)["test_drawn[mine]"]
    assert verdict.detail == "threes are hard (https://example.org/3)"
    footer = record_of(tmp_path)[-1]
    assert isinstance(footer, Footer)
    assert footer.statuses == {"deviates": 3}


def test_it_hides_no_other_failure(tmp_path: Path) -> None:
    """Neither among examples nor in a loop that began with what is declared."""
    result = run(tmp_path, wrong=f"{THREES} or n == 8")
    assert result.returncode == 1
    assert statuses(tmp_path) == {"drawn": "failed", "each": "failed", "three": "deviates"}
    assert len(re.findall(r"S 8 +S_eff 8", result.stdout)) == 2


def test_all_that_it_is_about_may_fail(tmp_path: Path) -> None:
    text = SOUND.replace("multiple_of = 3", "at_least = 1")
    result = run(tmp_path, text, wrong="True")
    assert result.returncode == 0, result.stdout
    assert set(statuses(tmp_path).values()) == {"deviates"}


def test_what_fails_otherwise_is_stale(tmp_path: Path) -> None:
    result = run(tmp_path, SOUND.replace("elements differ", "no kernel"), wrong=THREES)
    assert result.returncode == 1
    assert set(statuses(tmp_path).values()) == {"stale-deviation"}
    detail = verdicts_of(tmp_path)["test_three[mine]"].detail
    assert detail.startswith(
        "mine.toml, deviation 1, declares `failed: no kernel`: 4 of 4 elements"
    )
    assert "stale-deviation: mine.toml, deviation 1, declares `failed: no kernel`" in result.stdout


@pytest.mark.parametrize(
    ("status", "found"), [("crashed", "deviates"), ("failed", "stale-deviation")]
)
def test_a_crash_is_declared_by_its_status(status: str, found: str, tmp_path: Path) -> None:
    text = SOUND.replace("elements differ", "no luck") + f'status = "{status}"\n'
    run(tmp_path, text, crashes=THREES)
    assert statuses(tmp_path) == dict.fromkeys(["drawn", "each", "three"], found)


def test_what_has_expired_is_stale(tmp_path: Path) -> None:
    text = SOUND.replace("9999-12-31", "2026-01-31")
    result = run(tmp_path, text, wrong=THREES)
    assert result.returncode == 1
    assert set(statuses(tmp_path).values()) == {"stale-deviation"}
    detail = verdicts_of(tmp_path)["test_three[mine]"].detail
    assert detail.startswith("mine.toml, deviation 1, expired on 2026-01-31: 4 of 4 elements")
    assert run(tmp_path, text).returncode == 1  # whether or not anything fails
    verdict = verdicts_of(tmp_path)[""]
    assert verdict.test == "mine.toml, deviation 1"
    assert verdict.detail == "it expired on 2026-01-31; renew it, or remove it"
    elsewhere = text.replace("witness.merge.budget", "witness.merge.tail")
    assert run(tmp_path, elsewhere).returncode == 0  # of a contract that the run is not about


def test_cases_can_be_listed(tmp_path: Path) -> None:
    text = CASES.format(cases='["test_some.py::test_three[mine]"]')
    assert run(tmp_path, text, wrong="n == 3", tests="three").returncode == 0
    assert statuses(tmp_path) == {"three": "deviates"}
    result = run(tmp_path, text, wrong="n == 3", tests="three or each")
    assert result.returncode == 1
    assert statuses(tmp_path) == {"three": "deviates", "each": "failed"}


def test_a_case_that_is_listed_and_passes_is_stale(tmp_path: Path) -> None:
    result = run(tmp_path, CASES.format(cases='["test_some.py::test_three[mine]"]'))
    assert result.returncode == 1
    assert statuses(tmp_path) == {"three": "stale-deviation", "each": "passed", "drawn": "passed"}
    assert "mine.toml, deviation 1: the test passes; take it from `cases`" in result.stdout


def test_a_test_that_is_listed_may_hang(tmp_path: Path) -> None:
    text = CASES.format(cases='["test_some.py::test_slowly[mine]"]')
    text = text.replace("elements differ", "Timeout") + 'status = "timed-out"\n'
    result = run(tmp_path, text, hangs="n == 3", tests="slowly")
    assert result.returncode == 0, result.stdout
    assert statuses(tmp_path) == {"slowly": "deviates"}


def test_a_test_that_ends_is_excused_by_its_id_alone(tmp_path: Path) -> None:
    """For what comes after in it nobody has judged."""
    assert run(tmp_path, fails="True", tests="without").returncode == 1
    assert statuses(tmp_path) == {"without_a_call": "failed"}
    text = CASES.format(cases='["test_some.py::test_without_a_call[mine]"]')
    assert run(tmp_path, text, fails="True", tests="without").returncode == 0
    assert statuses(tmp_path) == {"without_a_call": "deviates"}


def test_each_contract_that_a_test_names_is_departed_from(tmp_path: Path) -> None:
    assert run(tmp_path, wrong=THREES, tests="two_contracts").returncode == 1
    assert statuses(tmp_path) == {"two_contracts": "failed"}
    second = SOUND[SOUND.index("[[") :].replace("merge.budget", "merge.width")
    assert run(tmp_path, SOUND + second, wrong=THREES, tests="two_contracts").returncode == 0
    assert statuses(tmp_path) == {"two_contracts": "deviates"}


def test_the_oracle_deviates_from_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, fails="True", tests="of_all").returncode == 1
    assert statuses(tmp_path) == {"of_all[oracle]": "failed", "of_all": "deviates"}


# --- what becomes of a run -----------------------------------------------------------------------

# All tests of one contract, from all files of the main job that there are for the family.
JOB: Final = [str(ROOT / "suites" / "test_golden.py"), str(ROOT / "suites" / "witness")]
CAVEAT: Final = "witness.caveat.coverage-after-merge"
ALL: Final = "test_vector or test_an_overwritten_sole_occupant"
SHOWN: Final = next(v.id for _, v in files.all_vectors() if CAVEAT in v.contracts)
ABOUT_THE_CAVEAT = SOUND.replace("witness.merge.budget", CAVEAT)


def run_job(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(
        MODULE.format(wrong="False", crashes="False", hangs="False"), encoding="utf-8"
    )
    (folder / "mine.toml").write_text(text, encoding="utf-8")
    return run_pytest(folder, "--impl", "mine", "--deviations", "mine.toml", *arguments)


OUT_OF_DATE: dict[str, tuple[str, str]] = {
    "it is about no case": (
        ABOUT_THE_CAVEAT.replace("multiple_of = 3", "at_least = 1e9"),
        "no case is one that it is about; correct its `inputs`, or remove it",
    ),
    "what it is about passes": (
        ABOUT_THE_CAVEAT.replace("multiple_of = 3", "at_least = 1"),
        r"\d+ cases are what it is about, and none failed; remove it",
    ),
    "it lists what there is not": (
        CASES.replace("witness.merge.budget", CAVEAT).format(
            cases='["apply_topology_witnesses/none-such"]'
        ),
        "1 of its 1 cases are of no test; correct them",
    ),
}


@pytest.mark.parametrize("how", OUT_OF_DATE)
def test_a_whole_run_finds_what_is_out_of_date(how: str, tmp_path: Path) -> None:
    text, message = OUT_OF_DATE[how]
    result = run_job(tmp_path, text, *JOB, "-k", ALL, "-n", "2")
    assert result.returncode == 1, result.stdout
    stale = [verdict for verdict in verdicts_of(tmp_path).values() if verdict.status != "passed"]
    (verdict,) = [verdict for verdict in stale if verdict.status != "unsupported"]
    assert (verdict.status, verdict.contracts) == ("stale-deviation", (CAVEAT,))
    assert verdict.test == "mine.toml, deviation 1"
    assert re.fullmatch(message, verdict.detail)
    assert f"stale-deviation: mine.toml, deviation 1 ({CAVEAT}): {verdict.detail}" in result.stdout
    assert re.search(rf"{re.escape(CAVEAT)} +passed \d+ +stale-deviation", result.stdout)
    footer = record_of(tmp_path)[-1]
    assert isinstance(footer, Footer)
    assert footer.exit_status == 1


@pytest.mark.parametrize(
    "part",
    [
        [*JOB, "-k", "test_vector"],
        [*JOB, "-k", f"({ALL}) and not {SHOWN}"],
        [JOB[0], "-k", ALL],
        [
            JOB[0],
            f"{JOB[1]}/test_merge.py::test_an_overwritten_sole_occupant_leaves_its_segment_uncovered",
        ],
    ],
    ids=["other tests", "all but one", "some files", "some tests of a file"],
)
def test_part_of_a_run_finds_nothing_out_of_date(part: list[str], tmp_path: Path) -> None:
    text, _ = OUT_OF_DATE["it is about no case"]
    assert run_job(tmp_path, text, *part).returncode == 0


# --- drafts --------------------------------------------------------------------------------------


def test_a_draft_lists_what_fails_and_wants_its_reasons(tmp_path: Path) -> None:
    result = run(
        tmp_path, SOUND.replace("3 }", "4 }"), "--write-deviations", "new.toml", wrong=THREES
    )
    assert result.returncode == 1
    assert "--write-deviations: new.toml has 1 deviations; give each its reason" in result.stdout
    drafted = (tmp_path / "new.toml").read_text(encoding="utf-8")
    again = run(tmp_path, drafted, wrong=THREES)
    assert again.returncode == USAGE
    assert "no reason for departing from `witness.merge.budget`; say why it does" in again.stderr
    signed = drafted.replace('reason = ""', 'reason = "threes are hard"')
    assert run(tmp_path, signed, wrong=THREES).returncode == 0
    assert statuses(tmp_path) == dict.fromkeys(["drawn", "each", "three"], "deviates")
    assert run(tmp_path, signed).returncode == 1


def test_a_draft_is_about_one_implementation_that_fails(tmp_path: Path) -> None:
    said = "--write-deviations: new.toml was not written: "
    passing = run(tmp_path, SOUND, "--write-deviations", "new.toml", wrong=THREES)
    assert f"{said}nothing failed, and a file is about one implementation" in passing.stdout
    (tmp_path / "other.py").write_text(MODULE.format(wrong="True", crashes="0", hangs="0"))
    arguments = ["--impl", "other", "--write-deviations", "new.toml"]
    both = run(tmp_path, SOUND.replace("3 }", "4 }"), *arguments, tests="three", wrong=THREES)
    assert f"{said}mine and other failed, and a file is about one implementation" in both.stdout
    assert not (tmp_path / "new.toml").exists()


def test_a_draft_overwrites_nothing(tmp_path: Path) -> None:
    result = run(tmp_path, SOUND, "--write-deviations", "mine.toml", wrong="True")
    assert result.returncode == USAGE
    assert (
        result.stderr.strip() == "ERROR: --write-deviations mine.toml: it exists; name a new file"
    )
    assert (tmp_path / "mine.toml").read_text(encoding="utf-8") == SOUND


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    result = run(tmp_path, SOUND, "--deviations", "none.toml")
    assert result.returncode == USAGE
    assert result.stderr.strip() == (
        "ERROR: none.toml: cannot be read, No such file or directory; "
        "write it, or --write-deviations drafts one"
    )
