"""Generation in the page: streaming, results equal to CPython's, aborting, and turns of a conversation."""

from collections.abc import Iterator
from typing import Any

import pytest

from inpage import pipeline
from tests.browser.conftest import GOLDEN
from tests.browser.pages import Opened, open_page, serve_site

QWEN = GOLDEN / "decoders" / "qwen2"
CHAT = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with (
        serve_site(tmp_path_factory.mktemp("site"), {"golden/qwen2": QWEN}) as url,
        open_page(browser, url) as opened,
    ):
        opened.run("globalThis.generate = await inpage.pipeline('text-generation', 'golden/qwen2');")
        yield opened


def test_text_streams_and_is_that_of_cpython(page: Opened) -> None:
    found = page.run("""
        const pieces = [];
        const options = {max_new_tokens: 12, do_sample: false, return_full_text: false};
        const stream = inpage.stream(generate, [{role: "user", content: "Hi"}], options);
        for await (const text of stream) pieces.push(text);
        return {pieces, result: await stream.result};
    """)
    with pipeline("text-generation", str(QWEN)) as pipe:
        expected = pipe(CHAT, max_new_tokens=12, do_sample=False, return_full_text=False)
    assert found["result"] == expected
    assert "".join(found["pieces"]) == expected[0]["generated_text"]
    assert len(found["pieces"]) > 1


def test_leaving_the_loop_aborts_and_the_pipeline_stays_usable(page: Opened) -> None:
    found = page.run("""
        const options = {max_new_tokens: 400, do_sample: false, eos_token_id: 419};
        const stream = inpage.stream(generate, "Once upon", options);
        let first;
        for await (const text of stream) { first = text; break; }
        const start = performance.now();
        const error = await stream.result.catch((error) => error.code);
        const after = await generate("Once", {max_new_tokens: 3, do_sample: false});
        return {first, error, after, waited: performance.now() - start};
    """)
    assert found["first"]
    assert found["error"] == "aborted"
    assert found["after"][0]["generated_text"].startswith("Once")
    assert found["waited"] < 5000


def test_errors_reach_the_loop(page: Opened) -> None:
    code = page.run("""
        try { for await (const _ of inpage.stream(generate, "x", {max_new_token: 3})) {} }
        catch (error) { return error.code; }
    """)
    assert code == "input"


def test_samples_keep_to_a_schema(page: Opened) -> None:
    texts = page.run("""
        const properties = {a: {type: "integer"}, b: {enum: ["x", "y"]}};
        const json_schema = {type: "object", properties, required: ["a", "b"]};
        const options = {json_schema, do_sample: true, top_k: 0, max_new_tokens: 40, return_full_text: false};
        const texts = [];
        for (let seed = 0; seed < 5; seed++) texts.push((await generate("x", {...options, seed}))[0].generated_text);
        return texts.map((text) => JSON.parse(text));
    """)
    assert all(isinstance(value["a"], int) and value["b"] in ("x", "y") for value in texts)


def test_a_model_generates_by_itself(page: Opened) -> None:
    found = page.run("""
        const model = await inpage.AutoModelForCausalLM.from_pretrained("golden/qwen2");
        const ids = await model.generate([[5, 6, 7]], {max_new_tokens: 4, eos_token_id: 419});
        await model.dispose();
        return ids.dims;
    """)
    assert found == [1, 7]
