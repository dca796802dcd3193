"""Recording: memory plan, program cache, registers, and errors; run on the reference executor."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from inpage import nn, ops
from inpage.errors import DisposedError, InputError, KernelError
from inpage.executors import acquire, release
from inpage.executors.base import Executor
from inpage.optable import BY_NUMBER
from inpage.program import MAX_PROGRAMS, REGISTER_BYTES, Constant, Program, Recorded, jit, record
from inpage.tensor import Tensor


@pytest.fixture
def executor() -> Iterator[Executor]:
    executor = acquire("reference")
    yield executor
    release(executor)


def test_chain_of_operations_reuses_scratch(executor: Executor) -> None:
    x = Tensor.from_values(np.linspace(-1, 1, 4096, dtype=np.float32))

    def chain(x: Tensor, times: int) -> Tensor:
        for _ in range(times):
            x = ops.activation(x, "tanh")
        return x

    short, _ = record(chain, executor, {"x": x, "times": 2})
    long, _ = record(chain, executor, {"x": x, "times": 50})
    # `inputs` of the recording keeps the input, and two temporaries alternate.
    assert long.arena_bytes == short.arena_bytes <= REGISTER_BYTES + 3 * x.nbytes
    short.dispose()
    long.dispose()


def test_what_comes_to_no_result_is_left_out(executor: Executor) -> None:
    kept = executor.allocate(8)

    def function(x: Tensor, both: bool) -> Tensor | tuple[Tensor, Tensor]:
        unused = ops.activation(ops.add(x, x), "tanh")
        halves = ops.concatenate([ops.activation(x, "relu"), ops.multiply(x, x)])  # two instructions write it
        ops.copy_into(
            Tensor((2,), "float32", Constant(kept, 8)), ops.subtract(x, ops.slice(halves, 0, 0, 2)), (2,), (1,), (1,)
        )
        return (halves, unused) if both else halves

    x = Tensor.from_values([-2.0, 3.0])
    names: dict[bool, list[str]] = {}
    for both in (True, False):
        executor.write(kept, bytes(8))
        program, _ = record(function, executor, {"x": x, "both": both})
        names[both] = _names(program)
        assert np.frombuffer(executor.run(program, [x.data])[0], "f4").tolist() == [0.0, 3.0, 4.0, 9.0]
        assert np.frombuffer(executor.read(kept, 8), "f4").tolist() == [-2.0, 0.0]
        program.dispose()
    assert names[True] == ["binary", "activation", *names[False]]
    executor.free(kept)


def _names(program: Program) -> list[str]:
    """Names of a program's operations, in order."""
    names, at = [], 0
    while at < len(program.words):
        names.append(BY_NUMBER[program.words[at] & 0xFFFF].name)
        at += program.words[at] >> 16
    return names


def test_structures_and_static_values(executor: Executor) -> None:
    run = jit(lambda x, double: {"y": ops.add(x, x) if double else x, "list": [ops.reshape(x, (2, 1)), None]}, executor)
    x = Tensor.from_values([1.0, 2.0])
    result = run(x=x, double=True)
    assert result["y"].tolist() == [2.0, 4.0]
    assert result["list"][0].tolist() == [[1.0], [2.0]]
    assert result["list"][1] is None
    assert run(x=x, double=False)["y"].tolist() == [1.0, 2.0]
    run.dispose()


def test_programs_are_kept_by_signature_and_evicted(executor: Executor) -> None:
    recorded: list[tuple[int, ...]] = []

    def function(x: Tensor) -> Tensor:
        recorded.append(x.shape)
        return ops.add(x, ops.constant([1.0]))

    run = Recorded(function, executor)
    before = executor.used_bytes
    for _ in range(2):
        assert run(x=Tensor.from_values([2.0])).tolist() == [3.0]
    assert recorded == [(1,)]
    for length in range(2, 2 * MAX_PROGRAMS):
        run(x=Tensor.from_values([0.0] * length))
    held = executor.used_bytes
    for length in range(2 * MAX_PROGRAMS, 3 * MAX_PROGRAMS):
        run(x=Tensor.from_values([0.0] * length))
    assert executor.used_bytes - held < 8192
    run.dispose()
    assert executor.used_bytes - before < 65536


def test_arena_that_moves_relinks_older_programs(executor: Executor) -> None:
    run = jit(lambda x: ops.add(x, x), executor)
    small = Tensor.from_values([1.0] * 8)
    assert run(x=small).tolist() == [2.0] * 8
    run(x=Tensor.from_values([1.0] * 100_000))
    assert run(x=small).tolist() == [2.0] * 8
    run.dispose()


def test_bad_id_names_the_op_and_the_next_call_works(executor: Executor) -> None:
    table = nn.Parameter((3, 4))
    table.place(executor)
    executor.write(table.address, np.arange(12, dtype=np.float32))
    run = jit(lambda ids: ops.embedding(ids, table), executor)
    with pytest.raises(KernelError, match="embedding") as caught:
        run(ids=Tensor.from_values([3]))
    assert caught.value.details == {"op": "embedding"}
    assert run(ids=Tensor.from_values([2])).tolist() == [[8.0, 9.0, 10.0, 11.0]]
    run.dispose()
    table.free()


def test_operations_need_a_recording() -> None:
    with pytest.raises(InputError, match="recorded function"):
        ops.add(Tensor.from_values([1.0]), Tensor.from_values([1.0]))


def test_host_tensor_in_an_operation_is_refused(executor: Executor) -> None:
    outside = Tensor.from_values([1.0])
    with pytest.raises(InputError, match="not in kernel memory"):
        jit(lambda x: ops.add(x, outside), executor)(x=outside)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ops.add(x, x),
        lambda x: ops.activation(x, "relu"),
        lambda x: ops.argmax(x),
        lambda x: ops.gated(x, x, "relu"),
        lambda x: ops.gated_halves(x, "relu"),
        lambda x: ops.layer_norm(x, ops.constant([1.0, 1.0]), ops.constant([1.0, 1.0]), 1e-5),
        lambda x: ops.log_softmax(x),
        lambda x: ops.matmul(x, x),
        lambda x: ops.mse_loss(x, x),
        lambda x: ops.normalize(x),
        lambda x: ops.pool(x.reshape(1, 2, 2), None, "mean"),
        lambda x: ops.topk(x, 1),
    ],
)
def test_integers_are_not_taken_for_floats(executor: Executor, function: Any) -> None:
    with pytest.raises(InputError, match=r"as float32 .* found int32"):
        jit(function, executor)(x=Tensor.from_values([[1, 2], [3, 4]]))


def test_halves_are_of_equal_length(executor: Executor) -> None:
    with pytest.raises(InputError, match=r"\[1, 2\], found float32 \[1, 3\]"):
        jit(lambda x: ops.gated_halves(x, "relu"), executor)(x=Tensor.from_values([[1.0, 2.0, 3.0]]))


def test_wrong_shapes_say_what_was_expected(executor: Executor) -> None:
    with pytest.raises(InputError, match=r"expects .* \[3\], found .* \[2\]"):
        jit(lambda x, y: ops.mse_loss(x, y), executor)(x=Tensor.from_values([1.0] * 3), y=Tensor.from_values([1.0] * 2))


def test_last_release_closes() -> None:
    executor = acquire("reference")
    run = jit(lambda x: ops.add(x, x), executor)
    run(x=Tensor.from_values([1.0]))
    release(executor)
    with pytest.raises(DisposedError):
        run(x=Tensor.from_values([1.0]))


def test_parameter_reads_back_through_its_layout(executor: Executor) -> None:
    values = np.random.default_rng(0).normal(size=(13, 5)).astype(np.float32)
    linear = nn.Linear(5, 13)
    linear.weight.place(executor)
    panels = np.zeros((2, 5, 8), np.float32)
    for row in range(13):
        panels[row // 8, :, row % 8] = values[row]
    executor.write(linear.weight.address, panels)
    np.testing.assert_array_equal(np.asarray(linear.weight), values)
    linear.weight.free()
