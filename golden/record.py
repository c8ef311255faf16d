"""The typed form of a record, the file that one run leaves behind: JSON Lines, one of these a line.

A header first, then a line each verdict, measurement, pair or mutant, then a footer. Without a
footer the run was cut short.
"""

from typing import Final, Literal, get_args

import msgspec

SCHEMA: Final = 2  # raised when a line of an older record would be read wrongly or not at all

# Worst first: a contract checked by several tests has the worst of their statuses.
Status = Literal[
    "harness-error",
    "crashed",
    "timed-out",
    "failed",
    "stale-deviation",
    "unsupported",
    "not-run",
    "deviates",
    "passed",
]
SEVERITY: Final[tuple[Status, ...]] = get_args(Status)


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="header"):
    """Where a run came from.

    ``commit``: of the checkout that the run was started in, a kernel's own or this one; it ends in
    ``+`` when the working tree had changes. ``version``: of the suite.
    """

    schema: int
    version: str
    commit: str
    versions: dict[str, str]
    device: str
    seed: int
    implementations: tuple[str, ...]
    arguments: tuple[str, ...]


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="verdict"):
    """What one test found out about one implementation. ``cases`` is how many it judged.

    ``error_ratio``: the largest |error| / bound among all floats that it compared; None where it
    compared none whose bound says anything. Of a case that failed, ``shown`` is what a person reads
    of its inputs, of what was expected and what came, in several lines, and ``rerun`` the command
    that runs it again.
    """

    test: str
    implementation: str
    contracts: tuple[str, ...]
    status: Status
    cases: int
    detail: str
    error_ratio: float | None = None
    shown: str = ""
    rerun: str = ""


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="measurement"):
    """A figure that a run produced and no contract bounds.

    ``quantity`` of ``variant`` on ``subject``: the recall of the random null on a recorded context.
    """

    implementation: str
    subject: str
    quantity: str
    variant: str
    value: float


class Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="pair"):
    """What one benchmark took in two processes that took turns, one of each commit.

    ``base_us``, ``head_us``: the median of the process, microseconds a call. ``phase``: all
    benchmarks are screened, and what a screen flags is confirmed with fresh pairs. ``throttled``:
    why the two times are not to be believed; empty where they are.
    """

    test: str
    implementation: str
    phase: Literal["screen", "confirmation"]
    number: int
    base: str
    head: str
    base_us: float
    head_us: float
    throttled: str = ""


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="mutant"):
    """What became of one mutant of an implementation.

    Of those that no test finds, ``equivalent`` are not wrong, and it would take more than there is
    to show that ``out-of-reach`` ones are.

    ``contracts``: those of the test that killed it. ``cases`` and ``seconds``: until it did, or of
    the whole run. Where the other tests were run as well, ``kills`` has the contracts of each that
    failed, alike ones once, by the operations that it calls; ``vectors``, the golden vectors apart.
    """

    implementation: str
    mutant: str
    outcome: Literal["killed", "survived", "timed-out", "equivalent", "out-of-reach"]
    contracts: tuple[str, ...]
    cases: int
    seconds: float
    kills: dict[str, tuple[tuple[str, ...], ...]] = {}
    vectors: tuple[str, ...] = ()


class Footer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="footer"):
    """How many verdicts had each status, how many cases were judged, and pytest's exit status."""

    statuses: dict[Status, int]
    cases: int
    exit_status: int


Line = Header | Verdict | Measurement | Pair | Mutant | Footer
