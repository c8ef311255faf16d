"""The typed form of a record, the file that one run leaves behind: JSON Lines, one of these a line.

A header first, then a line a verdict or measurement, then a footer. Without a footer the run was
cut short.
"""

import msgspec


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="header"):
    """Where a run came from. ``commit`` ends in ``+`` when the working tree had changes."""

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
    compared none whose bound says anything.
    """

    test: str
    implementation: str
    contracts: tuple[str, ...]
    status: str
    cases: int
    detail: str
    error_ratio: float | None = None


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="measurement"):
    """A figure that a run produced and no contract bounds.

    ``quantity`` of ``variant`` on ``subject``: the recall of the random null on a recorded context.
    """

    implementation: str
    subject: str
    quantity: str
    variant: str
    value: float


class Footer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="footer"):
    """How many verdicts had each status, how many cases were judged, and pytest's exit status."""

    statuses: dict[str, int]
    cases: int
    exit_status: int


Line = Header | Verdict | Measurement | Footer
