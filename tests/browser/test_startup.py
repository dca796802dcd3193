"""Starting from a memory snapshot, and without one that fits."""

import gzip
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from build_wheels import SNAPSHOT, VARIANTS, Snapshot, list_snapshot, pack_snapshot, unpack_snapshot
from inpage import serve
from inpage.serve import Handler
from tests.browser.pages import BLANK, open_page, serve_site

MODEL = {"golden/bert-base": Path(__file__).parent.parent / "golden" / "encoders" / "bert-base"}
LOAD = """async () => {
    window.inpage = await import("./inpage.js");
    inpage.env.remoteHost = "./";
    const extract = await inpage.pipeline("feature-extraction", "golden/bert-base");
    return (await extract("a b c")).dims;
}"""
RUN = """
    const extract = await inpage.pipeline("feature-extraction", "golden/bert-base");
    return (await extract("a b c")).dims;
"""


def start(browser: Any, url: str) -> tuple[str, list[float], list[str]]:
    """Of a page whose model works: the wheels that its snapshot is of, a random number of every generator that there
    is, and what the console says.
    """
    with open_page(browser, url) as page:
        said: list[str] = []
        page.page.on("console", lambda message: said.append(message.text))
        assert page.run(RUN) == [1, 5, 32]
        wheels = page.python("import inpage.snapshot, inpage.generation.generate; inpage.snapshot.wheels")
        numbers = page.python(
            "import gc, random; [each.random() for each in gc.get_objects() if isinstance(each, random.Random)]"
        )
        return wheels, numbers, said


def wheels_of(site: Path) -> str:
    packages = json.loads((site / "runtime" / "pyodide-lock.json").read_text())["packages"]
    return " ".join(packages[name]["sha256"] for name in ("inpage", *packages["inpage"]["depends"]))


def replace(path: Path, data: bytes) -> None:
    """New contents for a file that may be a second name of the built one."""
    path.unlink()
    path.write_bytes(data)


def replace_snapshot(site: Path, other: Snapshot) -> None:
    """Put another snapshot into the site, and into its lock file."""
    runtime = site / "runtime"
    snapshot = gzip.compress(pack_snapshot(other), 1)
    replace(runtime / SNAPSHOT, snapshot)
    replace(runtime / "pyodide-lock.json", list_snapshot((runtime / "pyodide-lock.json").read_bytes(), snapshot))


def test_starts_from_the_snapshot_and_with_other_random_numbers(browser: Any, tmp_path: Path) -> None:
    with serve_site(tmp_path / "site", MODEL) as url:
        wheels, numbers, said = start(browser, url)
        assert wheels == wheels_of(tmp_path / "site")
        assert not [text for text in said if "snapshot" in text]
        assert len(numbers) >= 2
        assert not {*numbers}.intersection(start(browser, url)[1])


def unpacked(site: Path) -> Snapshot:
    return unpack_snapshot(gzip.decompress((site / "runtime" / SNAPSHOT).read_bytes()))


def of_other_wheels(site: Path) -> None:
    built, wheels = unpacked(site), wheels_of(site).encode()
    assert wheels in built.data
    replace_snapshot(site, built._replace(data=built.data.replace(wheels, b"0" * len(wheels))))


def of_another_pyodide(site: Path) -> None:
    built = unpacked(site)
    # Bytes 16 to 48 are the hash of its build.
    replace_snapshot(site, built._replace(data=built.data[:16] + bytes(32) + built.data[48:]))


def cut_off(site: Path) -> None:
    path = site / "runtime" / SNAPSHOT
    data = path.read_bytes()
    replace(path, data[: len(data) // 2])


def not_there(site: Path) -> None:
    (site / "runtime" / SNAPSHOT).unlink()


def without_side_module(site: Path) -> None:
    (site / "runtime" / "tokenizers.wasm").unlink()


def not_listed(site: Path) -> None:
    path = site / "runtime" / "pyodide-lock.json"
    lock = json.loads(path.read_text())
    del lock["snapshot"]
    replace(path, json.dumps(lock).encode())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (of_other_wheels, "other wheels"),
        (of_another_pyodide, "build id mismatch"),
        (cut_off, "without its snapshot"),
        (not_there, "answers 404"),
        (without_side_module, "answers 404"),
        (not_listed, ""),
    ],
)
def test_starts_the_plain_way_without_a_snapshot_that_fits(
    browser: Any, tmp_path: Path, change: Callable[[Path], None], complaint: str
) -> None:
    with serve_site(tmp_path / "site", MODEL) as url:
        change(tmp_path / "site")
        wheels, _, said = start(browser, url)
        assert wheels == ""
        assert any(complaint in text for text in said) if complaint else not said


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(("data", "complaint"), [(None, "answers 404"), (b"\0asm\1\0\0\0\1", "CompileError")])
def test_a_program_that_cannot_be_had_is_told(
    browser: Any, tmp_path: Path, listed: bool, data: bytes | None, complaint: str
) -> None:
    with serve_site(tmp_path / "site", MODEL) as url:
        program = tmp_path / "site" / "runtime" / "pyodide.asm.wasm"
        program.unlink()
        if data:
            program.write_bytes(data)
        if not listed:
            not_listed(tmp_path / "site")
        with open_page(browser, url) as page:
            message = page.run("""
                const none = new Promise((resolve) => setTimeout(resolve, 20_000, "no answer"));
                const answer = inpage.create("env.as_dict");
                return Promise.race([none, answer.catch(({ code, message }) => `${code} ${message}`)]);
            """)
    assert message.startswith("worker The Python runtime could not be started")
    assert complaint in message


def test_an_unpacked_snapshot_will_do(browser: Any, tmp_path: Path) -> None:
    """Some servers send .gz files as compressed content, which the browser unpacks."""
    with serve_site(tmp_path / "site", MODEL) as url:
        path = tmp_path / "site" / "runtime" / SNAPSHOT
        replace(path, gzip.decompress(path.read_bytes()))
        assert start(browser, url)[0]


def test_a_host_need_not_know_the_type_of_webassembly(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(serve._TYPES, ".wasm")
    with serve_site(tmp_path / "site", MODEL) as url:
        wheels, _, said = start(browser, url)
        assert wheels == wheels_of(tmp_path / "site")
        assert not [text for text in said if "snapshot" in text]


class Log(Handler):
    """Notes the paths that are asked for."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()


def visit(context: Any, url: str, *, keep: bool = True, wait: bool = True) -> list[str]:
    """Visit the site, wait until the snapshot is kept, if it is to be; the files of the runtime that were asked for."""
    Log.asked.clear()
    page = context.new_page()
    page.goto(url + BLANK)
    before = "" if keep else "inpage.env.useBrowserCache = false;"
    assert page.evaluate(LOAD.replace("inpage.env", before + "inpage.env", 1)) == [1, 5, 32]
    if keep and wait:
        page.wait_for_function("async () => (await (await caches.open('inpage-runtime')).keys()).length === 1")
    page.close()
    return [name for path, name in (asked.rsplit("/", 1) for asked in Log.asked) if path == "/runtime"]


def test_a_visit_asks_once_for_each_file_and_the_next_not_for_the_snapshot(browser: Any, tmp_path: Path) -> None:
    with serve_site(tmp_path / "site", MODEL, handler=Log) as url:
        context = browser.new_context()
        first = visit(context, url)
        assert SNAPSHOT in first
        assert len(first) == len(set(first))
        assert not [name for name in first if name.endswith(".whl")]  # the snapshot has their files
        assert SNAPSHOT not in visit(context, url)
        context.close()


def test_another_snapshot_takes_the_place_of_the_kept_one(browser: Any, tmp_path: Path) -> None:
    with serve_site(tmp_path / "site", MODEL, handler=Log) as url:
        context = browser.new_context()
        visit(context, url)
        built = unpacked(tmp_path / "site")
        replace_snapshot(tmp_path / "site", built._replace(files={**built.files, "/other": b"file"}))
        assert SNAPSHOT in visit(context, url)  # which waits for one to be kept
        assert SNAPSHOT not in visit(context, url)
        context.close()


def test_a_kept_snapshot_that_is_damaged_is_fetched_again(browser: Any, tmp_path: Path) -> None:
    with serve_site(tmp_path / "site", MODEL, handler=Log) as url:
        context = browser.new_context()
        visit(context, url)
        page = context.new_page()
        page.goto(url + BLANK)
        page.evaluate("""async () => {
            const cache = await caches.open("inpage-runtime");
            for (const key of await cache.keys()) await cache.put(key, new Response("damaged"));
        }""")
        assert SNAPSHOT not in visit(context, url, wait=False)
        assert SNAPSHOT in visit(context, url)
        context.close()


def test_nothing_is_kept_where_the_settings_forbid_it(browser: Any, tmp_path: Path) -> None:
    with serve_site(tmp_path / "site", MODEL, handler=Log) as url:
        context = browser.new_context()
        visit(context, url, keep=False)
        page = context.new_page()
        page.goto(url + BLANK)
        assert page.evaluate("caches.keys()") == []
        context.close()


def test_kernels_are_compiled_while_they_arrive(browser: Any, tmp_path: Path) -> None:
    """By streaming, which needs their media type, and without a start that depends on it."""
    with serve_site(tmp_path / "site", MODEL, handler=Log) as url, open_page(browser, url) as page:
        Log.asked.clear()
        assert page.run(RUN) == [1, 5, 32]
        assert "/runtime/inpage-relaxed.wasm" in Log.asked
        (worker,) = page.page.workers
        assert worker.evaluate("kernels.length") >= 1
        for variant in VARIANTS:
            (tmp_path / "site" / "runtime" / f"inpage-{variant}.wasm").unlink()
        with open_page(browser, url) as other:
            assert other.run(RUN) == [1, 5, 32]


def spied_site(site: Path) -> None:
    """Let the site's page and its worker note, in `asked`, which entries of caches they ask for."""
    spy = """
        const match = Cache.prototype.match;
        globalThis.asked = [];
        Cache.prototype.match = function (key) {
          asked.push(key);
          return match.call(this, key);
        };
    """
    for path in (site / "inpage.js", site / "inpage-worker.js"):
        replace(path, spy.encode() + path.read_bytes())


def spied_visit(context: Any, url: str, options: str = "{}", *written: str) -> tuple[set[str], set[str]]:
    """Entries of the store that a visit reads, in the page while Python starts and in the worker, by file and part.

    The page stays until entries that have `written` in their keys are there.
    """
    page = context.new_page()
    page.goto(url + BLANK)
    assert page.evaluate(LOAD.replace('base")', f'base", {options})')) == [1, 5, 32]
    stored = """async (parts) => {
        const keys = await (await caches.open("inpage")).keys();
        return parts.every((part) => keys.some(({ url }) => url.includes(part)));
    }"""
    page.wait_for_function(stored, arg=["?inpage-ahead", *written])
    asked = page.evaluate("asked"), page.workers[0].evaluate("asked")
    page.close()
    ahead, later = ({key.rsplit("/", 1)[1] for key in keys if "?inpage=" in key} for keys in asked)
    return ahead, later


READ = {f"{file}?inpage={part}" for file in ("config.json", "tokenizer.json", "model.safetensors")
        for part in ("manifest", "0")}  # fmt: skip


def test_the_next_visit_reads_the_store_while_python_starts(browser: Any, tmp_path: Path) -> None:
    with serve_site(tmp_path / "site", MODEL) as url:
        spied_site(tmp_path / "site")
        context = browser.new_context()
        ahead, later = spied_visit(context, url)
        assert not ahead
        assert {"config.json?inpage=manifest", "model.safetensors?inpage=manifest"} <= later
        ahead, later = spied_visit(context, url)
        assert ahead >= READ
        assert not later & {key for key in READ if key.endswith("=0")}
        context.close()


def test_what_the_store_lacks_is_known_as_early(browser: Any, tmp_path: Path) -> None:
    """Weights that were quantised are not kept as they were before: only the host can be asked about these."""
    with serve_site(tmp_path / "site", MODEL, handler=Log) as url:
        spied_site(tmp_path / "site")
        context = browser.new_context()
        spied_visit(context, url, "{ dtype: 'q8' }", "inpage-kept=")
        ahead, later = spied_visit(context, url, "{ dtype: 'q8' }")
        assert "model.safetensors?inpage=manifest" in ahead - later
        kept = {key.rsplit("=", 1)[1] for key in ahead if "inpage-kept=" in key}
        assert kept == {"manifest", "0"}
        assert not [key for key in later if "inpage-kept=" in key and key.endswith("=0")]
        context.close()


class Waiting(Handler):
    """Sends the snapshot, without which Python cannot start, once the model's files were asked for."""

    asked: ClassVar[list[str]] = []
    wanted = threading.Event()
    early: ClassVar[list[bool]] = []

    def do_GET(self) -> None:
        if self.path.endswith(SNAPSHOT):
            self.early.append(self.wanted.wait(20))
        self.note()
        super().do_GET()

    def do_HEAD(self) -> None:
        self.note()
        super().do_HEAD()

    def note(self) -> None:
        if "/golden/" in self.path:
            self.asked.append(f"{self.command} {self.path.rsplit('/', 1)[1]} {self.headers.get('Range', '')}")
        if "GET model.safetensors bytes=0-" in self.asked:
            self.wanted.set()


@pytest.mark.parametrize(("dtype", "tried"), [("fp32", []), ("q8", ["HEAD model.q8.safetensors bytes=0-"])])
def test_a_first_visit_asks_for_the_model_while_python_starts(
    browser: Any, tmp_path: Path, dtype: str, tried: list[str]
) -> None:
    """And once for each file; the next visit asks for none."""
    with serve_site(tmp_path / "site", MODEL, handler=Waiting) as url:
        context = browser.new_context()
        for state in (Waiting.asked, Waiting.early):
            state.clear()
        Waiting.wanted.clear()
        spied_site(tmp_path / "site")
        spied_visit(context, url, f"{{ dtype: '{dtype}' }}")
        assert Waiting.early == [True]
        expected = [
            *(f"GET {name}.json " for name in ("config", "tokenizer", "tokenizer_config", "special_tokens_map")),
            *tried,
            "HEAD model.safetensors bytes=0-",
            "GET model.safetensors bytes=0-65535",
            "GET model.safetensors bytes=0-",
        ]
        assert {asked: Waiting.asked.count(asked) for asked in expected} == dict.fromkeys(expected, 1)
        Waiting.asked.clear()
        spied_visit(context, url, f"{{ dtype: '{dtype}' }}")
        assert not [asked for asked in Waiting.asked if asked.startswith("GET")]
        context.close()


DAMAGE = """async (how) => {
    const cache = await caches.open("inpage");
    for (const { url } of await cache.keys()) {
        if (!url.endsWith("?inpage=0")) continue;
        if (how === "deleted") await cache.delete(url);
        else await cache.put(url, new Response((await (await cache.match(url)).arrayBuffer()).slice(0, -9)));
    }
}"""


@pytest.mark.parametrize("how", ["deleted", "cut"])
def test_what_is_read_ahead_is_checked(browser: Any, tmp_path: Path, how: str) -> None:
    """Entries that a visit is to read, and that are damaged by then, are fetched again."""
    with serve_site(tmp_path / "site", MODEL, handler=Log) as url:
        spied_site(tmp_path / "site")
        context = browser.new_context()
        spied_visit(context, url)
        page = context.new_page()
        page.goto(url + BLANK)
        page.evaluate(DAMAGE, how)
        Log.asked.clear()
        spied_visit(context, url)
        assert {"config.json", "model.safetensors"} <= {path.rsplit("/", 1)[1] for path in Log.asked}
        Log.asked.clear()
        spied_visit(context, url)
        assert not [path for path in Log.asked if "/resolve/" in path]
        context.close()
