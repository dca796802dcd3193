"""The chat page as visitors use it, with the real model: answers stream, can be stopped, taken up again and saved."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.browser.conftest import RUNTIME
from tests.browser.test_demo import CONTRAST
from web import demo

LOADING = 120_000  # milliseconds
ANSWERING = 60_000
NEW_TOKENS = 40  # more than those of a short question with its template

# Notes of each call how many tokens of its prompt are not in the cache.
SPY = """
from inpage.pipelines.text_generation import TextGenerationPipeline
read = []
reusable_cache = TextGenerationPipeline._reusable_cache
def spy(self, ids, said):
    cache = reusable_cache(self, ids, said)
    read.append((len(ids), len(ids) - cache.get_seq_length()))
    return cache
TextGenerationPipeline._reusable_cache = spy
"""


# Lets the model end every answer at once.
SILENCE = """
from inpage.generation.configuration import GenerationConfig
complete = GenerationConfig.complete
def silent(self, **options):
    found = complete(self, **options)
    found.sequence_bias = [[[found.eos_tokens[0]], 1e9]]
    return found
GenerationConfig.complete = silent
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("chat") / "site"
    site = demo.build_site(folder, RUNTIME, {demo.CHAT_MODEL: models.path(demo.CHAT_MODEL)})
    with demo.serve(site) as address:
        yield address


def ask(page: Any, question: str) -> None:
    page.fill("#question", question)
    page.press("#question", "Enter")
    page.wait_for_selector("#stop:not([hidden])")


def wait_for_text(page: Any) -> None:
    """Until the answer has begun, or the page says what failed."""
    page.wait_for_function(
        "document.querySelector('#messages li:last-child p')?.textContent || document.querySelector('.failed')",
        timeout=LOADING,
    )
    assert not page.locator(".failed").count(), page.inner_text("#progress-label")


def answer(page: Any) -> str:
    """The last answer, when it is complete."""
    page.wait_for_selector("#send:not([hidden])", timeout=ANSWERING)
    return page.locator("#messages .assistant p").last.inner_text()


def saved(page: Any, button: str) -> str:
    with page.expect_download() as download:
        page.click(button)
    return Path(download.value.path()).read_text()


def test_a_conversation(browser: Any, url: str) -> None:
    context = browser.new_context(viewport=demo.PHONE)
    requested: list[str] = []
    errors: list[Any] = []
    context.on("request", lambda request: requested.append(request.url))
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(error))
    page.goto(url)
    page.get_by_role("link", name="Chat").click()

    # An answer streams, and is stopped by key.
    ask(page, "Count from one to one hundred in words, one number a line.")
    wait_for_text(page)
    begun = page.locator("#messages .assistant p").inner_text()
    page.wait_for_function(
        "begun => document.querySelector('#messages .assistant p').textContent.length > begun.length", arg=begun
    )
    page.press("#question", "Escape")
    stopped = answer(page)
    assert stopped.startswith(begun)
    assert page.inner_text("#messages .assistant small").endswith("stopped")

    # The next question is answered, and so is one that follows from it; it costs its own tokens alone.
    page.click("#clear")
    (worker,) = page.workers
    worker.evaluate(f"pyodide.runPython({json.dumps(SPY)})")
    ask(page, "Why is the sky blue? Answer in one sentence.")
    first = answer(page)
    assert len(first.split()) > 4  # it is drawn, and another in every visit
    used = int(page.get_attribute("#context", "aria-valuenow"))
    spoken = page.locator("#spoken p").all_text_contents()
    assert " ".join(spoken).split() == first.split()  # without the empty lines that some answers have
    ask(page, "Is it so on Mars?")
    wait_for_text(page)
    page.press("#question", "Escape")
    second = answer(page)
    (_, nothing_kept), (whole, new) = json.loads(worker.evaluate("pyodide.runPython('import json; json.dumps(read)')"))
    assert nothing_kept > NEW_TOKENS // 2
    assert new < NEW_TOKENS < whole
    assert int(page.get_attribute("#context", "aria-valuenow")) > max(used, whole)
    assert "tokens/s" in page.inner_text("#speed")

    # What is saved is what was said.
    roles = ["user", "assistant", "user", "assistant"]
    messages = json.loads(saved(page, "#json"))["messages"]
    assert [message["role"] for message in messages] == roles
    assert [message["content"].strip() for message in messages[1::2]] == [first.strip(), second.strip()]
    markdown = saved(page, "#markdown")
    assert all(text in markdown for text in ("Is it so on Mars?", first.strip(), second.strip()))

    assert page.evaluate("document.documentElement.scrollWidth") <= demo.PHONE["width"]
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert page.evaluate(CONTRAST) == []
    assert page.inner_text("#foreign") == "0"
    assert [address for address in requested if not address.startswith((url, "data:", "blob:"))] == []
    assert not errors

    # History is in the page only; the model is in the browser.
    page.reload()
    page.wait_for_function("document.querySelector('#model').textContent === 'Ready'", timeout=LOADING)
    assert "from this browser’s cache" in page.inner_text("#model-note")
    assert page.locator("#messages li").count() == 0
    context.close()


def test_a_full_context(browser: Any, tmp_path: Path) -> None:
    site = demo.build_site(tmp_path / "site", RUNTIME, {demo.CHAT_MODEL: models.path(demo.CHAT_MODEL)})
    config = site / "models" / demo.CHAT_MODEL / "config.json"
    values = json.loads(config.read_text())
    config.unlink()  # a link to the model's own
    config.write_text(json.dumps({**values, "max_position_embeddings": 64}))
    with demo.serve(site) as address:
        page = browser.new_page()
        page.goto(f"{address}chat.html")
        ask(page, "Write a long story about the sea.")
        wait_for_text(page)
        assert answer(page)
        assert page.inner_text("#messages .assistant small").endswith("cut, the context is full")
        assert page.get_attribute("#context", "aria-valuenow") == "64"

        # A question that does not fit is given back, and what was said stays; so is one with nothing for an answer.
        page.fill("#question", "And then?")
        page.press("#question", "Enter")
        page.wait_for_selector(".failed")
        assert page.inner_text("#progress-label").startswith("The context is full.")
        assert page.input_value("#question") == "And then?"
        assert page.locator("#messages li").count() == 2
        page.click("#clear")
        assert page.locator("#messages li").count() == 0
        assert "0 of 64" in page.inner_text("#context-label")
        (worker,) = page.workers
        worker.evaluate(f"pyodide.runPython({json.dumps(SILENCE)})")
        page.fill("#question", "Well?")
        page.press("#question", "Enter")
        page.wait_for_selector(".failed")
        assert page.inner_text("#progress-label").startswith("The model had nothing to say.")
        assert page.input_value("#question") == "Well?"
        page.close()
