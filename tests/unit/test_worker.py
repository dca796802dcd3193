"""The worker's side of the protocol, driven as the page drives it: messages in, messages out."""

import asyncio
import time
from collections import namedtuple
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from inpage.env import Environment
from inpage.errors import UnsupportedError
from inpage.tensor import Tensor
from inpage.worker import PAUSE, PROTOCOL, Server

Report = namedtuple("Report", "missing unexpected")


class Pipeline:
    """An object with everything the protocol handles: calls by steps, methods, attributes, private names, an end."""

    def __init__(self) -> None:
        self.task = "doubling"
        self.tokenizer = SimpleNamespace(vocab_size=7)
        self.disposed = False
        self.closed_after = -1
        self._secret = 1

    def __call__(self, values: list[int]) -> list[int]:
        raise AssertionError("the worker runs `steps`")

    def steps(
        self, values: list[int], *, factor: int = 2, seconds: float = 0
    ) -> Generator[tuple[int, int], None, list[int]]:
        results = []
        try:
            for value in values:
                time.sleep(seconds)
                results.append(value * factor)
                yield len(results), len(values)
        finally:
            self.closed_after = len(results)
        return results

    def write_steps(self, words: list[str], seconds: float) -> Generator[Any, None, str]:
        """Every letter is a step, every word a part with fields of its own."""
        for place, word in enumerate(words):
            new: list[str] = []

            def fields(place: int = place, new: list[str] = new) -> dict[str, Any]:
                text = "".join(new)
                new.clear()
                return {"index": place, "text": text}

            for done, letter in enumerate(word):
                time.sleep(seconds)
                new.append(letter)
                yield done + 1, len(word), fields
        return " ".join(words)

    def write(self, words: list[str], seconds: float) -> str:
        raise AssertionError("the worker runs `write_steps`")

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        return tensor.dims

    def owns(self, other: Any) -> bool:
        return other is self.tokenizer

    def dispose(self) -> None:
        self.disposed = True


class Page:
    """The other end: sends messages, keeps what the server posts."""

    def __init__(self, **names: Any) -> None:
        self.posted: list[dict[str, Any]] = []
        self.namespace = SimpleNamespace(__all__=list(names), __version__="1.2", **names)
        self.server = Server(self.posted.append, self.namespace, null="JS null")
        self.last = 0

    def send(self, method: str, /, **params: Any) -> "asyncio.Task[None]":
        self.last += 1
        message = {"jsonrpc": "2.0", "id": self.last, "method": method, "params": params}
        return asyncio.ensure_future(self.server.handle(message))

    def answer(self, identifier: int | None) -> dict[str, Any]:
        (found,) = [m for m in self.posted if m.get("id") == identifier]
        return found

    async def request(self, method: str, /, **params: Any) -> Any:
        await self.send(method, **params)
        return self.answer(self.last).get("result")

    async def error(self, method: str, /, **params: Any) -> dict[str, Any]:
        await self.send(method, **params)
        return self.answer(self.last)["error"]

    def events(self, identifier: int) -> list[dict[str, Any]]:
        notes = [m["params"] for m in self.posted if m.get("method") == "progress"]
        return [n["event"] for n in notes if n["id"] == identifier]


def run(scenario: Callable[[], Any]) -> None:
    """Run in a thread of its own: Playwright keeps a loop running in the main one after browser tests."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, scenario()).result()


def test_hello_states_versions_and_public_names() -> None:
    async def scenario() -> None:
        page = Page(pipeline=Pipeline)
        assert await page.request("hello", protocol=PROTOCOL) == {
            "protocol": PROTOCOL,
            "version": "1.2",
            "names": ["pipeline"],
        }
        error = await page.error("hello", protocol=PROTOCOL + 1)
        assert error["code"] == "config"
        assert "one release" in error["hint"]

    run(scenario)


def test_the_served_names_are_those_of_inpage() -> None:
    import inpage

    async def scenario() -> None:
        posted: list[Any] = []
        message = {"jsonrpc": "2.0", "id": 1, "method": "hello", "params": {"protocol": PROTOCOL}}
        await Server(posted.append).handle(message)
        assert posted[0]["result"]["names"] == list(inpage.__all__)

    run(scenario)


def test_settings_are_made_before_the_call_and_a_wrong_one_fails_it() -> None:
    env, calls = Environment(), []

    def load() -> None:
        calls.append((env.cache_name, env.wasm.num_threads))

    async def scenario() -> None:
        page = Page(env=env, load=load)
        await page.request("create", name="load", settings={"cache_name": "b", "wasm": {"num_threads": 4}})
        error = await page.error("create", name="load", settings={"cache_name": "c", "remoteHost": "d"})
        assert error["code"] == "config"
        assert "'remote_host'" in error["hint"]
        assert calls == [("b", 4)]
        assert env.cache_name == "b"

    run(scenario)


def test_objects_are_created_called_read_and_disposed_of_by_handle() -> None:
    async def scenario() -> None:
        page = Page(pipeline=Pipeline)
        made = await page.request("create", name="pipeline")
        assert made["$type"] == "handle"
        assert made["class"] == "Pipeline"
        assert made["callable"]
        assert {"shape", "owns", "dispose"} <= set(made["methods"])
        assert {"task", "tokenizer"} <= set(made["attributes"])
        assert not [n for n in made["methods"] + made["attributes"] if n.startswith("_")]
        handle = made["handle"]

        assert await page.request("call", handle=handle, args=[[1, 2]], kwargs={"factor": 3}) == [3, 6]
        assert await page.request("get", handle=handle, attribute="task") == "doubling"
        tokenizer = await page.request("get", handle=handle, attribute="tokenizer")
        assert await page.request("call", handle=handle, method="owns", args=[tokenizer])

        pipeline = page.server._objects[handle]
        await page.request("dispose", handle=handle)
        assert pipeline.disposed
        assert (await page.error("call", handle=handle, args=[[1]]))["code"] == "disposed"
        await page.request("dispose", handle=tokenizer["handle"])
        assert not page.server._objects

    run(scenario)


@pytest.mark.parametrize("name", ["os", "pipeline.__init__", "pipeline.__globals__", "_private", ""])
def test_names_that_are_not_public_are_refused(name: str) -> None:
    async def scenario() -> None:
        page = Page(pipeline=Pipeline)
        assert (await page.error("create", name=name))["code"] == "input"
        assert (await page.error("get", attribute=name))["code"] == "input"
        handle = (await page.request("create", name="pipeline"))["handle"]
        assert (await page.error("get", handle=handle, attribute="_secret"))["code"] == "input"
        assert (await page.error("call", handle=handle, method="__class__"))["code"] == "input"

    run(scenario)


def test_values_cross_in_both_directions() -> None:
    async def scenario() -> None:
        page = Page(echo=lambda value: value, kind=lambda value: type(value).__name__, pipeline=Pipeline)
        plain = {"a": [1, 2.5, True, None, "é"], "b": {"c": b"\x00"}}
        assert await page.request("create", name="echo", args=[plain]) == plain
        assert await page.request("create", name="kind", args=["JS null"]) == "NoneType"

        sent = {"$type": "tensor", "dtype": "float32", "dims": [1, 2], "data": memoryview(b"\0" * 8).cast("f")}
        assert await page.request("create", name="kind", args=[sent]) == "Tensor"
        back = await page.request("create", name="echo", args=[sent])
        assert (back["$type"], back["dtype"], back["dims"], back["data"].nbytes) == ("tensor", "float32", [1, 2], 8)
        assert (await page.error("create", name="echo", args=[{"$type": "blob"}]))["code"] == "input"

        page = Page(make=lambda: {"report": Report({"x"}, ()), 0: Tensor.from_values([[1], [2]]), "many": iter("ab")})
        made = await page.request("create", name="make")
        assert made["report"] == {"missing": ["x"], "unexpected": []}
        assert (made["0"]["dtype"], made["0"]["dims"]) == ("int32", [2, 1])
        assert made["many"] == ["a", "b"]

    run(scenario)


def test_a_result_can_be_kept_in_the_worker() -> None:
    async def scenario() -> None:
        page = Page(echo=lambda value: value)
        kept = await page.request("create", name="echo", args=[{"a": 1}], keep=True)
        assert kept["class"] == "dict"
        assert await page.request("create", name="echo", args=[kept]) == {"a": 1}
        assert await page.request("call", handle=kept["handle"], method="get", args=["a"]) == 1

    run(scenario)


def test_errors_cross_with_code_hint_and_details() -> None:
    def refuse() -> None:
        raise UnsupportedError("No dtype fp3.", hint="Use fp32.", dtype="fp3", known={"fp32"})

    async def scenario() -> None:
        page = Page(refuse=refuse, fail=lambda: 1 // 0)
        assert await page.error("create", name="refuse") == {
            "code": "unsupported",
            "name": "UnsupportedError",
            "message": "No dtype fp3. Use fp32.",
            "hint": "Use fp32.",
            "details": {"dtype": "fp3", "known": ["fp32"]},
        }
        error = await page.error("create", name="fail")
        assert (error["code"], error["name"]) == ("internal", "ZeroDivisionError")
        assert "test_worker.py" in error["details"]["traceback"]

    run(scenario)


def test_arguments_that_do_not_fit_name_the_nearest_that_do() -> None:
    def load(*, top_k: int = 1) -> None: ...

    async def scenario() -> None:
        page = Page(load=load, value=3)
        error = await page.error("create", name="load", kwargs={"topK": 2})
        assert error["code"] == "input"
        assert error["hint"] == "Did you mean 'top_k'?"
        assert (await page.error("create", name="load", args=[1]))["code"] == "input"
        assert (await page.error("create", name="value"))["code"] == "input"

    run(scenario)


def test_malformed_requests_are_answered_with_an_error() -> None:
    async def scenario() -> None:
        page = Page()
        for message in (
            {"jsonrpc": "2.0", "id": 1, "method": "eval", "params": {}},
            {"jsonrpc": "1.0", "id": 2, "method": "hello", "params": {"protocol": PROTOCOL}},
            {"jsonrpc": "2.0", "id": 3, "method": "hello", "params": {"protocol": PROTOCOL, "more": 1}},
            {"jsonrpc": "2.0", "id": 4, "method": "hello", "params": [PROTOCOL]},
            {"jsonrpc": "2.0", "method": "hello", "params": {"protocol": PROTOCOL}},
        ):
            await page.server.handle(message)
            assert page.answer(message.get("id"))["error"]["code"] == "input"

    run(scenario)


def test_concurrent_requests_run_one_at_a_time_in_order() -> None:
    trace: list[str] = []

    async def load(name: str) -> str:
        trace.append(f"start {name}")
        await asyncio.sleep(0)
        trace.append(f"end {name}")
        return name

    async def scenario() -> None:
        page = Page(load=load)
        await asyncio.gather(*(page.send("create", name="load", args=[name]) for name in "abc"))
        assert trace == [f"{event} {name}" for name in "abc" for event in ("start", "end")]
        assert [m["result"] for m in page.posted] == ["a", "b", "c"]

    run(scenario)


def test_progress_is_sent_only_to_the_request_that_asked() -> None:
    async def load(progress_callback: Any = None) -> bool:
        if progress_callback:
            progress_callback({"status": "initiate", "file": "config.json"})
        return progress_callback is not None

    async def scenario() -> None:
        page = Page(load=load, pipeline=Pipeline)
        assert not await page.request("create", name="load")
        assert await page.request("create", name="load", progress=True)
        assert page.events(1) == []
        assert page.events(2) == [{"status": "initiate", "file": "config.json"}]

        handle = (await page.request("create", name="pipeline"))["handle"]
        await page.request("call", handle=handle, args=[[5, 6]], progress=True)
        assert page.events(page.last) == [
            {"status": "run", "done": 1, "total": 2, "progress": 50},
            {"status": "run", "done": 2, "total": 2, "progress": 100},
        ]

    run(scenario)


@pytest.mark.parametrize("seconds", [0, PAUSE / 4, 1.2 * PAUSE])
def test_progress_of_many_steps_is_reported_together_and_in_full(seconds: float) -> None:
    words = ["first", "second", "x", "the very last one"]

    async def scenario() -> None:
        page = Page(pipeline=Pipeline)
        handle = (await page.request("create", name="pipeline"))["handle"]
        params = {"method": "write", "args": [words, seconds], "progress": True}
        assert await page.request("call", handle=handle, **params) == " ".join(words)
        events = page.events(page.last)
        for place, word in enumerate(words):
            mine = [event for event in events if event["index"] == place]
            assert "".join(event["text"] for event in mine) == word
            assert mine[-1]["done"] == len(word)
        steps = sum(map(len, words))
        assert len(events) == steps if seconds > PAUSE else len(events) < steps
        assert events[0]["done"] == 1, "the first comes at once"

    run(scenario)


def test_abort_ends_a_request_that_waits_loads_or_runs() -> None:
    started: list[str] = []

    async def load(name: str) -> None:
        started.append(name)
        await asyncio.sleep(60)

    async def scenario() -> None:
        page = Page(load=load, pipeline=Pipeline)
        loading, waiting = page.send("create", name="load", args=["a"]), page.send("create", name="load", args=["b"])
        await asyncio.sleep(0)
        for task, identifier in ((waiting, 2), (loading, 1)):
            await page.server.handle({"jsonrpc": "2.0", "method": "abort", "params": {"id": identifier}})
            await asyncio.wait_for(task, 5)
            assert page.answer(identifier)["error"]["code"] == "aborted"
        assert started == ["a"]

        handle = (await page.request("create", name="pipeline"))["handle"]
        running = page.send("call", handle=handle, args=[list(range(1000))], kwargs={"seconds": 0.001}, progress=True)
        while len(page.events(page.last)) < 3:
            await asyncio.sleep(0)
        await page.server.handle({"jsonrpc": "2.0", "method": "abort", "params": {"id": page.last}})
        await running
        assert page.answer(page.last)["error"]["name"] == "AbortError"
        assert 3 <= page.server._objects[handle].closed_after < 1000

        assert await page.request("call", handle=handle, args=[[1]]) == [2], "the next request finds the worker free"
        await page.server.handle({"jsonrpc": "2.0", "method": "abort", "params": {"id": "unknown"}})

    run(scenario)
