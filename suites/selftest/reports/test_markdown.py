"""What GitHub's own parser makes of the page, whatever a record says."""

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import cmarkgfm
import msgspec
import pytest
from cmarkgfm.cmark import Options

from golden.record import Line
from reports import markdown
from reports.comparing import compare
from reports.markdown import LARGEST, code, commands, escaped, in_html
from reports.text import line
from suites.selftest.reports.records import (
    BASE,
    failing,
    header,
    pairs,
    verdicts,
    write,
)
from suites.selftest.reports.test_pages import HOSTILE, hostile_words

TAGS: Final = re.compile("h2|h3|p|strong|br|code|pre|table|thead|tbody|tr|th|td|details|summary")
ATTRIBUTES: Final = {"align", "lang"}
INLINE: Final = [
    HOSTILE,
    "a\\|b",
    "\\",
    "`",
    "``a`",
    "|",
    "\\\\|",
    "&lt;b&gt; &#64;",
    "<!-- -->",
    "https://evil.example www.evil.example a@evil.example",
    "@someone/team #12 GH-12",
    "~~a~~ *b* _c_ [d]: e",
    "$x$ :tada:",
    "a\n\n# b",
    "a\n```\n<b>c</b>\n````\n\nd",
    "",
]


class Seen(HTMLParser):
    """Tags, attributes, the text outside of code, and how many cells each row has."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.text = ""
        self.code = ""
        self.rows: list[int] = []
        self.depth = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        self.depth += tag in ("code", "pre")
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += 1

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag in ("code", "pre")

    def handle_data(self, data: str) -> None:
        if self.depth:
            self.code += data
        else:
            self.text += data


def parsed(page: str) -> Seen:
    """As GitHub parses it, and with no filter behind that would help us."""
    return Seen(cmarkgfm.github_flavored_markdown_to_html(page, Options.CMARK_OPT_UNSAFE))


def is_harmless(seen: Seen) -> None:
    assert all(map(TAGS.fullmatch, seen.tags))
    assert seen.attributes <= ATTRIBUTES
    assert not re.search(r"(?<![\w`])@\w", seen.text)
    assert not re.search(r"#\d", seen.text)


@pytest.mark.parametrize("text", INLINE)
def test_text_is_text(text: str) -> None:
    seen = parsed(f"| a | b |\n|---|---|\n| {escaped(text)} | x |\n\nx {escaped(text)} y")
    is_harmless(seen)
    assert seen.rows == [2, 2]
    assert not seen.tags["code"]
    assert not seen.tags["strong"]
    visible = " ".join(seen.text.replace("\N{WORD JOINER}", "").split())
    assert visible.endswith(f"x {' '.join(line(text).split())} y".replace("  ", " "))


@pytest.mark.parametrize("text", INLINE)
def test_code_is_code(text: str) -> None:
    seen = parsed(f"| a | b |\n|---|---|\n| {code(text)} | x |\n\nx {code(text)} y")
    is_harmless(seen)
    assert seen.rows == [2, 2]
    shown = line(text).replace("|", "│")
    assert seen.code == shown * 2


@pytest.mark.parametrize("text", INLINE)
def test_a_block_is_a_block(text: str) -> None:
    seen = parsed(f"{markdown.block(text)}\n{commands((text, text))}\n")
    is_harmless(seen)
    assert seen.tags["pre"] == 2
    assert not seen.text.strip()


@pytest.mark.parametrize("text", INLINE)
def test_a_summary_is_a_summary(text: str) -> None:
    seen = parsed(f"<details><summary>{in_html(text)}</summary>\n\nx\n\n</details>\n")
    is_harmless(seen)
    assert seen.code == line(text)


def test_a_hostile_page_is_a_page(tmp_path: Path) -> None:
    seen = parsed(markdown.render(compare(*hostile_words(tmp_path))))
    is_harmless(seen)
    assert seen.tags["h2"] == 1
    assert seen.text.lstrip().startswith("❌ Action needed")
    assert "curl" not in seen.code
    assert "curl" not in seen.text


def test_what_is_too_long_is_shed_in_order(tmp_path: Path) -> None:
    """Never the first line, the failures or the next step; and it says what is not there."""
    sizes = []
    for count in (1, 8, 200, 1000):
        head: list[Line] = [
            msgspec.structs.replace(
                failing(verdict), test=f"a.py::test_{n:04}[{name}]", contracts=(f"a.contract-{n}",)
            )
            for n in range(count)
            for name, verdict in zip(("torch", "triton"), verdicts(), strict=False)
        ]
        head += [
            msgspec.structs.replace(pair, test=f"suites/bench/a.py::test_{n:04}")
            for n in range(count)
            for pair in pairs(1, (0,), 2)
        ]
        base = write(tmp_path / f"{count}-a.jsonl", header(BASE), verdicts())
        report = compare(base, write(tmp_path / f"{count}-b.jsonl", header(), head))
        page = markdown.render(report)
        sizes.append(len(page.encode()))
        assert page.startswith("## ❌ Action needed")
        assert "**Next:**" in page
        assert ("Environment" in page) == (count < 200)
        assert ("the HTML page has" in page) == (count >= 200)
        is_harmless(parsed(page))
    assert sizes == sorted(sizes)
    assert sizes[-1] <= LARGEST


def test_the_smallest_page_fits_whatever_is_in_it(tmp_path: Path) -> None:
    """Every string as long as it may be, and each character as many as it can become."""
    contracts = [f"{n:03}{'@' * 1000}" for n in range(300)]
    head: list[Line] = [
        msgspec.structs.replace(
            verdicts()[0],
            test=f"{n}{'@' * 1000}",
            implementation="@" * 1000,
            contracts=(contract,),
            status="failed",
            detail="@" * 1000,
            shown=("@" * 1000 + "\n") * 200,
            error_ratio=None,
        )
        for n, contract in enumerate(contracts)
    ]
    base = write(tmp_path / "a.jsonl", header(BASE), verdicts())
    report = compare(base, write(tmp_path / "b.jsonl", header(device="@" * 1000), head))
    page = markdown.render(report)
    assert len(page.encode()) <= LARGEST
