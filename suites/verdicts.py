"""How a case can end other than well."""

from golden.record import Status
from suites.cases import Bounds, Case, Results


class Nonconformance(AssertionError):  # noqa: N818 - a verdict, not an error
    """An implementation did not do what a contract says.

    ``row`` is the row that shows it, where one does; ``expected`` is None when the statement is
    about the results alone and ``actual`` when there are none; ``bounds`` is how far they may be
    apart, None where by nothing. ``stale``: why a deviation that is declared of the case does not
    explain it; empty where none is.
    """

    def __init__(
        self,
        statement: str,
        case: Case,
        *,
        status: Status = "failed",
        expected: Results | None = None,
        actual: Results | None = None,
        bounds: Bounds | None = None,
        row: int | None = None,
    ) -> None:
        super().__init__(statement)
        self.statement = statement
        self.case = case
        self.status: Status = status
        self.expected = expected
        self.actual = actual
        self.bounds = bounds
        self.row = row
        self.stale = ""


class Ended(Exception):  # noqa: N818 - a verdict, not an error
    """A test ended for a reason that is no case's; its words are all that there is to show."""

    status: Status
