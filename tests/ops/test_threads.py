"""Programs on several threads give what one thread gives: to the bit, unless threads share the keys of a head."""

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from inpage import nn, ops
from inpage.env import env
from inpage.errors import KernelError, OutOfMemoryError
from inpage.executors import base, wasm, wasmtime_host
from inpage.executors.base import Interrupted
from inpage.executors.chunks import cut
from inpage.executors.pages import out_of_memory
from inpage.executors.threads import STACK_BYTES, say_once
from inpage.executors.wasm import WasmExecutor
from inpage.optable import BY_NUMBER, OPS
from inpage.program import jit, record
from inpage.runtime import result_of
from inpage.tensor import Tensor


@pytest.fixture
def threaded() -> Iterator[WasmExecutor]:
    env.wasm.num_threads = 3
    executor = WasmExecutor()
    yield executor
    executor.close()
    env.wasm.reset()


def weights(executor: WasmExecutor, *shapes: tuple[int, int]) -> list[nn.Parameter]:
    placed: list[nn.Parameter] = []
    for i, (rows, inner) in enumerate(shapes):
        parameter = nn.Parameter((rows, inner), "panels")
        parameter.place(executor)
        values = np.random.default_rng(i).normal(size=parameter.nbytes // 4).astype(np.float32)
        executor.write(parameter.address, values * inner**-0.5)
        placed.append(parameter)
    return placed


def network(executor: WasmExecutor):
    up, down = weights(executor, (256, 64), (64, 256))

    def function(x: Tensor) -> Tensor:
        for _ in range(12):
            y = ops.attention(x, x, x, heads=4)
            x = ops.linear(ops.linear(y, up, activation="gelu"), down, residual=x)
            x = ops.normalize(x)
        return x

    return function


def test_same_results_as_one_thread(threaded: WasmExecutor) -> None:
    x = Tensor.from_values(np.random.default_rng(3).normal(size=(2, 50, 64)).astype(np.float32))
    alone = WasmExecutor(variant="relaxed")
    expected = np.asarray(jit(network(alone), alone)(x=x))
    assert (threaded.variant, threaded.threads) == ("relaxed_threads", 3)
    run = jit(network(threaded), threaded)
    for _ in range(50):
        np.testing.assert_array_equal(np.asarray(run(x=x)), expected)
    alone.close()


def test_steps_are_parts_of_a_run(threaded: WasmExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSE", 0)
    x = Tensor.from_values(np.random.default_rng(3).normal(size=(2, 50, 64)).astype(np.float32))
    program, _ = record(network(threaded), threaded, {"x": x})
    (expected,) = threaded.run(program, [x.data])
    steps, pauses = threaded.steps(program, [x.data]), 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            assert stop.value == [expected]
            break
        pauses += 1
    assert 1 < pauses < 12 * 4
    (again,) = result_of(threaded.steps(program, [x.data]))
    assert again == expected
    interrupted = threaded.steps(program, [x.data])
    next(interrupted)
    threaded.run(program, [x.data])
    with pytest.raises(Interrupted):
        next(interrupted)


@pytest.mark.parametrize("length", [1, 2, 7, 40])
def test_threads_share_the_keys_of_a_head(threaded: WasmExecutor, length: int) -> None:
    generator = np.random.default_rng(length)
    inputs: dict[str, Any] = {
        name: Tensor.from_values(generator.normal(size=shape).astype(np.float32))
        for name, shape in (("q", (1, 1, 64)), ("k", (1, length, 32)), ("v", (1, length, 32)))
    }

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (Tensor((1, length, 2, 16), "int32", x.storage) for x in (k, v))
        return ops.cached_attention(q, keys, values, length=length, heads=4, head_dim=16)

    alone = WasmExecutor(variant="relaxed")
    expected, found = (np.asarray(jit(attend, executor)(**inputs)) for executor in (alone, threaded))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    used = [{op for op in OPS.values() if op.number in _ops(record(attend, executor, inputs)[0].words)}
            for executor in (alone, threaded)]  # fmt: skip
    assert used[1] - used[0] == {OPS["join_attention"]}, "the heads of 2 keep 3 threads busy"
    alone.close()


def _ops(words: Any) -> set[int]:
    found, at = set[int](), 0
    while at < len(words):
        found.add(words[at] & 0xFFFF)
        at += words[at] >> 16
    return found


def test_failure_in_a_chunk_is_reported_and_the_next_call_works(threaded: WasmExecutor) -> None:
    table = nn.Parameter((10, 64))
    table.place(threaded)
    threaded.write(table.address, np.ones((10, 64), np.float32))
    run = jit(lambda ids: ops.normalize(ops.embedding(ids, table)), threaded)
    ids = np.zeros(20_000, np.int32)
    ids[12_345] = 10
    for _ in range(5):
        with pytest.raises(KernelError, match="embedding"):
            run(ids=Tensor.from_values(ids))
        np.testing.assert_allclose(np.asarray(run(ids=Tensor.from_values(ids % 10))), 0.125, rtol=1e-6)


def test_a_helper_that_comes_late_reads_no_program(threaded: WasmExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is done, and other contents are in its place: here lengths far beyond the memory."""
    failures: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    x = Tensor.from_values(np.ones((1, 4, 64), np.float32))
    program, _ = record(network(threaded), threaded, {"x": x})
    threaded.run(program, [x.data])
    threaded.write(program.address, np.full(len(program.words) + 16, 0x0FFFFFFF, np.int32))
    stack = threaded.allocate(STACK_BYTES)
    helper = threaded._instance.start_helper(threaded._control, stack + STACK_BYTES)  # pyright: ignore[reportPrivateUsage]
    time.sleep(0.2)
    threaded._stop_helpers()  # pyright: ignore[reportPrivateUsage]
    helper.close()
    assert not failures


def test_work_is_cut_by_its_size() -> None:
    executor = WasmExecutor()
    small, large = weights(executor, (32, 32), (384, 384))
    chunks: list[int] = []
    for rows, weight in ((1, small), (1, large), (50, large), (512, large)):
        x = Tensor.from_values(np.zeros((rows, weight.shape[1]), np.float32))
        program, _ = record(lambda x, weight=weight: ops.linear(x, weight), executor, {"x": x})
        table = cut(program.words, 2)
        assert list(table) == [1, 0, 0, 0, OPS["linear"].length, program.words[1], program.words[1]]
        chunks.append(program.words[1])
    assert chunks == [1, 2, 8, 12]
    executor.close()


def feed_forward(executor: WasmExecutor):
    """A norm, two linears of one input, what gates one by the other, and a linear back, in q8g."""
    gate, up, down = (nn.Parameter(shape, "q8g") for shape in ((256, 64), (256, 64), (64, 256)))
    norm = nn.Parameter((64,))
    for i, parameter in enumerate((gate, up, down, norm)):
        parameter.place(executor)
        values = np.random.default_rng(i).integers(0, 60, parameter.nbytes, np.uint8)  # float16 scales below 1
        executor.write(parameter.address, values)
    executor.write(norm.address, np.ones(64, np.float32))

    def function(x: Tensor) -> Tensor:
        for _ in range(6):
            y = ops.rms_norm(x, norm, 1e-6)
            sides = ops.linear(y, gate), ops.linear(y, up)
            x = ops.linear(ops.gated(*sides, "silu"), down, residual=x)
        return x

    return function


def entries(executor: WasmExecutor, function: Any, x: Tensor) -> list[list[str]]:
    """The instructions of each entry, those of a group between bars."""
    program, _ = record(function, executor, {"x": x})
    table, words = cut(program.words, 2), program.words
    starts = [tuple(table[i : i + 3]) for i in range(1, len(table), 3)]
    found: list[list[str]] = []
    for (at, first, after), (end, _, _) in pairwise(starts):
        names: list[str] = []
        while at < end:
            names.append(BY_NUMBER[words[at] & 0xFFFF].name)
            at += words[at] >> 16
        found += [["|"], names] if first == after else [names]
    return found


def test_threads_wait_only_where_they_must() -> None:
    executor = WasmExecutor()
    x = Tensor.from_values(np.zeros((1, 64, 64), np.float32))
    layer = [["|"], ["rms_norm", "quantize_rows"], ["|"], ["linear_q8g"], ["linear_q8g"]]
    layer += [["|"], ["gated", "quantize_rows"], ["|"], ["linear_q8g"]]
    assert entries(executor, feed_forward(executor), x)[: 2 * len(layer)] == 2 * layer

    def freed(x: Tensor) -> Tensor:  # the memory of an input that other threads may not have read yet
        y = ops.activation(x, "relu")
        y = ops.gated(y, y, "silu")
        return ops.gated(y, y, "silu")

    assert entries(executor, freed, x)[2:] == [["|"], ["gated"], ["|"], ["gated"]]

    def transposed(x: Tensor) -> Tensor:  # other rows than those before
        y = ops.gated(x, x, "silu").reshape(1, 128, 32)
        return ops.gated(y, y, "silu")

    assert entries(executor, transposed, x) == [["|"], ["gated"], ["|"], ["gated"]]
    executor.close()


def test_chains_on_threads_give_the_same(threaded: WasmExecutor) -> None:
    x = Tensor.from_values(np.random.default_rng(3).normal(size=(1, 90, 64)).astype(np.float32))
    alone = WasmExecutor(variant="relaxed")
    expected = np.asarray(jit(feed_forward(alone), alone)(x=x))
    assert np.isfinite(expected).all()
    run = jit(feed_forward(threaded), threaded)
    for _ in range(50):
        np.testing.assert_array_equal(np.asarray(run(x=x)), expected)
    alone.close()


def test_closing_ends_the_helpers(threaded: WasmExecutor) -> None:
    helpers = list(threaded._helpers)  # pyright: ignore[reportPrivateUsage]
    assert len(helpers) == 2
    threaded._stop_helpers()  # pyright: ignore[reportPrivateUsage]
    assert not any(helper._thread.is_alive() for helper in helpers)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("refuse", "variant", "threads", "warnings"),
    [
        (lambda shared, pages: pages > 2**15, "relaxed_threads", 3, ["limited to"]),
        (lambda shared, pages: shared, "relaxed", 1, ["refuses shared memory"]),
        (lambda shared, pages: shared or pages > 2**13, "relaxed", 1, ["limited to", "refuses shared memory"]),
    ],
)
def test_refused_memory_steps_down_and_says_so(
    monkeypatch: pytest.MonkeyPatch, refuse: Any, variant: str, threads: int, warnings: list[str]
) -> None:
    """An engine that grants less memory, or none that is shared, than was asked for."""
    instantiate = wasmtime_host.instantiate

    def refusing(module: bytes, shared: bool, pages: int, maximum: int) -> Any:
        if refuse(shared, maximum):
            raise out_of_memory(maximum, 0)
        return instantiate(module, shared, pages, maximum)

    monkeypatch.setattr(wasmtime_host, "instantiate", refusing)
    say_once.cache_clear()
    env.wasm.num_threads = 3
    try:
        with pytest.warns(UserWarning) as caught:
            executor = WasmExecutor()
    finally:
        env.wasm.reset()
    said = [str(warning.message) for warning in caught]
    assert (executor.variant, executor.threads, len(said)) == (variant, threads, len(warnings))
    assert all(part in message for part, message in zip(warnings, said, strict=True))
    executor.close()


def test_a_variant_without_threads_says_so_where_several_are_asked_for() -> None:
    say_once.cache_clear()
    env.wasm.update({"variant": "simd", "num_threads": 3})
    try:
        with pytest.warns(UserWarning, match="one thread.*'simd'.*simd_threads"):
            executor = WasmExecutor()
    finally:
        env.wasm.reset()
    assert (executor.variant, executor.threads) == ("simd", 1)
    executor.close()


def test_memory_that_is_refused_altogether_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(module: bytes, shared: bool, pages: int, maximum: int) -> Any:
        raise out_of_memory(maximum, 0)

    monkeypatch.setattr(wasmtime_host, "instantiate", refuse)
    monkeypatch.setattr(wasm, "relaxed_is_right", lambda: True)
    with pytest.raises(OutOfMemoryError):
        WasmExecutor()
