"""The page as HTML in a browser: nothing runs, nothing is fetched, and all of it can be read."""

import os
import re
import shutil
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from reports import html
from suites.selftest.reports.hostile import HOSTILE, POLICY, SAMPLES, page_of

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: nothing shows how a page looks")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)


class Visit:
    """A page that was opened, and what it did meanwhile."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", self._say)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def _say(self, message: ConsoleMessage) -> None:
        self.said.append(message.text)

    def open(self, text: str, folder: Path) -> None:
        file = folder / "page.html"
        file.write_text(text, encoding="utf-8")
        self.page.goto(file.as_uri())
        self.asked = [url for url in self.asked if url not in (file.as_uri(), "data:,")]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    yield Visit(page)
    page.close()


def unfold(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")


@pytest.mark.parametrize("policy", [True, False])
def test_nothing_runs_and_nothing_is_fetched(policy: bool, visit: Visit, tmp_path: Path) -> None:
    """Without its policy too: nothing is there that could run."""
    for name in HOSTILE:
        page = page_of(name)
        title = re.search("<title>(.*)</title>", page)
        visit.open(page if policy else page.replace(POLICY, ""), tmp_path)
        unfold(visit.page)
        visit.page.mouse.move(200, 200)
        assert title is not None
        assert visit.page.title() == " ".join(unescape(title[1]).split())
    assert visit.said == []
    assert visit.asked == []


def test_a_mistake_in_escaping_would_run_nothing(visit: Visit, tmp_path: Path) -> None:
    page = html.render(msgspec.structs.replace(SAMPLES["good"], headline="title", next="MARK"))
    mistake = "<script>document.title='ran'</script><img src=https://example.org/x>"
    visit.open(page.replace("MARK", mistake), tmp_path)
    assert visit.page.title() == "title"
    assert len(visit.said) == 2
    assert all("Content Security Policy" in each for each in visit.said)


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", [*SAMPLES, "wide", "other fonts"])
def test_no_page_scrolls_sideways(name: str, width: int, visit: Visit, tmp_path: Path) -> None:
    visit.page.set_viewport_size({"width": width, "height": 740})
    visit.open(page_of(name), tmp_path)
    unfold(visit.page)
    assert visit.page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(("width", "height"), [(360, 740), (1280, 800)])
def test_the_first_screen_has_the_verdict_and_the_first_failure(
    width: int, height: int, visit: Visit, tmp_path: Path
) -> None:
    visit.page.set_viewport_size({"width": width, "height": height})
    visit.open(page_of("wrong"), tmp_path)
    bottoms = [
        visit.page.locator(each).first.evaluate("each => each.getBoundingClientRect().bottom")
        for each in ("h1", ".next", ".failure h3", ".failure pre")
    ]
    assert bottoms == sorted(bottoms)
    assert bottoms[-1] <= height


CONTRAST = """
() => {
  const light = colour => {
    const [r, g, b] = colour.match(/[0-9.]+/g).map(each => each / 255)
      .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const found = {};
  const add = (name, colour, ground) => {
    const both = [light(colour), light(ground)].sort((a, b) => b - a);
    found[name] = Math.min(found[name] ?? 21, both[0] / both[1]);
  };
  const ground = getComputedStyle(document.body).backgroundColor;
  for (const each of document.querySelectorAll('body, .bad, .odd, .good, .quiet, pre')) {
    const style = getComputedStyle(each);
    const own = each.tagName === 'PRE' ? style.backgroundColor : ground;
    add(each.className || each.tagName, style.color, own);
  }
  for (const each of document.querySelectorAll('svg text, svg path, svg use')) {
    const style = getComputedStyle(each);
    if (style.opacity < 1 || style.strokeOpacity < 1) continue;  // lines of a grid
    if (each.tagName === 'text') add(each.tagName, style.fill, ground);
    if (style.stroke !== 'none') add(each.tagName, style.stroke, ground);
  }
  return found;
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_and_all_lines_have_contrast(scheme: str, visit: Visit, tmp_path: Path) -> None:
    visit.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    visit.open(page_of("wrong"), tmp_path)
    found = visit.page.evaluate(CONTRAST)
    assert {"BODY", "bad", "odd", "good", "quiet", "PRE", "text", "path", "use"} <= found.keys()
    assert min(ratio for name, ratio in found.items() if name not in ("path", "use")) >= 4.5
    assert min(found["path"], found["use"]) >= 3
    ground = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_on_paper_nothing_is_folded_or_cut_off(visit: Visit, tmp_path: Path) -> None:
    visit.open(page_of("wrong"), tmp_path)
    cell = visit.page.locator("details table td").first
    assert not cell.is_visible()
    visit.page.emulate_media(media="print")
    assert cell.is_visible()
    assert visit.page.locator("pre").first.evaluate("each => getComputedStyle(each).maxHeight") == (
        "none"
    )
