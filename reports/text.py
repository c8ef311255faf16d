"""Text that a test, and so a stranger, may have written."""

import re
from typing import Final

LONGEST: Final = 300  # characters in a line
LINES, COLUMNS = 60, 160  # of what is shown of a failure


def visible(text: str) -> str:
    """Control characters, and those that turn or hide text, as their escapes."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def line(text: str, longest: int = LONGEST) -> str:
    """One line of it, cut where it is too long."""
    return cut(" ".join(visible(text[: 4 * longest]).split()), longest)


def block(text: str, lines: int = LINES) -> str:
    """Several lines of it, cut where there are too many or they are too wide."""
    kept = text[: 2 * LINES * COLUMNS].splitlines()
    shown = [cut(visible(each), COLUMNS) for each in kept[:lines]]
    if len(kept) > lines:
        shown.append(f"… {len(kept) - lines} lines more")
    return "\n".join(shown)


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def longest_run(text: str, character: str) -> int:
    """How many of a character stand in a row at most."""
    return max((len(run) for run in re.findall(f"{re.escape(character)}+", text)), default=0)
