"""The page as HTML: what it says first, what it draws, and what a stranger cannot do to it."""

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import matplotlib
import msgspec
import pytest

from reports import html, pictures
from reports.model import Accuracy, Kill, Report
from suites.bench import figures
from suites.selftest.reports import samples
from suites.selftest.reports.hostile import HOSTILE, POLICY, SAMPLES, everywhere, page_of

ROOT = Path(__file__).parents[3]
EMPTY = Report("passed", "Nothing to say", "Merge.", 0, None, None)
TAGS = {
    *("html", "head", "meta", "link", "title", "style", "body", "header", "main", "section"),
    *("h1", "h2", "h3", "p", "b", "code", "span", "pre", "div", "details", "summary"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "figcaption"),
    *("svg", "defs", "clippath", "g", "path", "rect", "use", "text"),
}


class Outline(HTMLParser):
    """Every element with its attributes, and the text that follows it before the next begins."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self.texts:
            self.texts[-1] += data

    def of(self, *tags: str) -> list[tuple[str, str]]:
        found = zip(self.elements, self.texts, strict=True)
        return [(tag, " ".join(text.split())) for (tag, _), text in found if tag in tags]


def without_pictures(page: str) -> str:
    return re.sub("<svg.*?</svg>", "", page, flags=re.DOTALL)


# --- what it says, in which order ----------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLES)
def test_the_verdict_and_what_to_do_come_first(name: str) -> None:
    report = SAMPLES[name]
    page = page_of(name)
    body = page.partition("<main>")[0].partition("<body>")[2]
    words = " ".join(re.sub("<[^>]*>", "", body).split())
    following = report.next.replace("`", "")
    assert words.startswith(f"{report.decision} {report.headline} Next: {following} 1d0c1f0d")


def test_what_failed_comes_before_what_did_not_and_the_rest_is_folded() -> None:
    page = page_of("wrong")
    places = [
        page.index(text)
        for text in (
            "<h2>Conformance",
            "slot 3 holds 4, expected 6",
            "[0, 0, 1]   2.992203        3   0.007797241   3.814697e-06              2044",
            "new failure",
            ">fixed<",
            "<h2>Accuracy",
            "<h2>Mutants",
            "<h2>All the rest",
            "<summary>All contracts",
            "<summary>Environment",
            "<summary>Pictures",
        )
    ]
    assert places == sorted(places)
    assert page.index("--replay .conformance/failures/apply-1f6a.json") < places[2]


def test_three_failures_are_open_and_the_others_are_folded() -> None:
    page = page_of("wrong")
    assert page.count('<div class="failure">') == 3
    assert page.count('<details class="failure">') == 1


def test_all_largest_errors_are_there_and_those_that_rose_are_seen() -> None:
    seen, _, folded = page_of("wrong").partition("<h2>All the rest")
    assert "2044.00" in seen
    assert "xattention.scores.head-dim" not in seen
    assert "xattention.scores.head-dim" in folded.partition("<summary>All largest")[2]


@pytest.mark.parametrize("name", SAMPLES)
def test_headings_tables_and_pictures_can_be_heard(name: str) -> None:
    outline = Outline(page_of(name))
    levels = [int(tag[1]) for tag, _ in outline.of("h1", "h2", "h3", "h4", "h5", "h6")]
    assert levels.count(1) == 1 == levels[0]
    assert all(below - above <= 1 for above, below in pairwise(levels))
    count = Counter(tag for tag, _ in outline.elements)
    assert count["caption"] == count["table"] > 0
    scopes = Counter(of.get("scope") for tag, of in outline.elements if tag == "th")
    rows = len(outline.of("tr"))
    assert scopes["row"] == rows - count["table"]  # each but that of the headings
    assert scopes.keys() == {"row", "col"}
    assert all(text for _, text in outline.of("caption", "th", "h2", "h3"))
    for tag, attributes in outline.elements:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert len(attributes["aria-label"]) > 40


def test_what_there_is_nothing_of_has_no_heading() -> None:
    assert [tag for tag, _ in Outline(html.render(EMPTY)).of("h1", "h2", "h3", "details")] == ["h1"]


def test_what_is_between_backticks_is_code_and_nothing_more() -> None:
    report = msgspec.structs.replace(EMPTY, next="Label it `perf-<accepted>`, `")
    assert "Label it <code>perf-&lt;accepted&gt;</code>, `" in html.render(report)


# --- pictures ------------------------------------------------------------------------------------


def test_quantities_are_called_what_the_benchmarks_call_them() -> None:
    names = "MEDIAN", "SPREAD", "THROTTLED", "BYTES", "PRODUCTS", "PEAK", "FORMULA"
    for name in (*names, "COPY_CEILING", "RATE_CEILING"):
        assert getattr(pictures, name) == getattr(figures, name)


def test_each_picture_is_there_if_it_has_something_to_show() -> None:
    measured = {
        title: [line for line in SAMPLES["good"].measured if re.search(subjects, line.subject)]
        for title, subjects in {
            "Time against rows": " rows ",
            "Roofline": "gemm|^ceiling",
            "Peak memory against length": "^(one pass|estimate) S ",
            "": "kernel|gemm",
        }.items()
    }
    reports = {
        title: msgspec.structs.replace(EMPTY, measured=tuple(lines))
        for title, lines in measured.items()
    }
    accuracy = (Accuracy("a.b", "torch", "cpu", None, 0.0, False),)
    reports["Largest error against its bound"] = msgspec.structs.replace(EMPTY, accuracy=accuracy)
    kills = (Kill("cuda", "m", "killed", ("a.b",)),)
    title = "Which contract kills which mutant of cuda"
    reports[title] = msgspec.structs.replace(EMPTY, mutants=kills)
    for title, report in reports.items():
        assert [each.title for each in pictures.pictures(report)] == [title] * bool(title)


def test_a_throttled_time_is_not_drawn_and_a_warm_one_neither() -> None:
    drawn = drawn_rows("throttled", 1.0)
    assert "triton, cold replay" in drawn
    assert "torch, cold replay" not in drawn
    assert "warm" not in drawn


def test_the_spread_of_a_time_is_drawn() -> None:
    assert drawn_rows("quartile spread %", 60.0) != drawn_rows("quartile spread %", 1.0)


def drawn_rows(quantity: str, value: float) -> str:
    """Time against rows, with another value of torch."""
    measured = tuple(
        msgspec.structs.replace(line, value=value)
        if (line.quantity, line.implementation) == (quantity, "torch")
        else line
        for line in SAMPLES["good"].measured
        if " rows " in line.subject
    )
    (drawn,) = pictures.pictures(msgspec.structs.replace(EMPTY, measured=measured))
    return drawn.svg


def drawn_errors(*accuracy: Accuracy) -> str:
    (drawn,) = pictures.pictures(msgspec.structs.replace(EMPTY, accuracy=accuracy))
    return drawn.svg


def test_base_is_a_mark_of_its_own() -> None:
    errors = [Accuracy("a.b", "torch", "cpu", base, 0.5, False) for base in (None, 0.25)]
    marks = [drawn_errors(each).count("<use") for each in errors]
    assert marks[1] == marks[0] + 1


def test_equal_errors_are_beside_each_other() -> None:
    drawn = drawn_errors(*(Accuracy("a.b", name, "cpu", None, 0.5, False) for name in "abcde"))
    marks = re.findall('<use [^>]*x="([0-9.]+)" y="([0-9.]+)"', drawn)
    assert len(marks) == len(set(marks)) >= 10  # five, and as many of the legend


def test_no_setting_of_matplotlib_changes_a_picture_and_none_is_left_changed() -> None:
    error = Accuracy("a.b", "torch", "cpu", None, 0.5, False)
    before = drawn_errors(error)
    with matplotlib.rc_context({"axes.linewidth": 9, "svg.fonttype": "path"}):
        assert drawn_errors(error) == before
        assert matplotlib.rcParams["svg.fonttype"] == "path"


def test_what_cannot_be_measured_is_not_drawn() -> None:
    for value in (float("nan"), float("inf"), -1.0, 0.0, 1e300, 1e-300):
        report = everywhere("a", value)
        assert all("nan" not in each.svg for each in pictures.pictures(report))


def test_a_picture_is_bounded_and_says_what_it_leaves_out() -> None:
    accuracy = tuple(
        Accuracy(f"c.{n}", f"i{n % 20}", "cpu", 0.1, n / 1000, False) for n in range(5000)
    )
    kills = tuple(
        Kill("cuda", f"m{n}", "killed", tuple(f"c.{m}" for m in range(n))) for n in range(300)
    )
    report = msgspec.structs.replace(EMPTY, accuracy=accuracy, mutants=kills)
    errors, killed = pictures.pictures(report)
    assert len(errors.svg) + len(killed.svg) < 10**6
    assert "4,960 more contracts are not drawn" in errors.caption
    assert "12 more series are not drawn" in errors.caption
    assert "260 more mutants are not drawn" in killed.caption


def test_the_same_report_is_the_same_page_in_another_process() -> None:
    program = (
        "import hashlib; from reports import html; from suites.selftest.reports import samples\n"
        "print(hashlib.sha256(html.render(samples.wrong()).encode()).hexdigest())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "77", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    page = page_of("wrong")
    assert run.stdout.strip() == hashlib.sha256(page.encode()).hexdigest()


# --- what a stranger wrote -----------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_text_of_a_record_stays_text(name: str) -> None:
    page = page_of(name)
    outline = Outline(page)
    assert {tag for tag, _ in outline.elements} <= TAGS
    for tag, attributes in outline.elements:
        assert not [each for each in attributes if each.startswith("on")]
        address = attributes.get("href", attributes.get("src"))
        assert address is None or address == "data:," or (tag, address[:9]) == ("use", "#picture-")
    if HOSTILE[name]:
        harmless = html.render(everywhere("a b"))
        assert _structure(page) == _structure(harmless)


def _structure(page: str) -> list[tuple[str, list[str]]]:
    """All but the pictures, where the width of a label decides how many ticks there are."""
    return [(tag, sorted(of)) for tag, of in Outline(without_pictures(page)).elements]


def test_ids_are_of_one_element_each() -> None:
    ids = [of["id"] for _, of in Outline(page_of("wrong")).elements if "id" in of]
    assert len(ids) == len(set(ids)) > 0


def test_what_does_not_print_is_made_visible() -> None:
    page = page_of("control")
    assert [each for each in page if not each.isprintable() and each != "\n"] == []
    assert r"a\x00b\x1b[31mc\x7f" in page
    assert r"\u202ed\u2066e" in page
    page.encode()


def test_every_label_of_a_picture_is_text_as_it_was_written() -> None:
    drawn = drawn_errors(Accuracy(r"$\frac{1}{$", "_hidden", "$x$ <b>", 1.0, 2.0, True))
    assert r">$\frac{1}{$</text>" in drawn
    assert "_hidden, $x$ &lt;b&gt;</text>" in drawn


@pytest.mark.parametrize("text", ['<"&', "\x00", "\U0001f4a9"])
@pytest.mark.parametrize(("times", "length"), [(300_000, 3), (300, 600)])
def test_a_page_is_at_most_5_mb(text: str, times: int, length: int) -> None:
    page = html.render(everywhere(text * times, length=length))
    assert 10**5 < len(page.encode()) <= 5 * 10**6


def test_a_long_table_says_how_many_lines_are_left() -> None:
    failures = tuple(
        samples.failure("witness.merge.budget", test=f"t.py::t[{n}]") for n in range(700)
    )
    page = html.render(msgspec.structs.replace(EMPTY, conformance=failures))
    assert "and 200 more lines" in page
    assert "and 200 more failures" in page


def test_the_policy_stands_before_all_that_it_is_about() -> None:
    page = page_of("good")
    declared = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    before = page.partition(declared)[0]
    assert len(before) < 200
    assert page.count(declared) == 1
