"""The page teeth.md and its pictures, from records of runs of mutants and of a campaign.

    python -m docs.teeth .conformance/mutants.jsonl --honest docs/campaign/*.jsonl

writes all of it beside this file. Of a mutant that several records have, the last one counts;
one that is no more is left out. The campaign takes hours: its records, of other seeds each, are
kept in campaign/.
"""

import argparse
import ast
import pkgutil
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap

from docs.pages import begin_pictures, complete, markdown, revision, save
from golden import files
from golden.record import Header, Line, Measurement, Mutant
from suites.mutation import bug_classes, cheats, closure
from suites.mutation.honest import GENERATED, GIVEN
from suites.mutation.mutants import FILES, mutants

HERE: Final = Path(__file__).parent
PAGE: Final = HERE / "teeth.md"
SPEED: Final = "teeth-speed.svg"
MATRIX: Final = "teeth-matrix.svg"
LIMITS: Final = (20, 2000)  # cases to the kill: of the median, of the slowest


@dataclass(frozen=True)
class Run:
    """A complete record."""

    header: Header
    lines: Sequence[Line]


def read(path: Path, kind: type[Mutant | Measurement], command: str) -> Run:
    """Raises ValueError, in one line, for what is no complete record with such lines."""
    header, lines = complete(path, command)
    if not any(isinstance(line, kind) for line in lines):
        raise ValueError(f"{path}: nothing of `{command}` in it; run that")
    return Run(header, lines)


def origins(runs: Iterable[Run]) -> Iterator[str]:
    """Where the figures are from: a paragraph for what was run on one machine at one commit."""
    commands: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        commands[f"{run.header.device}; {revision(run.header)}"].append(
            f"`{' '.join(run.header.arguments)}`"
        )
    for place, how in commands.items():
        yield f"*{place}; {', '.join(how)}.*\n"


# --- tables --------------------------------------------------------------------------------------


def tally(found: Sequence[Mutant], key: Callable[[Mutant], str], names: Iterable[str]) -> str:
    """What became of the mutants that share a key, and how soon."""
    rows = []
    for name in [*names, "all"]:
        theirs = [line for line in found if name in (key(line), "all")]
        dead = [line for line in theirs if line.outcome in ("killed", "timed-out")]
        ends = Counter(line.outcome for line in theirs)
        if theirs:
            cases = [line.cases for line in dead] or [0]
            seconds = [line.seconds for line in dead] or [0.0]
            rows.append(
                [
                    name if name == "all" else f"`{name}`",
                    str(len(theirs)),
                    str(len(dead)),
                    *(str(ends[each]) for each in ("equivalent", "out-of-reach", "survived")),
                    f"{median(cases):.0f}",
                    str(max(cases)),
                    f"{median(seconds):.1f}",
                    f"{max(seconds):.1f}",
                ]
            )
    kinds = ["mutants", "killed", "equivalent", "out of reach", "survived"]
    speed = ["cases, median", "worst", "seconds, median", "worst"]
    return markdown(["", *kinds, *speed], rows, left=1)


def rule_of(line: Mutant) -> str:
    return line.mutant.rsplit(":", 2)[1]


def campaign(runs: Sequence[Run]) -> Iterator[str]:
    """What the honest variants came to. Raises ValueError where two records share a seed."""
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    seeds: set[int] = set()
    for run in runs:
        for line in run.lines:
            if isinstance(line, Measurement):
                found[line.subject, line.implementation, line.quantity].append(line.value)
        if shared := seeds.intersection(theirs := _seeds(run)):
            raise ValueError(f"--honest: two records have seed {min(shared)}; leave one out")
        seeds.update(theirs)

    def total(kind: str, quantity: str, name: str = "") -> str:
        """Of a variant, or of all."""
        keys = [key for key in found if key[::2] == (kind, quantity) and name in ("", key[1])]
        return f"{sum(sum(found[key]) for key in keys):,.0f}"

    yield (
        f"**{total(GENERATED, 'runs')} full runs' worth of generated cases, "
        f"{total(GENERATED, 'cases')} of them: {total(GENERATED, 'failures')} failures.** "
        "A full run is the main job on one variant."
    )
    yield ""
    yield markdown(
        ["variant", "full runs", "cases", "failures", "largest error / bound"],
        [
            [
                f"`{name}`",
                *(total(GENERATED, quantity, name) for quantity in ("runs", "cases", "failures")),
                f"{max(ratios):.2f}",
            ]
            for (kind, name, quantity), ratios in found.items()
            if (kind, quantity) == (GENERATED, "error_ratio")
        ],
        left=1,
    )
    yield ""
    yield (
        "Cases that are not generated are the same for every seed, and judged once a record: "
        f"{total(GIVEN, 'cases')} of all variants, {total(GIVEN, 'failures')} failures."
    )


def _seeds(run: Run) -> range:
    """Those of a campaign: as many as any variant has runs."""
    counts = [
        int(line.value)
        for line in run.lines
        if isinstance(line, Measurement) and (line.subject, line.quantity) == (GENERATED, "runs")
    ]
    return range(run.header.seed, run.header.seed + max(counts, default=0))


def cheat_list() -> Iterator[str]:
    folder = Path(cheats.__file__).parent
    for module in pkgutil.iter_modules(cheats.__path__):
        text = (folder / f"{module.name}.py").read_text(encoding="utf-8")
        (first, *_) = (ast.get_docstring(ast.parse(text)) or "").splitlines()
        yield f"- `{module.name}`: {first}"


def class_list() -> str:
    rows = []
    known = bug_classes.load()
    for each in known:
        name = f"[{each.name}]({each.link})" if each.link else each.name
        if isinstance(each, bug_classes.Planted):
            by = ", ".join(f"`{contract}`" for contract in each.contracts)
        elif isinstance(each, bug_classes.Shown):
            file, _, test = each.test.partition("::")
            by = f"planted by {test.partition('[')[0]} in [{Path(file).name}](../{file})"
        else:
            by = f"cannot be here: {each.why}"
        rows.append([name, each.what, by])
    return markdown(["class", "what goes wrong", "what finds it"], rows, left=3)


def excuses() -> Iterator[str]:
    known = closure.load()
    for excuse in (*known.contracts, *known.notes):
        yield f"- {', '.join(f'`{name}`' for name in excuse.named)}: {excuse.reason}"


# --- pictures ------------------------------------------------------------------------------------


def draw_speed(found: Sequence[Mutant], path: Path) -> None:
    """How large a part was dead after so many cases."""
    chart, axis = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for name, style in zip(FILES, ("-", "--", "-.", ":"), strict=True):
        theirs = [line for line in found if line.implementation == name]
        cases = sorted(line.cases for line in theirs if line.outcome in ("killed", "timed-out"))
        wrong = sum(line.outcome != "equivalent" for line in theirs)
        if cases:
            share = [100 * (at + 1) / wrong for at in range(len(cases))]
            axis.step(cases, share, style, where="post", label=f"{name}, {wrong} mutants")
    for limit in LIMITS:
        axis.axvline(limit, color="grey", linewidth=0.8)
    axis.set(xscale="log", xlabel="cases", ylabel="% of the mutants that are wrong", ylim=(0, 102))
    axis.set_title("killed within so many cases")
    axis.legend(loc="lower right")
    save(chart, path)


def draw_matrix(found: Sequence[Mutant], contracts: Sequence[str], path: Path) -> None:
    """Which contract finds which mutant; dark where, of an operation, no other does."""
    lines = [line for line in closure.whole(found) if line.kills]
    rows = [id_ for id_ in contracts if any(id_ in _contracts(line) for line in lines)]
    alone = closure.found_alone(lines, contracts)
    order = sorted(lines, key=lambda m: (next(iter(m.kills)), _first(m, rows), m.mutant))
    cells = [
        [2 if line.mutant in alone[id_] else int(id_ in _contracts(line)) for line in order]
        for id_ in rows
    ]
    chart, axis = plt.subplots(figsize=(15, 0.15 * len(rows) + 1), layout="constrained")
    axis.imshow(cells, cmap=ListedColormap(["white", "#a8c6e8", "#16325c"]), aspect="auto")
    axis.set_yticks(range(len(rows)), rows, fontsize=6)
    axis.set_xticks([])
    axis.set_xlabel(f"{len(order)} mutants of {closure.FOR}, by the first operation that fails")
    save(chart, path)


def _first(line: Mutant, rows: Sequence[str]) -> int:
    return min(map(rows.index, _contracts(line)))


def _contracts(line: Mutant) -> set[str]:
    """Those whose tests fail."""
    return {id_ for tests in line.kills.values() for test in tests for id_ in test}


# --- the page ------------------------------------------------------------------------------------

HOW: Final = """\
A mutant is a kernel that was made wrong in one place. It counts as killed when a test of the main
job fails, or of the sanitizer in CUDA C++; *cases* are those that were judged until then, vectors
first, then one example of each test, then the next of each. Seconds are those of a processor. A
mutant that changes no result which the specification allows is *equivalent*, and
[equivalent.toml](../suites/mutation/equivalent.toml) says why: a reason that can be checked, and
that fails the run once its mutant is killed or changed. The same file names those that are wrong
where no machine of this suite gets to: *out of reach*, and neither equivalent nor killed. Every
rule makes one mutant in each function where it applies; mutants that no compiler accepts are not
counted."""

ALARMS: Final = """\
The search for such seeds has found three, and the suite was mended: the oracle refused a row that
holds inf and -inf, which is legal (seed 1), a test wrote over a tensor whose rows are one and the
same row in memory, which torch refuses (seed 27), and another took half of a score to be exact,
which is rounded below the normal numbers of fp16 (seed 271)."""

ADD: Final = """\
- **A class of bugs**: an entry in [bug_classes.toml](../suites/mutation/bug_classes.toml) with the
  file, what it says and what is to stand there, the test that must fail, and what that then says.
  `python -m pytest suites/selftest/mutation/test_bug_classes.py` holds it to that. If nothing
  finds it, the missing test comes first.
- **A rule**: a function of a node of the syntax tree in
  [python_edits.py](../suites/mutation/python_edits.py), or a pattern in
  [cuda_edits.py](../suites/mutation/cuda_edits.py). `python -m suites.mutation --list` shows what
  it makes.
- **A cheat**: a module in [cheats/](../suites/mutation/cheats) with an honest twin in it, and who
  catches it in [test_cheats.py](../suites/selftest/mutation/test_cheats.py).
- **A survivor** wants a better test. Only where no test can be, an entry in equivalent.toml.
- **A new contract** wants a mutant that it alone finds:
  [closure.toml](../suites/mutation/closure.toml) makes one, or says why there is none."""


def mutants_of(runs: Iterable[Run], names: Container[str]) -> list[Mutant]:
    """The last word on each mutant. ``names``: of those that there are."""
    lines = (line for run in runs for line in run.lines if isinstance(line, Mutant))
    return list({line.mutant: line for line in lines if line.mutant in names}.values())


def page(found: Sequence[Mutant], runs: Sequence[Run], honest: Sequence[Run]) -> str:
    contracts = [*files.load_contracts()]
    alone = closure.found_alone(found, contracts)
    notes = closure.found_by_note(found, files.all_vectors())
    excused = {name for excuse in closure.load().contracts for name in excuse.named}
    matrix = [*closure.whole(found)]
    wrong = [line for line in found if line.outcome != "equivalent"]
    dead = [line for line in wrong if line.outcome in ("killed", "timed-out")]
    parts = [
        "# What the suite finds",
        "",
        f"**{len(dead)} of {len(wrong)} wrong kernels are found: "
        f"{100 * len(dead) / len(wrong):.1f} %.** {len(found) - len(wrong)} more mutants are "
        "equivalent.",
        "",
        HOW,
        "",
        *origins(runs),
        "## By implementation",
        "",
        tally(found, lambda line: line.implementation, FILES),
        "",
        f"![killed within so many cases]({SPEED})",
        "",
        "## By rule",
        "",
        tally(found, rule_of, sorted({rule_of(line) for line in found})),
        "",
        "*planted* are the classes of bugs below, *made* what `closure.toml` makes.",
        "",
        "## Every contract is there for something",
        "",
        f"{len(matrix)} mutants of `{closure.FOR}` went through all tests, not only to the first "
        f"that fails. {sum(bool(each) for each in alone.values())} of {len(contracts)} contracts "
        "find a mutant that, among the tests of an operation, no other contract finds; of the "
        f"other {len(excused)} it is said below why. Of {len(notes)} notes of vectors, "
        f"{sum(bool(each) for each in notes.values())} have a vector that finds one.",
        "",
        f"![contracts by mutants]({MATRIX})",
        "",
        "Light: a test of the contract fails. Dark: of an operation, no other contract does.",
        "",
        *excuses(),
        "",
        "## Cheats",
        "",
        "Implementations that are not wrong by accident. Each is caught for what it does "
        "([test_cheats.py](../suites/selftest/mutation/test_cheats.py) says by what), and its "
        "honest twin is not.",
        "",
        *cheat_list(),
        "",
        "## Known classes of bugs",
        "",
        class_list(),
        "",
        "## No false alarms",
        "",
        "Implementations that are right in another way: other blocks, other orders of summation, "
        "compensated sums, fp64 inside, base 2 inside, other splits, other orders of ties. None "
        "may fail, whatever the seed of the generated cases.",
        "",
        *campaign(honest),
        "",
        ALARMS,
        "",
        *origins(honest),
        "## How to add to this",
        "",
        ADD,
        "",
        "`python -m docs.teeth RECORD... --honest RECORD...` writes this page, from what "
        "`python -m suites.mutation --matrix` and `python -m suites.mutation.honest` leave in "
        ".conformance/. What the latter has left so far is in [campaign/](campaign); it goes on "
        "with other `--seeds`.",
        "",
    ]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mutants", type=Path, nargs="+", help="records of `tox -e mutants`")
    parser.add_argument(
        "--honest",
        type=Path,
        nargs="+",
        required=True,
        help="records of `python -m suites.mutation.honest`",
    )
    arguments = parser.parse_args()
    try:
        runs = [read(path, Mutant, "tox -e mutants") for path in arguments.mutants]
        honest = [
            read(path, Measurement, "python -m suites.mutation.honest") for path in arguments.honest
        ]
        found = mutants_of(runs, {mutant.name for mutant in mutants()})
        text = page(found, runs, honest)
    except ValueError as error:
        parser.error(str(error))
    begin_pictures("teeth")
    draw_speed(found, HERE / SPEED)
    draw_matrix(found, [*files.load_contracts()], HERE / MATRIX)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
