"""The page as HTML."""

from reports.model import Report


def render(report: Report) -> str:
    raise NotImplementedError
