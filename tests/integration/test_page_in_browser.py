"""The report page as a browser shows it: nothing is fetched, nothing overflows, everything can be read.

With ``DRAFTGATE_SCREENSHOTS=docs/images`` the pictures of the README are made anew.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.unit.pages import EVIDENCES, FAIL, shown

CHROMIUM = shutil.which("chromium")
OPTIONS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-lcd-text", "--font-render-hinting=none"),  # the same picture on every screen
]
LEAST_CONTRAST = 4.5  # WCAG 2, level AA, ordinary text
WAYS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1100, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1100, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 740}, "color_scheme": "light", "device_scale_factor": 2},
    "phone-dark": {
        "viewport": {"width": 360, "height": 740},
        "color_scheme": "dark",
        "device_scale_factor": 1.5,
    },
    "print": {"viewport": {"width": 720, "height": 1000}, "color_scheme": "dark"},
}
# As wide as a README shows it, so that it takes little room.
PICTURE = {**WAYS["light"], "device_scale_factor": 0.8}
CASES = [(way, name) for way in WAYS for name in ("pass", "fail", "k-15-good")]
CASES += [
    (way, name)
    for way in ("light", "phone-dark")
    for name in ("few", "alone", "unmeasured", "k-1", "k-15", "k-11-after-k-7")
]

# Every text that is drawn, with the contrast to what lies behind it.
CONTRASTS = """() => {
  const numbers = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = ([red, green, blue]) => [red, green, blue].map(part => part / 255)
    .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (colour.length && (colour.length < 4 || colour[3] > 0)) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    const box = element.getBoundingClientRect();
    if (!text || !box.width || element.closest('title, desc, .unseen')) continue;
    const style = getComputedStyle(element);
    const ink = light(numbers(element.closest('svg') ? style.fill : style.color));
    const paper = light(behind(element));
    found.push([text, (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)]);
  }
  return found;
}"""

# What sticks out of the page, and tables that have to be scrolled to be read.
OVERFLOWS = """() => [
  ...[...document.querySelectorAll('body *')].filter(element => !element.closest('.unseen, svg')
    && !element.closest('.scroll table') && element.getBoundingClientRect().right > innerWidth + 0.5),
  ...[...document.querySelectorAll('.scroll')].filter(part => part.scrollWidth > part.clientWidth + 1),
].map(element => `${element.tagName} ${element.className} ${element.textContent.slice(0, 40)}`)"""

BOXES = """selector => [...document.querySelectorAll(selector)].map(element => {
  const box = element.getBoundingClientRect();
  return [box.left, box.top + scrollY, box.right, box.bottom + scrollY];
})"""

Box = tuple[float, float, float, float]


class Seen:
    """A page that is open, and what it asked for and complained about."""

    def __init__(self, context: BrowserContext, path: Path, paper: bool) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        context.on("request", lambda request: self.requests.append(request.url))
        self.page: Page = context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        if paper:
            self.page.emulate_media(media="print")
        self.page.goto(path.as_uri())

    def boxes(self, selector: str) -> list[Box]:
        found: list[Box] = self.page.evaluate(BOXES, selector)
        return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM, "chromium is missing: make test-packages installs it"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield opened
        opened.close()


@pytest.fixture
def context(browser: Browser, request: pytest.FixtureRequest) -> Iterator[BrowserContext]:
    made = browser.new_context(**{**WAYS, "picture": PICTURE}[request.param])
    yield made
    made.close()


@pytest.mark.parametrize(
    ("context", "way", "name"), [(way, way, name) for way, name in CASES], indirect=["context"]
)
def test_it_is_shown_whole_and_readable(context: BrowserContext, way: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.html"
    path.write_text(shown(name), "utf-8")
    seen = Seen(context, path, paper=way == "print")
    assert [url for url in seen.requests if url != path.as_uri() and not url.startswith("data:")] == []
    assert seen.complaints == []
    assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert seen.page.evaluate(OVERFLOWS) == []
    texts = seen.page.evaluate(CONTRASTS)
    assert len(texts) > 30
    assert [(text, round(ratio, 2)) for text, ratio in texts if ratio < LEAST_CONTRAST] == []
    seen.page.screenshot(path=tmp_path / f"{name}-{way}.png", full_page=True)
    if EVIDENCES[name]["acceptance"]:
        check_curve(seen, EVIDENCES[name])


def check_curve(seen: Seen, evidence: dict[str, Any]) -> None:
    """Every bar is inside the picture, one beside the other, each above its own figure."""
    rates = evidence["acceptance"]["per_position"]
    (plot,) = seen.boxes(".plot")
    bars, figures = seen.boxes(".plot .bar"), seen.boxes(".curve tbody tr:first-child td")
    assert plot[2] - plot[0] > 60 and plot[3] - plot[1] > 200
    assert len(bars) == len(rates)
    for number, (left, top, right, bottom) in enumerate(bars):
        assert plot[0] <= left < right <= plot[2] and plot[1] <= top < bottom <= plot[3]
        assert right - left >= 8, "wide enough to be seen"
        assert number == 0 or left > bars[number - 1][2]
        assert (left + right) / 2 == pytest.approx((figures[number][0] + figures[number][2]) / 2, abs=2)
    earlier = (evidence.get("reference") or {}).get("per_position") or []
    assert len(seen.boxes(".plot .diamond")) == len(earlier)
    lines = seen.boxes(".plot .limit")
    assert len(lines) == 2 and all(plot[1] <= line[1] <= plot[3] for line in lines)


def test_it_can_be_printed(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "fail.html"
    path.write_text(shown("fail"), "utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    printed = page.pdf(format="A4", margin={"top": "1.5cm", "bottom": "1.5cm"})
    assert printed.startswith(b"%PDF") and 2 <= printed.count(b"/Type /Page\n") <= 6
    page.close()


@pytest.mark.parametrize("context", ["light"], indirect=True)
def test_the_keyboard_reaches_the_first_suspect(context: BrowserContext, tmp_path: Path) -> None:
    path = tmp_path / "fail.html"
    path.write_text(shown("fail"), "utf-8")
    page = Seen(context, path, paper=False).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == FAIL["suspects"][0]["cause"]
    page.keyboard.press("Enter")
    page.wait_for_url("**#suspects")  # the browser goes there after the key was handled


@pytest.mark.parametrize(
    ("context", "name", "picture", "height"),
    [("picture", "fail", "report-light.png", 1120), ("phone-dark", "pass", "report-phone-dark.png", 1240)],
    indirect=["context"],
)
def test_the_pictures_of_the_readme(
    context: BrowserContext, name: str, picture: str, height: int, tmp_path: Path
) -> None:
    """Small enough for a repository; they replace the committed ones only where that is asked for."""
    path, folder = tmp_path / f"{name}.html", Path(os.environ.get("DRAFTGATE_SCREENSHOTS", tmp_path))
    path.write_text(shown(name), "utf-8")
    page = Seen(context, path, paper=False).page
    width = page.evaluate("innerWidth")
    folder.mkdir(parents=True, exist_ok=True)
    clip: Any = {"x": 0, "y": 0, "width": width, "height": height}
    page.screenshot(path=folder / picture, clip=clip, full_page=True)
    assert 10_000 < (folder / picture).stat().st_size < 150_000
