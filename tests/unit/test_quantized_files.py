"""Quantised files: the format of this library, those of others by packers written down here, and which one is taken."""

import json
from functools import reduce
from typing import Any

import numpy as np
import pytest

from inpage import nn
from inpage.checkpoint import CheckpointWriter, LoadingInfo, Transpose, WeightConverter, load_weights
from inpage.checkpoint import bundles as bundles_module
from inpage.checkpoint import writer as writer_module
from inpage.errors import (
    CheckpointError,
    FileNotFoundInRepositoryError,
    KernelError,
    OutOfMemoryError,
    UnsupportedError,
)
from inpage.executors import acquire
from inpage.executors.base import Executor
from inpage.models.configuration import PreTrainedConfig
from inpage.models.modeling import PreTrainedModel
from inpage.runtime import finish
from tests.checkpoints import Array, MemoryRepository, bfloat16, encode

RNG = np.random.default_rng(11)
ROWS, INNER = 24, 256
SINGLE = "model.safetensors"


class Tiny(PreTrainedModel):
    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.norm = nn.LayerNorm(5)
        self.linear = nn.Linear(INNER, ROWS)
        self.odd = nn.Linear(37, 11, bias=False)


class Turned(Tiny):
    """Its checkpoints have the weight of the layer as [in, out]."""

    weight_conversions = (WeightConverter((r"^linear\.weight$",), ("linear.weight",), (Transpose(),)),)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles_module, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(writer_module, "BLOCK_BYTES", 1000)


def plain() -> dict[str, Array]:
    """Values of all parameters but linear.weight."""
    shapes = {"norm.weight": (5,), "norm.bias": (5,), "linear.bias": (ROWS,), "odd.weight": (11, 37)}
    return {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def floats() -> dict[str, Array]:
    return plain() | {"linear.weight": RNG.normal(size=(ROWS, INNER)).astype(np.float32)}


class Loaded:
    """A `Tiny` filled from files; freed at the end of the block."""

    def __init__(
        self,
        executor: Executor,
        files: dict[str, bytes],
        config: Any = None,
        model_class: type[PreTrainedModel] = Tiny,
        **options: Any,
    ) -> None:
        self.repository: Any = MemoryRepository(files, chunk=777)
        self.model = model_class(PreTrainedConfig(**({"quantization_config": config} if config else {})))
        self.model._executor = acquire(executor.name)
        self.info: LoadingInfo = finish(load_weights(self.model, self.repository, **options))

    def __enter__(self) -> "Loaded":
        return self

    def __exit__(self, *exception: object) -> None:
        for parameter in self.model.parameters():
            parameter.free()

    def values(self) -> dict[str, Array]:
        return {name: np.array(parameter) for name, parameter in self.model.named_parameters()}

    def layouts(self) -> dict[str, str]:
        return {name: parameter.layout for name, parameter in self.model.named_parameters()}

    def file(self) -> bytes:
        writer = CheckpointWriter(self.model)
        data = b"".join(writer.pieces())
        assert len(data) == writer.nbytes
        return data


def fails(error: type[Exception], match: str, executor: Executor, *arguments: Any, **options: Any) -> Any:
    with pytest.raises(error, match=match) as caught:
        Loaded(executor, *arguments, **options)
    return caught.value


# --- the format of this library ---------------------------------------------------------------------------------------


def header_of(data: bytes) -> dict[str, Any]:
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def tensor(data: bytes, name: str) -> Array:
    info = header_of(data)[name]
    start, end = (8 + int.from_bytes(data[:8], "little") + at for at in info["data_offsets"])
    dtype = {"F32": "f4", "F16": "f2", "I8": "i1", "U8": "u1"}[info["dtype"]]
    return np.frombuffer(data[start:end], dtype).reshape(info["shape"])


def dequantised(data: bytes, name: str, inner: int) -> Array:
    """A weight of a file by what its documentation says."""
    layout = json.loads(header_of(data)["__metadata__"]["inpage.quantization"])[name]
    q, scale = tensor(data, name), tensor(data, f"{name}.scale").astype(np.float64)
    if layout["layout"] in ("q4", "q4z"):
        q = np.stack([q & 15, q >> 4], 2).reshape(len(q), -1)[:, :inner].astype(np.int64)
    q = q - (8 if layout["layout"] == "q4" else 0)
    scale = scale.reshape(len(q), -1)
    values = q * np.repeat(scale, layout["group_size"], 1)[:, :inner]
    if layout["layout"] == "q8g":
        two, whole = np.array([[1, 1], [1, -1]]), inner // 32 * 32
        matrix = reduce(np.kron, [two] * 5) / 4
        values[:, :whole] = (values[:, :whole].reshape(len(q), -1, 32) @ matrix).reshape(len(q), whole)
    if layout["layout"] == "q4z":
        values = values + np.repeat(tensor(data, f"{name}.offset").astype(np.float64), 32, 1)[:, :inner]
    return values


@pytest.mark.parametrize("dtype", ["q8", "q8g", "q4", "q4z", "fp16"])
def test_written_and_read_again(executor: Executor, dtype: str) -> None:
    with Loaded(executor, {SINGLE: encode(floats())}, dtype=dtype) as made:
        data, values, layouts = made.file(), made.values(), made.layouts()
    if dtype == "fp16":
        assert header_of(data)["linear.weight"]["dtype"] == "F16"
        np.testing.assert_array_equal(tensor(data, "odd.weight"), values["odd.weight"])
    else:
        for name, inner in (("linear.weight", INNER), ("odd.weight", 37)):
            np.testing.assert_allclose(dequantised(data, name, inner), values[name], rtol=1e-6, atol=1e-7)
    with Loaded(executor, {f"model.{dtype}.safetensors": data}, dtype=dtype) as again:
        assert again.layouts() == layouts
        assert again.info == LoadingInfo()
        assert again.file() == data
        for name, expected in values.items():
            np.testing.assert_array_equal(again.values()[name], expected)


def test_tensors_in_any_order(executor: Executor) -> None:
    with Loaded(executor, {SINGLE: encode(floats())}, dtype="q4z") as made:
        data, values = made.file(), made.values()
    header = header_of(data)
    names = sorted(header.keys() - {"__metadata__"})  # quants before their scales
    other = encode({name: tensor(data, name) for name in names}, __metadata__=header["__metadata__"])
    with Loaded(executor, {"model.q4z.safetensors": other}, dtype="q4z") as again:
        np.testing.assert_array_equal(again.values()["linear.weight"], values["linear.weight"])


def test_mixed_layouts_stay_as_they_are(executor: Executor) -> None:
    dtype = {"odd.*": "fp32", "*": "q4"}
    with Loaded(executor, {SINGLE: encode(floats())}, dtype=dtype) as made:
        data, values = made.file(), made.values()
    with Loaded(executor, {"model.q4.safetensors": data}, dtype="q4") as again:
        assert again.layouts()["odd.weight"] == "panels"
        np.testing.assert_array_equal(again.values()["odd.weight"], values["odd.weight"])


@pytest.mark.parametrize("dtype", ["q4", "fp16", {"linear.*": "fp32", "*": "q8"}])
def test_weights_are_never_turned_twice(executor: Executor, dtype: Any) -> None:
    plain_values = plain()
    values = plain_values | {"linear.weight": RNG.normal(size=(ROWS, INNER)).astype(np.float32)}
    turned = values | {"linear.weight": values["linear.weight"].T.copy()}
    with Loaded(executor, {SINGLE: encode(values)}, dtype=dtype) as loaded:
        expected = loaded.values()["linear.weight"]
    with Loaded(executor, {SINGLE: encode(turned)}, model_class=Turned, dtype=dtype) as made:
        np.testing.assert_array_equal(made.values()["linear.weight"], expected)
        data = made.file()
    with Loaded(executor, {SINGLE: data}, model_class=Turned) as again:
        np.testing.assert_array_equal(again.values()["linear.weight"], expected)
    weight = Weight(32, False)
    with Loaded(executor, {SINGLE: encode(plain_values | weight.gptq())}, GPTQ, Turned) as published:
        np.testing.assert_allclose(published.values()["linear.weight"], weight.values(), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inpage.format": "1"}, "format version '1'"),
        ({"inpage.quantization": "["}, "malformed"),
        ({"inpage.quantization": "[" * 100_000}, "malformed"),
        ({"inpage.quantization": '{"linear.weight": {"layout": "q3", "group_size": 32}}'}, "'q3'"),
        ({"inpage.quantization": '{"linear.weight": {"layout": "q4", "group_size": 64}}'}, "groups of 64"),
        ({"inpage.quantization": '{"absent": {"layout": "q4", "group_size": 32}}'}, "lacks the matrix 'absent'"),
        ({"inpage.quantization": '{"linear.weight": {"layout": "q4z", "group_size": 32}}'}, "linear.weight.offset"),
    ],
)
def test_broken_files(executor: Executor, change: dict[str, str], message: str) -> None:
    with Loaded(executor, {SINGLE: encode(floats())}, dtype="q4") as made:
        data = made.file()
    header = header_of(data)
    broken = encode(
        {name: tensor(data, name) for name in header if name != "__metadata__"},
        __metadata__=header["__metadata__"] | change,
    )
    fails(CheckpointError, message, executor, {"model.q4.safetensors": broken}, dtype="q4")


# --- which file -------------------------------------------------------------------------------------------------------


def test_what_a_repository_offers_is_preferred(executor: Executor) -> None:
    with Loaded(executor, {SINGLE: encode(floats())}, dtype="q8g") as made:
        data, values = made.file(), made.values()
    with Loaded(executor, {SINGLE: encode(floats()), "model.q8g.safetensors": data}, dtype="q8g") as loaded:
        np.testing.assert_array_equal(loaded.values()["odd.weight"], values["odd.weight"])
        assert {name for name, _, _ in loaded.repository.streamed} == {"model.q8g.safetensors"}
    for dtype in ("auto", None):
        with Loaded(executor, {"model.q8g.safetensors": data}, dtype=dtype) as loaded:
            assert loaded.layouts()["linear.weight"] == "q8g"


def test_halves_are_a_source(executor: Executor) -> None:
    halves = {"model.fp16.safetensors": encode({name: v.astype(np.float16) for name, v in floats().items()})}
    for dtype, layout in (("q4", "q4"), ("fp32", "panels"), ("fp16", "f16"), (None, "f16")):
        with Loaded(executor, halves, dtype=dtype) as loaded:
            assert loaded.layouts()["linear.weight"] == layout


def test_halves_of_this_library_are_a_source_under_any_name(executor: Executor) -> None:
    with Loaded(executor, {SINGLE: encode(floats())}, dtype="fp16") as made:
        data = made.file()
    for dtype, layout in (("q4", "q4"), ({"*": "q8"}, "q8"), ("fp32", "panels"), ("fp16", "f16"), (None, "f16")):
        with Loaded(executor, {SINGLE: data}, dtype=dtype) as loaded:
            assert loaded.layouts()["linear.weight"] == layout


def test_a_dtype_that_cannot_be_had(executor: Executor) -> None:
    with Loaded(executor, {SINGLE: encode(floats())}, dtype="q4") as made:
        data = made.file()
    error = fails(UnsupportedError, "cannot give dtype 'q8'", executor, {"model.q4.safetensors": data}, dtype="q8")
    assert error.details["tried"] == ["model.q8.safetensors", SINGLE, "model.safetensors.index.json"]
    assert error.details["existing"] == ["model.q4.safetensors"]
    fails(UnsupportedError, "has its weights in q4", executor, {SINGLE: data}, dtype="fp32")
    fails(UnsupportedError, "does not say", executor, {"model.q4.safetensors": encode(floats())}, dtype="q4")
    fails(FileNotFoundInRepositoryError, "model.q4.safetensors", executor, {}, dtype="q4")


class Headed(PreTrainedModel):
    """Has an output layer, which q4 spares."""

    tied_weights_keys = {"output.weight": "table.weight"}  # noqa: RUF012

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.table = nn.Embedding(16, 64)
        self.linear = nn.Linear(64, 64, bias=False)
        self.output = nn.Linear(64, 16, bias=False)


def test_layouts_that_stand_for_a_dtype(executor: Executor) -> None:
    values = {"table.weight": RNG.normal(size=(16, 64)), "linear.weight": RNG.normal(size=(64, 64))}
    floats = {SINGLE: encode({name: value.astype(np.float32) for name, value in values.items()})}
    with Loaded(executor, floats, model_class=Headed, dtype="q4") as made:
        data, layouts = made.file(), made.layouts()
        assert (layouts["linear.weight"], layouts["output.weight"]) == ("q4", "q8g")
    for name in (SINGLE, "model.q4.safetensors"):
        with Loaded(executor, {name: data}, model_class=Headed, dtype="q4") as loaded:
            assert loaded.layouts() == layouts
    for name, dtype in ((SINGLE, "q8g"), ("model.q8.safetensors", "q8"), ("model.q8g.safetensors", "q8g")):
        fails(UnsupportedError, "has its weights in q4", executor, {name: data}, model_class=Headed, dtype=dtype)
    mixed = {"linear": "q8", "*": "q4"}
    fails(UnsupportedError, "'linear': 'q8'", executor, {SINGLE: data}, model_class=Headed, dtype=mixed)


# --- what others publish ----------------------------------------------------------------------------------------------


def words(nibbles: Array) -> Array:
    """Eight nibbles along the last axis as one int32, the first in the lowest bits."""
    groups = nibbles.reshape(*nibbles.shape[:-1], -1, 8).astype(np.uint64)
    return (groups << (4 * np.arange(8, dtype=np.uint64))).sum(-1).astype(np.uint32).view(np.int32)


class Weight:
    """Random 4-bit weights: w = scale * (q - zero) for q in 0 .. 15, by groups."""

    def __init__(self, group: int, symmetric: bool, scale: str = "float16") -> None:
        self.group = group
        self.q = RNG.integers(0, 16, (ROWS, INNER))
        shape = (ROWS, INNER // group)
        self.zero = np.full(shape, 8) if symmetric else RNG.integers(1, 16, shape)
        self.scale = RNG.uniform(0.001, 0.02, shape).astype(np.float16)
        if scale == "bfloat16":
            self.scale = (bfloat16(self.scale.astype(np.float32)).astype(np.uint32) << 16).view(np.float32)

    def values(self) -> Array:
        """The weights, the product of scale and zero point rounded to float16 if there are zero points."""
        product = (self.scale.astype(np.float64) * self.zero).astype(np.float16).astype(np.float64)
        if (self.zero == 8).all():
            product = self.scale.astype(np.float64) * 8
        scale, product = (np.repeat(each.astype(np.float64), self.group, 1) for each in (self.scale, product))
        return (self.q * scale - product).astype(np.float32)

    def stored_scale(self) -> Array:
        return self.scale if self.scale.dtype == np.float16 else bfloat16(self.scale)

    def gptq(self, subtract: int = 1) -> dict[str, Array]:
        """AutoGPTQ: rows of eight columns each, everything transposed, zero points less one."""
        return {
            "linear.qweight": words(self.q).T.copy(),
            "linear.qzeros": words((self.zero - subtract).T),
            "linear.scales": self.stored_scale().T.copy(),
            "linear.g_idx": (np.arange(INNER) // self.group).astype(np.int32),
        }

    def awq(self) -> dict[str, Array]:
        """AutoAWQ, gemm: eight rows a word in the order 0 2 4 6 1 3 5 7."""
        order = np.arange(ROWS).reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(-1)
        return {
            "linear.qweight": words(self.q.T[:, order]),
            "linear.qzeros": words(self.zero.T[:, order]),
            "linear.scales": self.stored_scale().T.copy(),
        }

    def compressed(self) -> dict[str, Array]:
        """compressed-tensors, pack-quantized: signed values plus 8, zero points packed along the rows."""
        tensors = {
            "linear.weight_packed": words(self.q),
            "linear.weight_scale": self.stored_scale(),
            "linear.weight_shape": np.array([ROWS, INNER], np.int64),
        }
        if not (self.zero == 8).all():
            tensors["linear.weight_zero_point"] = words(self.zero.T).T.copy()
        return tensors


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
SCHEME = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
COMPRESSED = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": SCHEME}},
}  # fmt: skip


def check(executor: Executor, tensors: dict[str, Array], config: dict[str, Any], layout: str, values: Array) -> None:
    files = {SINGLE: encode(plain() | tensors)}
    with Loaded(executor, files, config, dtype=None) as loaded:
        assert loaded.layouts()["linear.weight"] == layout
        assert loaded.info == LoadingInfo()
        np.testing.assert_allclose(loaded.values()["linear.weight"], values, rtol=0, atol=1e-8)


@pytest.mark.parametrize("scale", ["float16", "bfloat16"])
@pytest.mark.parametrize("group", [32, 128, INNER])
@pytest.mark.parametrize("symmetric", [True, False])
def test_published_4_bits(executor: Executor, symmetric: bool, group: int, scale: str) -> None:
    weight = Weight(group, symmetric, scale)
    layout = "q4" if symmetric else "q4z"
    size = -1 if group == INNER else group
    for version, subtract in (("gptq", 1), ("gptq_v2", 0)):
        config = GPTQ | {"group_size": size, "sym": symmetric, "checkpoint_format": version}
        check(executor, weight.gptq(subtract), config, layout, weight.values())
    check(executor, weight.compressed(), COMPRESSED, layout, weight.values())
    if not symmetric:
        check(executor, weight.awq(), AWQ | {"group_size": group}, layout, weight.values())


@pytest.mark.parametrize("shape", [(ROWS, 1), (ROWS,)])
def test_published_8_bits(executor: Executor, shape: tuple[int, ...]) -> None:
    q = RNG.integers(-128, 128, (ROWS, INNER)).astype(np.int8)
    scale = RNG.uniform(0.001, 0.02, shape).astype(np.float32)
    half = bfloat16(scale)
    scale = (half.astype(np.uint32) << 16).view(np.float32)
    groups = {"group_0": {"weights": SCHEME | {"num_bits": 8}}}
    config = COMPRESSED | {"format": "int-quantized", "config_groups": groups}
    tensors = {"linear.weight": q, "linear.weight_scale": half}
    check(executor, tensors, config, "q8", q * scale.reshape(ROWS, 1))


def test_permuted_columns(executor: Executor) -> None:
    tensors = Weight(32, False).gptq()
    config = GPTQ | {"desc_act": True}
    with Loaded(executor, {SINGLE: encode(plain() | tensors)}, config) as loaded:  # in order all the same
        assert loaded.layouts()["linear.weight"] == "q4z"
    tensors["linear.g_idx"] = tensors["linear.g_idx"][::-1].copy()
    fails(UnsupportedError, "permuted", executor, {SINGLE: encode(plain() | tensors)}, config)


@pytest.mark.parametrize(
    ("config", "tensors", "error", "message"),
    [
        ({"quant_method": "bitsandbytes"}, {}, UnsupportedError, "'bitsandbytes'.*compressed-tensors, gptq, awq"),
        (GPTQ | {"bits": 3}, {}, UnsupportedError, "3 bits"),
        (GPTQ | {"checkpoint_format": "marlin"}, {}, UnsupportedError, "'marlin'"),
        (GPTQ, {}, CheckpointError, "no tensor is"),
        (GPTQ | {"group_size": 64}, Weight(32, False).gptq(), CheckpointError, "linear.scales"),
        (GPTQ | {"group_size": 16}, Weight(16, False).gptq(), UnsupportedError, "multiples of 32"),
        (GPTQ | {"sym": True}, Weight(32, False).gptq(), KernelError, "pack_published"),
        (AWQ | {"version": "gemv"}, {}, UnsupportedError, "'gemv'"),
        (AWQ | {"zero_point": False}, {}, UnsupportedError, "without zero points"),
        (COMPRESSED | {"config_groups": {"a": {"weights": {"type": "float"}}}}, {}, UnsupportedError, "integers"),
        *(
            (COMPRESSED | {"config_groups": groups}, {}, CheckpointError, "config_groups")
            for groups in (3, {"a": 3}, {"a": {"weights": 3}})
        ),
        (COMPRESSED, Weight(16, True).compressed(), UnsupportedError, "multiples of 32"),
        (
            COMPRESSED,
            Weight(32, True).compressed() | {"linear.weight_scale": np.zeros((ROWS, 0), np.float16)},
            UnsupportedError,
            "do not divide the",
        ),
    ],
)
def test_what_cannot_be_read(
    executor: Executor, config: dict[str, Any], tensors: dict[str, Array], error: type[Exception], message: str
) -> None:
    fails(error, message, executor, {SINGLE: encode(plain() | tensors)}, config)


def test_a_published_layout_is_the_only_one(executor: Executor) -> None:
    files = {SINGLE: encode(plain() | Weight(32, False).awq())}
    for dtype in ("q4z", "q4"):
        with Loaded(executor, files, AWQ, dtype=dtype) as loaded:
            assert loaded.layouts()["linear.weight"] == "q4z"
    fails(UnsupportedError, "has its weights in q4z", executor, files, AWQ, dtype="fp32")


# --- zero points ------------------------------------------------------------------------------------------------------


def on_a_grid() -> dict[str, Array]:
    """Weights that were in 4 bits with zero points once, in groups of 32, as bfloat16 has them."""
    values = floats()
    for name in ("linear.weight", "odd.weight"):
        groups = [values[name][:, k : k + 32] for k in range(0, values[name].shape[1], 32)]
        lows = [group.min(1, keepdims=True) for group in groups]
        steps = [np.ptp(group, axis=1, keepdims=True) / 15 for group in groups]
        kept = [np.rint((g - low) / step) * step + low for g, low, step in zip(groups, lows, steps, strict=True)]
        values[name] = bfloat16(np.concatenate(kept, 1))
    return values


def test_q4_has_zero_points_where_the_weights_need_them(executor: Executor) -> None:
    values = on_a_grid()
    with Loaded(executor, {SINGLE: encode(values)}, dtype="q4") as loaded:
        assert loaded.layouts()["linear.weight"] == loaded.layouts()["odd.weight"] == "q4z"
        exact = (values["linear.weight"].astype(np.uint32) << 16).view(np.float32)
        found, data = loaded.values(), loaded.file()
        assert np.abs(found["linear.weight"] - exact).max() < 0.01 * np.abs(exact).max()
        samples = [(start, stop) for _, start, stop in loaded.repository.streamed if start and stop]
        assert 0 < len(samples) <= 4
        assert sum(stop - start for start, stop in samples) <= 2 * 8 * (INNER + 37)
    with Loaded(executor, {"model.q4.safetensors": data}, dtype="q4") as again:
        assert again.layouts()["linear.weight"] == "q4z"
        assert all(np.array_equal(value, found[name]) for name, value in again.values().items())


@pytest.mark.parametrize("dtype", ["q4", {"linear.*": "q4", "*": "q4"}])
def test_q4_is_symmetric_where_that_does_or_is_asked_for(executor: Executor, dtype: Any) -> None:
    values = floats() if dtype == "q4" else on_a_grid()
    with Loaded(executor, {SINGLE: encode(values)}, dtype=dtype) as loaded:
        assert loaded.layouts()["linear.weight"] == "q4"
        assert loaded.layouts()["odd.weight"] == ("q4" if dtype == "q4" else "q4z")


# --- memory -----------------------------------------------------------------------------------------------------------


def test_peak_is_the_weights_and_a_block(executor: Executor) -> None:
    with Loaded(executor, {SINGLE: encode(floats())}, dtype="q4") as made:
        data = made.file()
    before = executor.peak_bytes
    with Loaded(executor, {"model.q4.safetensors": data}, dtype="q4") as loaded:
        assert executor.peak_bytes == before
        assert loaded.model.get_memory_footprint() < 6000


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "q4"])
def test_peak_of_turned_weights_is_one_of_them_more(
    executor: Executor, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Large(PreTrainedModel):
        weight_conversions = Turned.weight_conversions

        def __init__(self, config: PreTrainedConfig) -> None:
            super().__init__(config)
            self.linear = nn.Linear(1024, 512, bias=False)

    values = RNG.normal(size=(1024, 512)).astype(np.float32)
    allocate, before = executor.allocate, executor.used_bytes
    peaks: list[int] = []

    def watched(nbytes: int) -> int:
        address = allocate(nbytes)
        peaks.append(executor.used_bytes - before)
        return address

    monkeypatch.setattr(executor, "allocate", watched)
    halves = {"linear.weight": bfloat16(values)}
    with Loaded(executor, {SINGLE: encode(halves)}, model_class=Large, dtype=dtype) as loaded:
        assert max(peaks) < loaded.model.get_memory_footprint() + halves["linear.weight"].nbytes + 10_000
        found = loaded.values()["linear.weight"]
    plain = {"linear.weight": (bfloat16(values).astype(np.uint32) << 16).view(np.float32)}
    with Loaded(executor, {SINGLE: encode(plain)}, model_class=Large, dtype=dtype) as loaded:
        np.testing.assert_array_equal(loaded.values()["linear.weight"], found)


@pytest.mark.parametrize("dtype", ["fp32", "q4"])
def test_what_does_not_fit_is_told_in_full(executor: Executor, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Large(PreTrainedModel):
        def __init__(self, config: PreTrainedConfig) -> None:
            super().__init__(config)
            self.linear = nn.Linear(1024, 1024, bias=False)
            self.other = nn.Linear(1024, 1024, bias=False)

    from inpage.executors.pages import out_of_memory

    available = executor.size

    def refuse(nbytes: int) -> None:
        raise out_of_memory(nbytes, available)

    monkeypatch.setattr(executor, "grow", refuse)
    model = Large(PreTrainedConfig())
    model._executor = acquire(executor.name)
    repository: Any = MemoryRepository({SINGLE: encode({"linear.weight": np.zeros((1024, 1024), np.float32)})})
    with pytest.raises(OutOfMemoryError, match="do not fit") as caught:
        finish(load_weights(model, repository, dtype=dtype))
    least = 2 * (1 << 20) * (4 if dtype == "fp32" else 0.5625)
    assert caught.value.details["needed"] >= least
    assert caught.value.details["available"] <= available
    assert [stop for _, _, stop in repository.streamed if stop is None] == []
