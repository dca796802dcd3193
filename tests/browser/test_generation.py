"""Generation in the page: streaming, results equal to CPython's, aborting, and turns of a conversation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inpage import AutoModelForCausalLM, pipeline
from tests.browser.conftest import GOLDEN
from tests.browser.pages import Opened, open_page, serve_site
from tests.checkpoints import write_adapter

QWEN = GOLDEN / "decoders" / "qwen2"
CHAT = [{"role": "user", "content": "Hi"}]
ADAPTERS = ("polite", "curt")
IDS = [[5, 6, 7, 8]]


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder = tmp_path_factory.mktemp("site")
    with serve_site(folder, {"golden/qwen2": QWEN}) as url, open_page(browser, url) as opened:
        for seed, name in enumerate(ADAPTERS):
            write_adapter(folder / name, QWEN, "(_proj|lm_head).weight", seed=seed, alpha=32)
        opened.run("globalThis.generate = await inpage.pipeline('text-generation', 'golden/qwen2');")
        yield opened


def test_text_streams_and_is_that_of_cpython(page: Opened) -> None:
    found = page.run("""
        const pieces = [];
        const options = {max_new_tokens: 400, do_sample: false, return_full_text: false};
        const stream = inpage.stream(generate, [{role: "user", content: "Hi"}], options);
        for await (const text of stream) pieces.push(text);
        return {pieces, result: await stream.result};
    """)
    with pipeline("text-generation", str(QWEN)) as pipe:
        expected = pipe(CHAT, max_new_tokens=400, do_sample=False, return_full_text=False)
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


def test_adapters_are_loaded_and_switched(page: Opened, tmp_path: Path) -> None:
    found = page.run(
        """
        const model = await inpage.AutoModelForCausalLM.from_pretrained("golden/qwen2");
        const tokens = async () => (await model.generate(ids, {max_new_tokens: 6, eos_token_id: 419})).tolist()[0];
        const found = {plain: await tokens()};
        const events = [];
        const progress_callback = ({status}) => events.push(status);
        await model.load_adapter(`./${names[0]}/`, names[0], {progress_callback});
        await model.load_adapter(`./${names[1]}/`, {adapter_name: names[1]});
        found.active = await model.active_adapters();
        for (const name of names) {
          await model.set_adapter(name);
          found[name] = await tokens();
        }
        await model.set_adapter(names);
        found.both = await tokens();
        await model.disable_adapters();
        found.disabled = await tokens();
        await model.enable_adapters();
        await model.delete_adapter(names[0]);
        found.last = await tokens();
        found.error = await model.set_adapter(names[0]).catch(({code}) => code);
        const signal = AbortSignal.abort();
        found.aborted = await model.load_adapter(`./${names[0]}/`, {signal}).catch(({code}) => code);
        await model.dispose();
        return {...found, events};
        """,
        names=ADAPTERS,
        ids=IDS,
    )
    with AutoModelForCausalLM.from_pretrained(str(QWEN)) as model:

        def tokens() -> list[int]:
            return model.generate(IDS, max_new_tokens=6, eos_token_id=419).tolist()[0]

        expected: dict[str, Any] = {"plain": tokens(), "disabled": tokens()}
        for seed, name in enumerate(ADAPTERS):
            write_adapter(tmp_path / name, QWEN, "(_proj|lm_head).weight", seed=seed, alpha=32)
            model.load_adapter(str(tmp_path / name), name)
            expected[name] = tokens()
        expected["last"] = expected[ADAPTERS[1]]
        model.set_adapter(list(ADAPTERS))
        expected["both"] = tokens()
    assert {name: found[name] for name in expected} == expected
    assert len({str(found[name]) for name in ("plain", "both", *ADAPTERS)}) == 4
    assert (found["active"], found["error"], found["aborted"]) == ([ADAPTERS[1]], "input", "aborted")
    assert "progress_total" in found["events"]


def test_a_model_generates_by_itself(page: Opened) -> None:
    found = page.run("""
        const model = await inpage.AutoModelForCausalLM.from_pretrained("golden/qwen2");
        const ids = await model.generate([[5, 6, 7]], {max_new_tokens: 4, eos_token_id: 419});
        await model.dispose();
        return ids.dims;
    """)
    assert found == [1, 7]
