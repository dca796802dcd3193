"""The page's client and the worker together, in a real browser: values, errors, order, aborting, and ends."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urljoin

import numpy as np
import pytest

from inpage import AutoModel, AutoTokenizer, pipeline
from inpage.env import env
from inpage.serve import Handler
from tests import models
from tests.browser.conftest import GOLDEN
from tests.browser.pages import Opened, open_page, serve_site

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
BERT = "golden/bert-base"
ENCODERS = GOLDEN / "encoders"
TEXTS = ["A cat sat on the mat.", "It was raining.", "Ünïcode, 你好"]


class SlowHandler(Handler):
    """Hands out large files in small, slow pieces when the revision is "slow"."""

    def send_body(self, file: BinaryIO, nbytes: int) -> None:
        if "/resolve/slow/" not in self.path or nbytes < 1 << 20:
            super().send_body(file, nbytes)
            return
        while nbytes > 0 and not self.wfile.closed:
            super().send_body(file, min(nbytes, 1 << 18))
            nbytes -= 1 << 18
            time.sleep(0.05)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folders = {MINILM: models.path(MINILM), **{f"golden/{f.name}": f for f in ENCODERS.iterdir() if f.is_dir()}}
    with serve_site(tmp_path_factory.mktemp("site"), folders, handler=SlowHandler) as url:
        yield url


@pytest.fixture(scope="module")
def page(browser: Any, site: str) -> Iterator[Opened]:
    """A page with one worker for all tests that leave it usable."""
    with open_page(browser, site) as opened:
        yield opened


def test_the_worker_reports_how_it_starts_and_what_it_is(browser: Any, site: str) -> None:
    with open_page(browser, site) as page:
        events = page.run("""
            const events = [];
            await inpage.create("env.as_dict", {progress_callback: (event) => events.push(event)}).catch(() => {});
            return events;
        """)
        assert [event["name"] for event in events] == ["pyodide", "inpage", "ready"]
        percent = [event["progress"] for event in events]
        assert percent == sorted(percent)
        assert percent[-1] == 100
        assert all(event["status"] == "boot" for event in events)
        fetched = page.run("return await inpage.requests()")
        assert {url.rsplit("/", 1)[1] for url in fetched} >= {"pyodide.asm.wasm", "pyodide-lock.json"}
        assert all(url.startswith(site) for url in fetched)


def test_pipeline_gives_what_python_gives(page: Opened) -> None:
    got = page.run(
        """
        const extract = await inpage.pipeline("feature-extraction", model);
        const out = await extract(texts, {pooling: "mean", normalize: true});
        const rows = await extract(texts);
        const shapes = rows.map(({dims}) => dims);
        const task = await extract.task;
        await extract.dispose();
        return {list: out.tolist(), dims: out.dims, type: out.type, kind: out.data.constructor.name, shapes, task};
        """,
        model=MINILM,
        texts=TEXTS,
    )
    extract = pipeline("feature-extraction", str(models.path(MINILM)))
    expected = extract(TEXTS, pooling="mean", normalize=True)
    assert got["dims"] == [3, 384]
    assert (got["type"], got["kind"], got["task"]) == ("float32", "Float32Array", "feature-extraction")
    np.testing.assert_allclose(got["list"], expected.tolist(), atol=1e-6)
    assert got["shapes"] == [list(row.dims) for row in extract(TEXTS)]
    extract.dispose()


def test_model_and_tokenizer_work_apart(page: Opened) -> None:
    got = page.run(
        """
        const model = await inpage.AutoModel.from_pretrained(name);
        const tokenizer = await inpage.AutoTokenizer.from_pretrained(name);
        const inputs = await tokenizer(texts, {padding: true});
        const out = await model(inputs);
        const first = BigInt64Array.from(inputs.input_ids[0], BigInt);
        const ids = new inpage.Tensor("int64", first, [1, first.length]);
        const one = await model({input_ids: ids, attention_mask: [inputs.attention_mask[0]]});
        const offsets = await tokenizer(texts[0], {return_offsets_mapping: true});
        const decoded = await tokenizer.batch_decode(inputs.input_ids, {skip_special_tokens: true});
        const pair = await tokenizer(texts[0], texts[1]);
        const config = await model.config;
        const hidden = await config.hidden_size;
        await model.dispose();
        return {inputs, hidden, decoded, offsets: offsets.offset_mapping, types: pair.token_type_ids,
                state: out.last_hidden_state.tolist(), first: one.last_hidden_state.tolist()};
        """,
        name=BERT,
        texts=TEXTS,
    )
    folder = str(ENCODERS / "bert-base")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    inputs = tokenizer(TEXTS, padding=True)
    assert got["inputs"] == {name: inputs[name] for name in inputs}
    assert got["offsets"] == [list(span) for span in tokenizer(TEXTS[0], return_offsets_mapping=True)["offset_mapping"]]
    assert got["decoded"] == tokenizer.batch_decode(inputs["input_ids"], skip_special_tokens=True)
    assert got["types"] == tokenizer(TEXTS[0], TEXTS[1])["token_type_ids"]
    assert got["hidden"] == model.config.hidden_size
    np.testing.assert_allclose(got["state"], model(**inputs).last_hidden_state.tolist(), atol=1e-5)
    np.testing.assert_allclose(got["first"][0], got["state"][0], atol=1e-5)
    model.dispose()


def test_objects_are_arguments_and_results_can_be_nested(page: Opened) -> None:
    got = page.run(
        """
        const [model, info] = await inpage.create("AutoModel.from_pretrained", name, {output_loading_info: true});
        const tokenizer = await inpage.AutoTokenizer.from_pretrained(name);
        const extract = await inpage.pipeline("feature-extraction", model, {tokenizer});
        const out = await extract("a", {pooling: "cls"});
        await extract.dispose();
        const still = await model({input_ids: [[1, 2]]});
        await model.dispose();
        return [Object.keys(info).sort(), out.dims, still.last_hidden_state.dims];
        """,
        name=BERT,
    )
    assert got[0] == ["error_msgs", "mismatched_keys", "missing_keys", "unexpected_keys"]
    assert got[1:] == [[1, 32], [1, 2, 32]]


def test_a_page_gives_dtypes_by_names_of_modules(page: Opened) -> None:
    sizes = page.run("""
        const sizes = [];
        for (const dtype of ["q8", { "encoder.layer.0": "fp32", "*": "q8" }, { "*": "q8", "pooler": "fp32" }]) {
            const load = inpage.AutoModel.from_pretrained("golden/bert-base", { dtype });
            const model = await load.catch((error) => sizes.push(error.code) && undefined);
            if (model) sizes.push(await model.get_memory_footprint());
            await model?.dispose();
        }
        return sizes;
    """)
    assert sizes[0] < sizes[1]
    assert sizes[2] == "unsupported"


def test_tasks_give_plain_values(page: Opened) -> None:
    got = page.run("""
        const classify = await inpage.pipeline("text-classification", "golden/bert-cls");
        const all = await classify(["a b", "c"], {top_k: null});
        const fill = await inpage.pipeline("fill-mask", "golden/bert-mlm");
        const filled = await fill("a [MASK] b", {top_k: 2});
        const answerer = await inpage.pipeline("question-answering", "golden/bert-qa");
        const answers = [await answerer("a?", "b c d"), await answerer({question: "a?", context: "b c d"})];
        for (const pipe of [classify, fill, answerer]) await pipe.dispose();
        return {all, filled, answers};
    """)
    for name, task, call, key in (
        ("bert-cls", "text-classification", lambda pipe: pipe(["a b", "c"], top_k=None), "all"),
        ("bert-mlm", "fill-mask", lambda pipe: pipe("a [MASK] b", top_k=2), "filled"),
        ("bert-qa", "question-answering", lambda pipe: [pipe("a?", "b c d")] * 2, "answers"),
    ):
        with pipeline(task, str(ENCODERS / name)) as pipe:
            assert_alike(got[key], call(pipe))


def assert_alike(got: Any, expected: Any) -> None:
    """Equal, but for rounding of scores."""
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        for key, value in expected.items():
            assert_alike(got[key], value)
    elif isinstance(expected, list):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_alike(one, other)
    else:
        assert got == (pytest.approx(expected, abs=1e-6) if isinstance(expected, float) else expected)


@pytest.mark.parametrize(
    ("call", "code", "part"),
    [
        ('inpage.pipeline("feature-extraction", "golden/none")', "not_found", "golden/none"),
        ('inpage.pipeline("no-such-task", "golden/bert-base")', "unsupported", "no-such-task"),
        ('inpage.pipeline("feature-extraction", "golden/bert-base", {dtype: "fp3"})', None, "fp3"),
        ('inpage.pipeline("feature-extraction", "golden/bert-base", {revison: "main"})', "input", "revison"),
        ('inpage.create("os.system", "true")', "input", "os"),
        ('inpage.create("AutoModel.__init__")', "input", "__init__"),
        ('inpage.create("Tensor.from_values", () => 1)', "input", "Function"),
        ('inpage.create("Tensor.from_values", [[1], [2, 3]])', "input", "length"),
    ],
)
def test_errors_cross_with_their_code(page: Opened, call: str, code: str | None, part: str) -> None:
    error = page.run(f"""
        const error = await {call}.catch((error) => error);
        return {{...error, message: error.message, ok: error instanceof inpage.InpageError}};
    """)
    assert error["ok"]
    assert error["code"] == code if code else error["code"] in ("input", "unsupported")
    assert part in error["message"]
    assert error["hint"]


def test_an_option_that_is_undefined_is_not_given(page: Opened) -> None:
    got = page.run("""
        const left = {dtype: undefined, revision: undefined, subfolder: undefined, token: undefined};
        const extract = await inpage.pipeline("feature-extraction", "golden/bert-base", left);
        const {dims} = await extract("a", {pooling: undefined, normalize: undefined, signal: undefined});
        const code = await extract("a", {pooling: null}).catch((error) => error.code);
        await extract.dispose();
        return {dims, code};
    """)
    assert got == {"dims": [1, 3, 32], "code": "input"}


@pytest.mark.parametrize("option", ["signal", "progress_callback"])
def test_options_of_the_page_are_checked(page: Opened, option: str) -> None:
    errors = page.run(
        """
        const calls = [3, {}, "x"].map((value) => inpage.create("env.as_dict", {[option]: value}));
        return (await Promise.allSettled(calls)).map(({reason}) => [reason?.code, reason?.message]);
        """,
        option=option,
    )
    assert all(code == "input" and option in message for code, message in errors)


def test_what_needs_numpy_says_so(page: Opened) -> None:
    codes = page.run("""
        const tokenizer = await inpage.AutoTokenizer.from_pretrained("golden/bert-base");
        const calls = [tokenizer("a", {return_tensors: "np"}),
                       inpage.AutoModel.from_pretrained("golden/bert-base", {device: "reference"})];
        const errors = (await Promise.allSettled(calls)).map(({reason}) => [reason?.code, reason?.message]);
        await tokenizer.dispose();
        return errors;
    """)
    assert all(code == "unsupported" and "NumPy" in message for code, message in codes)


def test_tensors_are_checked_in_the_page(page: Opened) -> None:
    errors = page.run("""
        const codes = [];
        for (const args of [["float32", [1, 2], [3]], ["complex64", [1], [1]]]) {
            try { new inpage.Tensor(...args); } catch (error) { codes.push(error.code); }
        }
        const tensor = new inpage.Tensor("int32", [1, 2, 3, 4, 5, 6], [1, 2, 3]);
        const own = Float32Array.of(1, 2);
        const back = await inpage.create("Tensor.from_values", new inpage.Tensor("float32", own.subarray(1), [1]));
        return {codes, list: tensor.tolist(), scalar: new inpage.Tensor("float32", [2], []).tolist(),
                whole: own.length, back: back.tolist()};
    """)
    assert errors == {
        "codes": ["input", "input"],
        "list": [[[1, 2, 3], [4, 5, 6]]],
        "scalar": 2,
        "whole": 2,
        "back": [2],
    }


def test_settings_are_pythons(page: Opened) -> None:
    shown = page.run("""
        let refused;
        try { inpage.env.remotHost = "x"; } catch (error) { refused = [error.code, error.message]; }
        const wrong = [];
        for (const set of [
            () => { inpage.env.cacheName = 3; }, () => { inpage.env.remoteHost = null; },
            () => { inpage.env.wasm = 3; },
            () => { inpage.env.wasm.numThreads = "2"; }, () => { inpage.env.wasm = {threads: 2}; },
        ]) try { set(); wrong.push("taken"); } catch (error) { wrong.push(error.code); }
        inpage.env.wasm.numThreads = 0;
        wrong.push(await inpage.create("env.as_dict").then(() => "taken", (error) => error.code));
        inpage.env.cacheName = "other";
        inpage.env.wasm = {numThreads: 2};
        const set = await inpage.create("env.as_dict");
        inpage.env.cacheName = "inpage";
        inpage.env.wasm.numThreads = null;
        return {refused, wrong, set, reset: await inpage.create("env.as_dict")};
    """)
    assert [shown["refused"][0], *shown["wrong"]] == ["config"] * 7
    assert "remoteHost" in shown["refused"][1]
    assert (shown["set"]["cache_name"], shown["set"]["wasm"]["num_threads"]) == ("other", 2)
    known = env.as_dict()
    assert set(shown["reset"]) == set(known)
    assert shown["reset"]["cache_name"] == known["cache_name"]


def test_the_clients_defaults_are_pythons(browser: Any, site: str) -> None:
    """A page that sets nothing runs with Python's own defaults; paths are relative to the page."""
    with open_page(browser, site, remote_host=False) as page:
        sent = page.run("return await inpage.create('env.as_dict')")
        defaults = json.loads(page.python("import json, inpage; json.dumps(type(inpage.env)().as_dict())"))
    assert sent == {**defaults, "local_model_path": urljoin(site, defaults["local_model_path"])}
    assert sent["allow_local_models"] is False


def test_calls_queue_in_order(page: Opened) -> None:
    order = page.run(
        """
        const extract = await inpage.pipeline("feature-extraction", name);
        const order = [];
        await Promise.all([40, 3, 2, 1].map(async (count, at) => {
            const {dims} = await extract(Array(count).fill("word ".repeat(count)), {pooling: "mean"});
            order.push([at, dims[0]]);
        }));
        await extract.dispose();
        return order;
        """,
        name=BERT,
    )
    assert order == [[0, 40], [1, 3], [2, 2], [3, 1]]


def test_progress_and_abort_of_a_running_call(page: Opened) -> None:
    shown = page.run(
        """
        const extract = await inpage.pipeline("feature-extraction", name);
        const texts = Array.from({length: 64}, (_, at) => `text number ${at}`);
        const events = [];
        await extract(texts, {pooling: "mean", batch_size: 4, progress_callback: (event) => events.push(event)});

        const controller = new AbortController();
        const seen = [];
        const outcome = await extract(texts, {pooling: "mean", batch_size: 1, signal: controller.signal,
            progress_callback: (event) => { seen.push(event.done); if (event.done >= 3) controller.abort("enough"); }})
            .then(() => "finished", ({name, code, details}) => [name, code, details.reason]);
        const waiting = new AbortController();
        const first = extract(texts, {pooling: "mean"});
        const second = extract(texts, {pooling: "mean", signal: waiting.signal}).catch(({code}) => code);
        waiting.abort();
        const after = [await second, (await first).dims];
        const early = await extract("a", {signal: AbortSignal.abort()}).catch(({code}) => code);
        await extract.dispose();
        return {events, outcome, seen, after, early};
        """,
        name=MINILM,
    )
    done = [event["done"] for event in shown["events"]]
    assert done == sorted(set(done)) and set(done) <= set(range(4, 65, 4))
    assert done[0] == 4
    assert shown["events"][-1] == {"status": "run", "done": 64, "total": 64, "progress": 100}
    assert shown["outcome"] == ["AbortError", "aborted", "enough"]
    assert shown["seen"][-2] < 3 <= shown["seen"][-1] < 64
    assert shown["after"] == ["aborted", [64, 384]]
    assert shown["early"] == "aborted"


def test_abort_of_a_running_call_stops_the_worker_early(page: Opened) -> None:
    """An aborted call leaves the queue within a few batches, not after all of them."""
    times = page.run(
        """
        const extract = await inpage.pipeline("feature-extraction", name);
        const texts = Array.from({length: 200}, (_, at) => `a text with the number ${at} in it`);
        const run = async (signal) => {
            const start = performance.now();
            await extract(texts, {pooling: "mean", batch_size: 1, signal}).catch(() => {});
            await extract("next", {pooling: "mean"});
            return performance.now() - start;
        };
        await run();
        const whole = await run();
        const aborted = await run(AbortSignal.timeout(whole / 10));
        await extract.dispose();
        return {whole, aborted};
        """,
        name=MINILM,
    )
    assert times["aborted"] < times["whole"] / 2


def test_abort_while_loading_ends_the_download(page: Opened) -> None:
    shown = page.run(
        """
        const controller = new AbortController();
        const events = [];
        const start = performance.now();
        const outcome = await inpage.pipeline("feature-extraction", name, {revision: "slow", signal: controller.signal,
            progress_callback: (event) => {
                events.push(event);
                if (event.status === "progress" && event.total > 1e6 && event.loaded) controller.abort();
            }}).then(() => "loaded", ({code}) => code);
        const next = await inpage.create("env.as_dict");
        const last = events.filter(({status}) => status === "progress").at(-1);
        return {outcome, last, took: performance.now() - start, next: next.cache_name};
        """,
        name=MINILM,
    )
    assert shown["outcome"] == "aborted"
    assert shown["next"] == "inpage"
    assert 0 < shown["last"]["loaded"] < shown["last"]["total"] / 2
    assert shown["took"] < 10_000, "the whole file takes 17 s"


def test_loading_events_never_fall_and_tell_the_cache(browser: Any, site: str) -> None:
    with open_page(browser, site) as page:
        script = """
            const events = [];
            const progress_callback = (event) => events.push(event);
            const extract = await inpage.pipeline("feature-extraction", name, {progress_callback});
            await extract.dispose();
            return events;
        """
        first, second = (page.run(script, name=MINILM) for _ in range(2))
    for events, cached in ((first, False), (second, True)):
        loading = [event for event in events if event["status"] != "boot"]
        totals = [event for event in loading if event["status"] == "progress_total"]
        percent = [event["progress"] for event in totals]
        assert percent == sorted(percent)
        assert percent[-1] == 100
        assert totals[0]["total"] == pytest.approx(totals[-1]["total"], rel=1e-4), "known from the first event on"
        assert [event["cached"] for event in totals] == [cached] * len(totals)
        assert loading[-1]["status"] == "ready"


def test_dispose_frees_and_later_calls_say_so(page: Opened) -> None:
    shown = page.run(
        """
        const extract = await inpage.pipeline("feature-extraction", name);
        await extract.dispose();
        await extract.dispose();
        return await extract("a").catch(({code}) => code);
        """,
        name=BERT,
    )
    assert shown == "disposed"


def test_memory_is_flat_over_loads_and_calls(page: Opened) -> None:
    """Python objects, and the worker's table, after 5 loads with 10 calls each are as many as after 2."""
    script = """
        for (let load = 0; load < loads; load++) {
            const extract = await inpage.pipeline("feature-extraction", name);
            for (let call = 0; call < 10; call++) await extract(texts, {pooling: "mean"});
            await extract(texts, {polling: "mean"}).catch(() => {});
            await extract.dispose();
        }
    """
    counts = []
    for loads in (2, 5, 5):
        page.run(script, name=BERT, texts=TEXTS, loads=loads)
        counts.append(page.python("import gc; gc.collect(); len(gc.get_objects())"))
    assert counts[2] - counts[1] < 50, counts


def test_the_text_path_imports_no_numpy(page: Opened) -> None:
    page.run('const p = await inpage.pipeline("feature-extraction", name); await p("a"); await p.dispose();', name=BERT)
    assert page.python("import sys; 'numpy' in sys.modules or 'PIL' in sys.modules") is False


def test_terminate_ends_all_and_the_next_call_starts_anew(browser: Any, site: str) -> None:
    with open_page(browser, site) as page:
        shown = page.run(
            """
            const extract = await inpage.pipeline("feature-extraction", name);
            const pending = extract("a").catch(({code}) => code);
            inpage.terminate();
            const later = await extract("b").catch(({code}) => code);
            await extract.dispose();
            const again = await inpage.pipeline("feature-extraction", name);
            return [await pending, later, (await again("c")).dims.length];
            """,
            name=BERT,
        )
        assert shown == ["disposed", "disposed", 3]
        assert len(page.page.workers) == 1


def test_without_isolation_headers(browser: Any, tmp_path: Path) -> None:
    with (
        serve_site(tmp_path / "site", {BERT: ENCODERS / "bert-base"}, isolation=False) as url,
        open_page(browser, url) as page,
    ):
        shown = page.run(
            """
            const extract = await inpage.pipeline("feature-extraction", name);
            return [crossOriginIsolated, (await extract("a")).dims];
            """,
            name=BERT,
        )
        assert shown[0] is False
        assert shown[1][2] == 32


@pytest.mark.parametrize(("setting", "hint"), [("runtimeURL", "env.runtimeURL"), ("workerURL", "env.workerURL")])
def test_a_worker_that_cannot_start_says_why(browser: Any, site: str, setting: str, hint: str) -> None:
    with open_page(browser, site) as page:
        error = page.run(
            """
            inpage.env[setting] = "nowhere/";
            const calls = [1, 2].map(() => inpage.create("env.as_dict").catch(({code, hint}) => [code, hint]));
            return await Promise.all(calls);
            """,
            setting=setting,
        )
        assert [code for code, _ in error] == ["worker", "worker"]
        assert hint in error[0][1]


def test_the_client_of_another_origin_works(browser: Any, site: str, tmp_path: Path) -> None:
    """A page that takes inpage.js from another host, as from a CDN."""
    with serve_site(tmp_path, {}, files=False) as url, open_page(browser, url, client=f"{site}inpage.js") as page:
        page.run(f'inpage.env.remoteHost = "{site}";')
        shown = page.run(
            'const p = await inpage.pipeline("feature-extraction", name); return (await p("a")).dims[2];', name=BERT
        )
        assert shown == 32
