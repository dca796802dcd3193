"""The demo page as visitors use it: by mouse, by keyboard, a second time, and without leaving the host."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests import models
from tests.browser.conftest import RUNTIME
from web import demo

LOADING = 120_000  # milliseconds
BICYCLE = {
    "Patch kits have got better, but finding the hole is still the hard part.",
    "Pump up the inner tube, hold it under water and watch for bubbles.",
    "Check the rim for a thorn before you put the wheel back on.",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("demo") / "site"
    site = demo.build_site(folder, RUNTIME, {demo.MODEL: models.path(demo.MODEL)})
    with demo.serve(site) as address:
        yield address


@pytest.fixture(scope="module")
def context(browser: Any) -> Iterator[Any]:
    """One visitor, whose cache the tests share."""
    context = browser.new_context(viewport=demo.DESKTOP)
    yield context
    context.close()


@pytest.fixture(scope="module")
def page(context: Any, url: str) -> Iterator[Any]:
    """The page, its sample text indexed; for tests that leave it so."""
    page = context.new_page()
    errors: list[Any] = []
    page.on("pageerror", lambda error: errors.append(error))
    page.goto(url)
    page.click("#index")
    wait_for_index(page)
    yield page
    page.close()
    assert not errors


def wait_for_index(page: Any) -> None:
    page.wait_for_selector("#map:not([hidden])", timeout=LOADING)


def best(page: Any, query: str) -> list[str]:
    """The passages found for a query, best first."""
    before = page.inner_text("#status")
    page.fill("#query", query)
    page.wait_for_function("before => document.querySelector('#status').textContent !== before", arg=before)
    return page.locator("#results .passage").all_inner_texts()


def test_finds_by_meaning_and_says_so(page: Any) -> None:
    assert set(best(page, "how do I fix a puncture?")[:3]) == BICYCLE
    assert best(page, "old ways to navigate")[0] == "The same stars guided sailors home long before there were charts."
    scores = [float(score) for score in page.locator("#results .score").all_inner_texts()]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 8
    assert "results in" in page.inner_text("#status")


def test_a_second_visit_reads_the_cache_and_nothing_leaves_the_host(context: Any, page: Any, url: str) -> None:
    requested: list[str] = []
    context.on("request", lambda request: requested.append(request.url))
    page.reload()
    wait_for_index(page)
    best(page, "what moves the sea")
    assert "from this browser’s cache" in page.inner_text("#model-note")
    assert [address for address in requested if address.endswith(".safetensors")] == []
    assert [address for address in requested if not address.startswith((url, "data:", "blob:"))] == []
    assert page.inner_text("#foreign") == "0"
    assert "in page and worker" in page.inner_text("#foreign-note")


def test_edits_cost_what_they_change(page: Any) -> None:
    assert page.is_disabled("#index")
    page.locator("#text").press("Control+End")
    page.locator("#text").press_sequentially(" Cats purr when they are content.")
    assert page.inner_text("#index") == "Update index"
    assert page.inner_text("#count") == "20 sentences"
    page.click("#index")
    page.wait_for_function("document.querySelector('#index').textContent === 'Indexed'")
    assert best(page, "a happy pet")[0].startswith("Cats purr")
    page.get_by_text("Paragraphs").click()
    assert page.inner_text("#count") == "6 paragraphs"
    page.reload()
    wait_for_index(page)


def test_a_result_shows_its_place_in_the_text(page: Any) -> None:
    found = best(page, "why can’t I fall asleep?")
    page.locator("#results button").first.click()
    selected = page.locator("#text").evaluate("text => text.value.slice(text.selectionStart, text.selectionEnd)")
    assert selected == found[0]


def test_the_heat_map_is_read_by_keys_and_as_a_table(page: Any) -> None:
    heat_map = page.locator("#heatmap")
    heat_map.focus()
    first = page.inner_text("#pair")
    heat_map.press("ArrowRight")
    assert page.inner_text("#pair") != first
    page.locator("#matrix summary").press("Enter")
    page.wait_for_selector("#matrix td")
    cells = page.locator("#matrix tbody tr").first.locator("td").all_inner_texts()
    assert len(cells) == 19
    assert cells[0] == "1.00"
    drawn = heat_map.evaluate(
        """canvas => { const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size }"""
    )
    assert drawn > 50, "cells have colours of their own"


def test_stop_ends_indexing_and_it_can_be_taken_up_again(browser: Any, url: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(url)
    page.click("#index")
    page.click("#stop")
    page.wait_for_function("document.querySelector('#progress-label').textContent === 'Stopped.'")
    assert page.is_hidden("#map")
    assert page.inner_text("#model") == "Not loaded"
    page.click("#index")
    wait_for_index(page)
    context.close()


def test_all_can_be_reached_by_keyboard_and_has_a_name(page: Any) -> None:
    page.evaluate("document.activeElement.blur()")
    seen = []
    for _ in range(30):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"theme", "text", "query", "heatmap", "SUMMARY"} <= set(seen)
    nameless = page.locator("button, input, textarea, progress, canvas[tabindex]").evaluate_all(
        """elements => elements.filter((e) => !e.hidden && !e.ariaLabel && !e.labels?.length && !e.textContent.trim()
        && !e.getAttribute("aria-labelledby")).map((e) => e.outerHTML)"""
    )
    assert nameless == []


def test_no_width_scrolls_sideways(page: Any) -> None:
    best(page, "bread")
    for width in (320, 390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size(demo.DESKTOP)


def test_text_has_contrast_in_both_schemes(page: Any) -> None:
    """WCAG AA: 4.5 for text, against the nearest background there is."""
    best(page, "bread and butter")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert page.evaluate(CONTRAST) == []


def test_the_theme_can_be_switched_and_stays(page: Any) -> None:
    page.emulate_media(color_scheme="light")
    before = page.evaluate("getComputedStyle(document.body).color")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).color") != before
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.evaluate("localStorage.removeItem('inpage-demo-theme')")
    page.reload()
    wait_for_index(page)


def test_a_foreign_request_is_counted(page: Any) -> None:
    page.evaluate("fetch('http://localhost:9/x').catch(() => {})")
    best(page, "the night sky")
    page.wait_for_function("document.querySelector('#foreign').textContent === '1'")
    assert page.inner_text("#foreign-note") == "localhost:9"


CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
  };
  const own = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  return [...document.body.querySelectorAll("*")].filter((element) => own(element) && element.checkVisibility())
    .map((element) => {
      const [a, b] = [rgba(getComputedStyle(element).color), behind(element)].map(luminance).sort((x, y) => y - x);
      return [element.textContent.trim().slice(0, 40), (a + 0.05) / (b + 0.05)];
    }).filter(([, ratio]) => ratio < 4.5);
}"""
