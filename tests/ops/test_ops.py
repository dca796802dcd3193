"""Every case of the case table, on every executor and every variant of the kernels."""

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from inpage.env import env
from inpage.errors import ConfigError, DisposedError, KernelError, OutOfMemoryError, UnsupportedError
from inpage.executors import acquire, release, wasm
from inpage.executors.base import Executor
from inpage.executors.reference import ReferenceExecutor
from inpage.executors.wasm import VARIANTS, WasmExecutor
from inpage.optable import OPS
from inpage.program import REGISTERS
from tests.ops.cases import Case, all_cases, assemble, linear_case, normal
from tests.ops.job import Job, run_job

CASES = {case.id: case for case in all_cases()}
MIB = 2**20


def opened(name: str) -> Executor:
    return ReferenceExecutor() if name == "reference" else WasmExecutor(variant=name)


@pytest.fixture(scope="module", params=["reference", *VARIANTS])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    executor = opened(request.param)
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def relaxed() -> Iterator[Executor]:
    executor = WasmExecutor(variant="relaxed")
    yield executor
    executor.close()


def test_every_op_has_a_case() -> None:
    # See test_quantized.py, and unit/test_quantized_files.py for what others publish.
    quantized = {name for name in OPS if "quantize" in name or name.startswith(("linear_", "pack_published"))}
    assert {case.op for case in CASES.values()} == OPS.keys() - {"random_normal"} - quantized


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_case(executor: Executor, case: Case) -> None:
    errors = case.errors(*run_job(executor, case.job()))
    assert errors == []


@pytest.mark.parametrize("chunks", [2, 7])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_case_in_parts(case: Case, chunks: int, relaxed: Executor) -> None:
    errors = case.errors(*run_job(relaxed, case.job(chunks)))
    assert errors == []


def random_normal(executor: Executor, seed: int, count: int = 20_001, chunks: int = 1) -> np.ndarray:
    values = {"count": count, "seed": seed, "mean": 1.5, "std": 0.25}
    case = Case("random_normal", "", {}, {"y": np.zeros(count, np.float32)}, values)
    status, outputs = run_job(executor, case.job(chunks))
    assert status == 0
    return np.frombuffer(outputs[0][: 4 * count], np.float32).astype(np.float64)


def test_random_normal_is_normal_and_repeatable(executor: Executor) -> None:
    drawn = random_normal(executor, 7)
    deviations = (drawn - 1.5) / 0.25
    # Five standard errors of each estimate.
    assert abs(deviations.mean()) < 5 / np.sqrt(drawn.size)
    assert abs(deviations.std() - 1) < 5 / np.sqrt(2 * drawn.size)
    assert abs((deviations**3).mean()) < 5 * np.sqrt(15 / drawn.size)
    assert abs((deviations**4).mean() - 3) < 5 * np.sqrt(96 / drawn.size)
    assert abs(np.mean(np.abs(deviations) < 1) - 0.6827) < 5 * np.sqrt(0.22 / drawn.size)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 5 / np.sqrt(drawn.size)
    np.testing.assert_array_equal(random_normal(executor, 7), drawn)
    np.testing.assert_array_equal(random_normal(executor, 7, chunks=3), drawn)
    assert np.mean(random_normal(executor, 8) == drawn) < 0.01
    assert np.unique(random_normal(executor, -1, 64)).size > 60


def test_a_negative_operand_word_reads_its_register(executor: Executor) -> None:
    case = linear_case(5, 11, 9, bias=True)
    job = case.job()
    words = array("I", job.block[: 4 * job.words])
    op = OPS["linear"]
    at = {operand.name: 2 + i for i, operand in enumerate(op.operands)}
    registers = array("i", range(1000, 1000 + REGISTERS))
    for name, register in (("rows", 0), ("columns", 1), ("inner", REGISTERS - 1)):
        words[at[name]] = (-1 - register) & 0xFFFFFFFF
        registers[register] = int(case.values[name])
    block = bytearray(job.block)
    block[: 4 * job.words] = words.tobytes()
    block[job.registers : job.registers + 4 * REGISTERS] = registers.tobytes()
    assert not case.errors(*run_job(executor, job._replace(block=bytes(block))))


def test_instructions_run_in_order_up_to_the_failing_one(executor: Executor) -> None:
    lookup, refusing = CASES["embedding-11x5-7-rows"], CASES["embedding-refuses-11-0"]
    cases = [lookup, linear_case(3, 8, 4), refusing, linear_case(2, 8, 3)]
    status, outputs = run_job(executor, assemble(cases))
    assert status == 1 + OPS["embedding"].length + OPS["linear"].length
    assert not cases[0].errors(0, outputs[:1])
    assert not cases[1].errors(0, outputs[1:2])
    # Neither the refusing instruction nor what follows it has written anything.
    assert set(outputs[2]) == set(outputs[3]) == {0xA5}


def test_an_empty_program_succeeds(executor: Executor) -> None:
    assert run_job(executor, Job(bytes(512), 0, [], 0, [])) == (0, [])


@pytest.mark.parametrize("name", ["reference", *VARIANTS])
def test_memory_grows_and_keeps_its_contents(name: str) -> None:
    executor = opened(name)
    case = linear_case(5, 11, 9, bias=True)
    first = executor.allocate(1000)
    executor.write(first, bytes(range(200)) * 5)
    before = executor.size
    large = executor.allocate(before + 3 * MIB)
    assert executor.size >= large + before + 3 * MIB
    assert executor.size % 65536 == 0
    executor.write(large + before + 3 * MIB - 4, b"tail")
    assert executor.read(large + before + 3 * MIB - 4, 4) == b"tail"
    assert executor.read(first, 1000) == bytes(range(200)) * 5
    assert not case.errors(*run_job(executor, case.job()))
    executor.free(first)
    executor.free(large)
    assert executor.used_bytes == 0
    executor.close()


@pytest.mark.parametrize("name", VARIANTS)
def test_addresses_over_2_gib_work(name: str) -> None:
    executor = opened(name)
    executor.allocate(2**31)
    case = linear_case(7, 13, 5, bias=True, residual=True, activation="gelu")
    assert executor.allocate(64) > 2**31
    assert not case.errors(*run_job(executor, case.job()))
    executor.close()


@pytest.mark.parametrize("name", ["reference", "relaxed", "simd_threads"])
def test_memory_that_cannot_grow_raises_and_the_next_call_works(name: str) -> None:
    executor = opened(name)
    size = executor.size
    with pytest.raises(OutOfMemoryError) as caught:
        executor.allocate(2**32)
    assert caught.value.code == "out_of_memory"
    assert caught.value.details["needed"] >= 2**32 > caught.value.details["available"]
    assert executor.size == size
    case = linear_case(2, 8, 4)
    assert not case.errors(*run_job(executor, case.job()))
    executor.close()


@pytest.fixture
def settings() -> Iterator[None]:
    yield
    env.wasm.reset()


@pytest.mark.usefixtures("settings")
def test_max_memory_limits_growth() -> None:
    env.wasm.max_memory = 8 * MIB
    executor = WasmExecutor()
    executor.allocate(5 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        executor.allocate(4 * MIB)
    assert caught.value.details["available"] == 8 * MIB
    executor.allocate(2 * MIB)
    assert executor.size <= 8 * MIB
    executor.close()
    env.wasm.max_memory = MIB
    with pytest.raises(ConfigError, match="max_memory"):
        WasmExecutor()


def test_a_trap_raises_and_the_next_call_works() -> None:
    executor = WasmExecutor()
    case = linear_case(2, 8, 4)
    executor.grow(4 * MIB)
    outside = case.job()._replace(relocations=[])
    far = bytearray(outside.block)
    far[8:12] = (2**32 - 64).to_bytes(4, "little")  # y of `linear`
    for _ in range(3):
        with pytest.raises(KernelError):
            run_job(executor, outside._replace(block=bytes(far)))
    assert not case.errors(*run_job(executor, case.job()))
    executor.close()


@pytest.mark.usefixtures("settings")
def test_the_setting_chooses_the_variant() -> None:
    assert wasm.config()["variant"] == "relaxed"
    env.wasm.variant = "simd"
    assert wasm.config()["variant"] == "simd"
    executor = WasmExecutor()
    assert executor.variant == "simd"
    executor.close()
    env.wasm.variant = "avx"
    with pytest.raises(ConfigError, match="simd_threads"):
        WasmExecutor()


@pytest.mark.usefixtures("settings")
def test_a_changed_setting_is_for_those_that_come_after() -> None:
    first = acquire("wasm")
    env.wasm.variant = "simd"
    second = acquire("wasm")
    assert isinstance(first, WasmExecutor)
    assert isinstance(second, WasmExecutor)
    assert (first.variant, second.variant) == ("relaxed", "simd")
    env.wasm.variant = None
    assert acquire("wasm") is first
    for used in (first, first, second):
        release(used)
    assert first.closed
    assert second.closed


@pytest.mark.usefixtures("settings")
def test_an_engine_without_relaxed_simd_gets_the_plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(wasm.FEATURE_PROBES, "relaxed", b"\0asm\1\0\0\0\xff")
    executor = WasmExecutor()
    assert executor.variant == "simd"
    executor.close()
    with pytest.raises(UnsupportedError, match="relaxed"):
        WasmExecutor(variant="relaxed")


def test_an_engine_that_fails_the_self_test_gets_the_plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = type(wasm.host().instantiate(wasm.kernels("simd"), False, 32, 64))
    call = instance.call
    monkeypatch.setattr(instance, "call", lambda self, name, *a: 0 if name == "probe_relaxed" else call(self, name, *a))
    executor = WasmExecutor()
    assert executor.variant == wasm.config()["variant"] == "simd"
    executor.close()
    with pytest.raises(UnsupportedError, match="relaxed"):
        WasmExecutor(variant="relaxed")


def test_show_config_names_every_op(capsys: pytest.CaptureFixture[str]) -> None:
    wasm.show_config()
    printed = capsys.readouterr().out
    assert "relaxed" in printed
    assert "\nthreads: 1 of " in printed
    assert all(f"\n{op} " in printed for op in OPS)


@pytest.mark.parametrize(("variant", "tile"), [("relaxed", "6x8"), ("simd", "6x4")])
def test_kernel_names_tell_dtype_op_tile_and_instructions(
    variant: str, tile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env.wasm, "variant", variant)
    names = {row["op"]: row["kernel"] for row in wasm.config()["kernels"]}
    assert names["linear"] == f"f32_linear_6x8_{variant}"
    assert names["linear_q4"] == f"q4_linear_{tile}_{variant}"
    assert names["layer_norm"] == f"f32_layer_norm_{variant}"
    assert len(set(names.values())) == len(OPS)


def test_show_config_tells_the_threads(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wasm.env.wasm, "num_threads", 2)
    wasm.show_config()
    printed = capsys.readouterr().out
    assert "\nthreads: 2 of " in printed
    assert "relaxed_threads of" in printed


def test_a_closed_executor_refuses() -> None:
    for executor in (ReferenceExecutor(), WasmExecutor()):
        executor.closed = True
        executor.close()
        with pytest.raises(DisposedError):
            executor.allocate(64)
        assert executor.size == 0


def test_write_takes_any_contiguous_buffer(executor: Executor) -> None:
    address = executor.allocate(256)
    buffers: list[Any] = [b"abcd", bytearray(b"abcd"), memoryview(b"xabcd")[1:], normal(2, 3), array("i", [1, -2]), b""]
    for data in buffers:
        executor.write(address, data)
        expected = memoryview(data).tobytes()
        assert executor.read(address, len(expected)) == expected
    executor.free(address)
