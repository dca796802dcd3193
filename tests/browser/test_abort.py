"""Aborting the real model, in float32: how soon the page and the worker are free, and that what is kept can be used."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from inpage.generation.session import CHUNK
from tests import models
from tests.browser.pages import Opened, open_page, serve_site

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
# Milliseconds, of the best of several tries, as a loaded machine delays some. The worker ends the piece it is at, which
# takes up to 100 ms in float32 on an idle machine and ten times as long on one that does much else.
REJECTED, FREE = 100, 1000
TRIES = 6

# `aborted(begin, when)` aborts what `begin(signal, report)` calls once `when(event)` holds, and gives the milliseconds
# until the promise is rejected and until the worker answers another request.
TOOLS = """
globalThis.aborted = async (begin, when) => {
  const controller = new AbortController();
  let start;
  const call = begin(controller.signal, (event) => {
    if (start !== undefined || !when(event)) return;
    start = performance.now();
    controller.abort();
  });
  const code = await call.then(() => "finished", (error) => error.code);
  const rejected = performance.now() - start;
  await inpage.create("env.as_dict");
  return {code, rejected, free: performance.now() - start};
};
"""

# Notes of each call how many tokens its prompt has and how many of them are in the cache.
SPY = """
from inpage.pipelines.text_generation import TextGenerationPipeline
read = []
reusable_cache = TextGenerationPipeline._reusable_cache
def spy(self, ids, said):
    cache = reusable_cache(self, ids, said)
    read.append([len(ids), cache.get_seq_length()])
    return cache
TextGenerationPipeline._reusable_cache = spy
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_site(tmp_path_factory.mktemp("site"), {SMOLLM2: models.path(SMOLLM2)}) as url:
        yield url


@pytest.fixture(scope="module")
def page(browser: Any, site: str) -> Iterator[Opened]:
    with open_page(browser, site) as opened:
        opened.run("inpage.env.useBrowserCache = false;" + TOOLS)
        yield opened


def check(tries: list[dict[str, Any]]) -> None:
    assert {each["code"] for each in tries} == {"aborted"}
    assert min(each["rejected"] for each in tries) < REJECTED, tries
    assert min(each["free"] for each in tries) < FREE, tries


def test_loading(page: Opened) -> None:
    check(
        page.run(
            """
            const tries = [];
            for (let i = 1; i <= count; i++) {
              const begin = (signal, progress_callback) =>
                inpage.pipeline("text-generation", name, {dtype: "fp32", signal, progress_callback});
              tries.push(await aborted(begin, ({status, loaded}) => status === "progress_total" && loaded > 1e7 * i));
            }
            return tries;
            """,
            name=SMOLLM2,
            count=TRIES // 2,
        )
    )
    assert page.python("from inpage import executors; sum(e.used_bytes for e in executors._open.values())") == 0
    page.run("globalThis.generate = await inpage.pipeline('text-generation', name, {dtype: 'fp32'});", name=SMOLLM2)


# In what follows `generate` is loaded. Each prompt is new, so that nothing of it is in the cache.


def test_prefill(page: Opened) -> None:
    page.python(SPY)
    found = page.run(
        """
        const options = {max_new_tokens: 3, do_sample: false, return_full_text: false};
        const prompt = (i) => `${i}. ` + "It was a bright cold day in April, and the clocks were striking. ".repeat(20);
        const tries = [];
        for (let i = 0; i < count; i++) {
          let chunks = 0;
          const begin = (signal, progress_callback) =>
            generate(prompt(i), {...options, signal, progress_callback});
          tries.push(await aborted(begin, ({status}) => status === "run" && ++chunks === 2));
        }
        let chunks = 0;
        const progress_callback = ({status, done}) => { if (status === "run" && !done) chunks++; };
        const after = await generate(prompt(count - 1), {...options, progress_callback});
        await generate.clear_cache();
        return {tries, chunks, same: await generate(prompt(count - 1), options), after};
        """,
        count=TRIES,
    )
    check(found["tries"])
    assert found["after"] == found["same"]
    length, kept = page.python("[list(each) for each in read][-2]")
    assert kept % CHUNK == 0, "the chunks before the abort are in the cache"
    assert kept < length // 2
    assert 2 * length // CHUNK < found["chunks"], "the worker looks for messages within a chunk"


def test_making_a_constraint(page: Opened) -> None:
    found = page.run(
        """
        const options = {max_new_tokens: 8, do_sample: false, return_full_text: false};
        const tries = [];
        for (let i = 0; i < count; i++) {
          let events = 0;
          const begin = (signal, progress_callback) =>
            generate("Say something.", {...options, regex: `[^#${i}]*`, signal, progress_callback});
          tries.push(await aborted(begin, ({status}) => status === "run" && events++ === i % 3));
        }
        return {tries, after: await generate("Say something.", {...options, regex: "[a-z]{3,8}"})};
        """,
        count=TRIES,
    )
    check(found["tries"])
    assert re.fullmatch("[a-z]{3,8}", found["after"][0]["generated_text"])


def test_decoding(page: Opened) -> None:
    found = page.run(
        """
        const options = {max_new_tokens: 200, do_sample: false, return_full_text: false, eos_token_id: 0};
        const text = "Once upon a time";
        const tries = [];
        for (let i = 0; i < count; i++) {
          const begin = (signal, progress_callback) => generate(text, {...options, signal, progress_callback});
          tries.push(await aborted(begin, ({status, done}) => status === "run" && done >= 5 + i));
        }
        // The reader leaves the loop, which calls the iterator's return().
        for (let i = 0; i < count; i++) {
          const reading = inpage.stream(generate, text, options);
          for await (const piece of reading) break;
          const start = performance.now();
          const code = await reading.result.catch((error) => error.code);
          const rejected = performance.now() - start;
          await inpage.create("env.as_dict");
          tries.push({code, rejected, free: performance.now() - start});
        }
        const short = {...options, max_new_tokens: 12};
        const after = await generate(text, short);
        await generate.clear_cache();
        return {tries, after, same: await generate(text, short)};
        """,
        count=TRIES,
    )
    check(found["tries"][:TRIES])
    check(found["tries"][TRIES:])
    assert found["after"] == found["same"]
