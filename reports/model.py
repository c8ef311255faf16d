"""What a page says, before it is one: the same for every format, and itself the JSON one."""

from typing import Literal

import msgspec

from golden.record import Measurement

Decision = Literal["passed", "warned", "failed", "undecided", "unusable"]
Finding = Literal[
    "failed",  # and did not on base
    "stale-deviation",
    "gone",  # a contract that base was measured by, and head is not
    "unsupported",  # and was not on base
    "not-run",
    "fixed",
    "changed",  # failed on base in another way
    "known",  # failed on base in the same way
]


class Side(msgspec.Struct, frozen=True):
    """What one side's records say of themselves. ``records``: their files, as they were named."""

    records: tuple[str, ...]
    commit: str
    devices: tuple[str, ...]
    versions: dict[str, str]
    seeds: tuple[int, ...]
    verdicts: int
    cases: int


class Conformance(msgspec.Struct, frozen=True):
    """How one contract fares with one implementation on one kind of device, where that is news.

    ``tests``: how many tests have that finding; ``base`` and ``head``: the worst of their statuses,
    empty without any. ``test``, ``detail``, ``shown``, ``rerun``, ``seed``: of the one that has the
    least to read. ``contract`` is empty where all that is not run has one reason.
    """

    finding: Finding
    contract: str
    title: str
    implementation: str
    device: str
    base: str
    head: str
    tests: int
    test: str
    detail: str
    gates: bool
    shown: str = ""
    rerun: str = ""
    seed: int = 0


class Accuracy(msgspec.Struct, frozen=True):
    """The largest |error| / bound of one contract; ``base`` is None where nothing was compared."""

    contract: str
    implementation: str
    device: str
    base: float | None
    head: float
    risen: bool


class Timing(msgspec.Struct, frozen=True):
    """What the rule for speed concludes of one benchmark on one device.

    ``base_us``, ``head_us``: the median of its processes' medians, microseconds a call. ``ratio``:
    head over base, between ``low`` and ``high`` with 95 % confidence, None where there are too few
    pairs. ``limit``: what it may differ by, a share. ``reason``: why it is not decided.
    """

    test: str
    implementation: str
    device: str
    base_us: float
    head_us: float
    ratio: float
    low: float | None
    high: float | None
    limit: float
    nights: int
    pairs: int
    verdict: Literal["slower", "faster", "same", "inconclusive"]
    reason: str
    gates: bool


class Resource(msgspec.Struct, frozen=True):
    """Figures of one compiled kernel of one architecture that differ: name to (base, head)."""

    kernel: str
    module: str
    architecture: str
    figures: dict[str, tuple[float, float]]
    gates: bool
    warns: bool


class Memory(msgspec.Struct, frozen=True):
    """What a call holds at its peak, MiB."""

    subject: str
    implementation: str
    device: str
    variant: str
    base: float
    head: float
    gates: bool


class Kills(msgspec.Struct, frozen=True):
    """How many mutants of one implementation that are not equivalent were killed.

    ``base_killed`` and ``base_of`` are None where base has no mutants. ``survivors``: by name.
    """

    implementation: str
    base_killed: int | None
    base_of: int | None
    killed: int
    of: int
    survivors: tuple[str, ...]


class Undecided(msgspec.Struct, frozen=True):
    """Something that was to be compared and could not be."""

    what: str
    metric: str
    reason: str


class Cell(msgspec.Struct, frozen=True):
    """One cell of the contract matrix of head: the worst status, cases, largest |error| / bound."""

    contract: str
    implementation: str
    device: str
    status: str
    cases: int
    error_ratio: float | None


class Kill(msgspec.Struct, frozen=True):
    """One mutant of head and the contracts that killed it."""

    implementation: str
    mutant: str
    outcome: str
    contracts: tuple[str, ...]


class Report(msgspec.Struct, frozen=True):
    """All of it. ``base`` is None where one side is shown and nothing compared.

    ``headline`` is the verdict in one line, without mark-up, and ``next`` what to do. ``measured``:
    every figure of head that nothing judges, for the pictures.
    """

    decision: Decision
    headline: str
    next: str
    exit_status: int
    base: Side | None
    head: Side | None
    accepted: tuple[str, ...] = ()
    conformance: tuple[Conformance, ...] = ()
    accuracy: tuple[Accuracy, ...] = ()
    speed: tuple[Timing, ...] = ()
    resources: tuple[Resource, ...] = ()
    memory: tuple[Memory, ...] = ()
    kills: tuple[Kills, ...] = ()
    undecided: tuple[Undecided, ...] = ()
    cells: tuple[Cell, ...] = ()
    mutants: tuple[Kill, ...] = ()
    measured: tuple[Measurement, ...] = ()
