"""Checkpoints: which files, what goes where, how it arrives, and that nothing is left behind when it fails."""

import json
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from inpage import nn
from inpage.checkpoint import (
    Concatenate,
    LoadingInfo,
    Split,
    Transpose,
    WeightConverter,
    WeightRenaming,
    check_dtype,
    load_weights,
    stream,
)
from inpage.checkpoint import transfer as transfer_module
from inpage.checkpoint.conversion import Layout, whole
from inpage.checkpoint.files import FIRST_READ, INDEX, SINGLE, read_headers
from inpage.errors import (
    CheckpointError,
    FileNotFoundInRepositoryError,
    MismatchedShapesError,
    OutOfMemoryError,
    UnsupportedError,
)
from inpage.executors import acquire
from inpage.executors.base import Executor
from inpage.hub.chunk import Chunk
from inpage.models.configuration import PreTrainedConfig
from inpage.models.modeling import PreTrainedModel
from inpage.runtime import finish
from tests.checkpoints import Array, MemoryRepository, bfloat16, encode

RNG = np.random.default_rng(1)
EXECUTORS = ("reference", "wasm")


class Base(PreTrainedModel):
    base_model_prefix = "base"

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.table = nn.Embedding(13, 6)
        self.LayerNorm = nn.LayerNorm(6)
        self.linear = nn.Linear(6, 11)


class Head(PreTrainedModel):
    """Has a base model, an output tied to the table, and a bias of its own."""

    base_model_prefix = "base"
    tied_weights_keys = {"output.weight": "base.table.weight", "output.bias": "bias"}  # noqa: RUF012

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.base = Base(config)
        self.output = nn.Linear(6, 13)
        self.bias = nn.Parameter((13,))


def tensors(prefix: str = "") -> dict[str, Array]:
    """Random values for all parameters of a `Base`."""
    shapes = {
        "table.weight": (13, 6),
        "LayerNorm.weight": (6,),
        "LayerNorm.bias": (6,),
        "linear.weight": (11, 6),
        "linear.bias": (11,),
    }
    return {prefix + name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def load(model: PreTrainedModel, executor: Executor, repository: Any, **options: Any) -> LoadingInfo:
    model._executor = acquire(executor.name)
    return finish(load_weights(model, repository, **options))


def load_files(model: PreTrainedModel, executor: Executor, values: dict[str, Array], **options: Any) -> LoadingInfo:
    return load(model, executor, MemoryRepository({SINGLE: encode(values)}), **options)


def free(model: PreTrainedModel) -> None:
    for parameter in model.parameters():
        parameter.free()


def values_of(model: PreTrainedModel) -> dict[str, Array]:
    return {name: parameter.numpy().copy() for name, parameter in model.named_parameters()}


def headers(files: dict[str, bytes]) -> Any:
    return finish(read_headers(MemoryRepository(files)))  # pyright: ignore[reportArgumentType]


# Which files


def test_header_needs_one_small_read() -> None:
    repository = MemoryRepository({SINGLE: encode({"x": np.zeros(1_000_000, np.float32)})})
    (file,) = finish(read_headers(repository))  # pyright: ignore[reportArgumentType]
    assert list(file.tensors) == ["x"]
    assert repository.streamed == [(SINGLE, 0, FIRST_READ)]


def test_long_header() -> None:
    values = {f"{'long' * 20}{i}": np.zeros(1, np.float32) for i in range(1000)}
    data = encode(values)
    assert int.from_bytes(data[:8], "little") > FIRST_READ
    (file,) = headers({SINGLE: data})
    assert file.tensors.keys() == values.keys()


def test_shards() -> None:
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}, "metadata": {"total_size": 8}}
    files = {
        INDEX: json.dumps(index).encode(),
        "m-1.safetensors": encode({"a": np.zeros(1, np.float32)}),
        "m-2.safetensors": encode({"b": np.zeros(1, np.float32)}),
    }
    assert [(file.name, list(file.tensors)) for file in headers(files)] == [
        ("m-1.safetensors", ["a"]),
        ("m-2.safetensors", ["b"]),
    ]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([], "no weight_map"),
        ({}, "no weight_map"),
        ({"weight_map": {}}, "no weight_map"),
        ({"weight_map": ["a"]}, "no weight_map"),
        ({"weight_map": {"a": 1}}, "no safetensors file beside it"),
        ({"weight_map": {"a": "../other/m.safetensors"}}, "no safetensors file beside it"),
        ({"weight_map": {"a": "/etc/m.safetensors"}}, "no safetensors file beside it"),
        ({"weight_map": {"a": "https://host/m.safetensors"}}, "no safetensors file beside it"),
        ({"weight_map": {"a": "m.bin"}}, "no safetensors file beside it"),
        ({"weight_map": {"a": "m.safetensors", "c": "m.safetensors"}}, "'c' is in m.safetensors, but it is in none"),
        ({"weight_map": {"a": "m.safetensors", "b": "m.safetensors", "x": "n.safetensors"}}, "in both m.saf"),
        ({"weight_map": {"a": "o.safetensors", "b": "m.safetensors"}}, "'a' is in o.safetensors, but it is in m.saf"),
    ],
)
def test_broken_index(index: Any, message: str) -> None:
    zero = np.zeros(1, np.float32)
    files = {
        INDEX: json.dumps(index).encode(),
        "m.safetensors": encode({"a": zero, "b": zero}),
        "n.safetensors": encode({"x": zero, "b": zero}),
        "o.safetensors": encode({"y": zero}),
    }
    with pytest.raises(CheckpointError, match=message):
        headers(files)


def test_no_weights() -> None:
    with pytest.raises(
        FileNotFoundInRepositoryError, match=r"tried model\.safetensors, model\.safetensors\.index\.json"
    ):
        headers({"config.json": b"{}"})


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_pickled_weights_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match="pickled") as caught:
        headers({name: b"\x80"})
    assert "safetensors" in caught.value.hint


# Where tensors go


def check_values(model: PreTrainedModel, expected: dict[str, Array], tolerance: float = 0.0) -> None:
    found = values_of(model)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
def test_chunks_of_any_size(executor: Executor, chunk: int) -> None:
    values = tensors()
    model = Base(PreTrainedConfig())
    info = load(model, executor, MemoryRepository({SINGLE: encode(values)}, chunk=chunk))
    assert info == LoadingInfo()
    check_values(model, values)
    free(model)


@pytest.mark.parametrize("block", [1, 200, 1 << 22])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes_in_blocks(executor: Executor, dtype: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_module, "BLOCK_BYTES", block)
    values = tensors()
    stored = {k: bfloat16(v) if dtype == "bfloat16" else v.astype(dtype) for k, v in values.items()}
    expected = {
        k: (v.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else v.astype(np.float32)
        for k, v in stored.items()
    }
    model = Base(PreTrainedConfig())
    load_files(model, executor, stored)
    check_values(model, expected)
    free(model)


def test_padding_of_panels_is_zero(executor: Executor) -> None:
    model = Base(PreTrainedConfig())
    load_files(model, executor, tensors())
    weight = model.linear.weight
    assert weight.nbytes == 4 * 16 * 6
    packed = np.frombuffer(executor.read(weight.address, weight.nbytes), np.float32).reshape(2, 6, 8)
    assert not packed[1, :, 3:].any()
    free(model)


def test_staging_is_bounded(executor: Executor) -> None:
    """A matrix much larger than a block needs no more than a block beside it."""

    class Wide(PreTrainedModel):
        def __init__(self, config: PreTrainedConfig) -> None:
            super().__init__(config)
            self.linear = nn.Linear(1024, 8192, bias=False)

    model = Wide(PreTrainedConfig())
    values = RNG.normal(size=(8192, 1024)).astype(np.float32)
    load_files(model, executor, {"linear.weight": values})
    assert executor.peak_bytes < values.nbytes + transfer_module.BLOCK_BYTES + (1 << 20)
    check_values(model, {"linear.weight": values})
    free(model)


def test_shards_are_streamed_one_after_the_other(executor: Executor) -> None:
    values = tensors()
    first, second = dict(list(values.items())[:2]), dict(list(values.items())[2:])
    index = {"weight_map": dict.fromkeys(first, "a.safetensors") | dict.fromkeys(second, "b.safetensors")}
    files = {INDEX: json.dumps(index).encode(), "a.safetensors": encode(first), "b.safetensors": encode(second)}
    model = Base(PreTrainedConfig())
    load(model, executor, MemoryRepository(files, chunk=50))
    check_values(model, values)
    free(model)


def test_a_file_without_needed_tensors_is_not_fetched(executor: Executor) -> None:
    values = tensors()
    index = {"weight_map": dict.fromkeys(values, "a.safetensors") | {"junk": "b.safetensors"}}
    files = {
        INDEX: json.dumps(index).encode(),
        "a.safetensors": encode(values),
        "b.safetensors": encode({"junk": np.zeros(3, np.float32)}),
    }
    repository = MemoryRepository(files)
    model = Base(PreTrainedConfig())
    assert load(model, executor, repository).unexpected_keys == ["junk"]
    assert [name for name, _, stop in repository.streamed if stop is None] == ["a.safetensors"]
    free(model)


def test_prefix_is_added_and_removed(executor: Executor) -> None:
    inner = tensors()
    outer = {f"base.{name}": value for name, value in inner.items()}
    model = Base(PreTrainedConfig())
    assert load_files(model, executor, outer | {"bias": np.zeros(13, np.float32)}).unexpected_keys == ["bias"]
    check_values(model, inner)
    free(model)
    head = Head(PreTrainedConfig())
    with pytest.warns(UserWarning, match="bias"):
        info = load_files(head, executor, inner)
    assert info.missing_keys == ["bias", "output.bias"]
    check_values(head.base, inner)
    free(head)


def test_old_names_of_norms(executor: Executor) -> None:
    values = tensors()
    old = {name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): v for name, v in values.items()}
    assert "LayerNorm.gamma" in old
    model = Base(PreTrainedConfig())
    assert load_files(model, executor, old) == LoadingInfo()
    check_values(model, values)
    free(model)


def test_old_and_new_name_together(executor: Executor) -> None:
    values = tensors()
    with pytest.raises(CheckpointError, match=r"Two tensors .* 'LayerNorm\.weight'"):
        load_files(Base(PreTrainedConfig()), executor, values | {"LayerNorm.gamma": values["LayerNorm.weight"]})


# Ties


@pytest.mark.parametrize("stored", [("base.table.weight", "bias"), ("output.weight", "output.bias")])
def test_tied_weights_are_stored_once(executor: Executor, stored: tuple[str, str]) -> None:
    values = tensors("base.")
    table = values.pop("base.table.weight")
    bias = RNG.normal(size=13).astype(np.float32)
    model = Head(PreTrainedConfig())
    assert load_files(model, executor, values | {stored[0]: table, stored[1]: bias}) == LoadingInfo()
    check_values(
        model, values | {"base.table.weight": table, "output.weight": table, "bias": bias, "output.bias": bias}
    )
    assert model.output.weight is model.base.table.weight
    assert model.output.bias is model.bias
    assert model.num_parameters() == 13 * 6 + 13 + 2 * 6 + 11 * 6 + 11
    free(model)


def test_equal_copies_of_tied_weights_become_one(executor: Executor) -> None:
    values = tensors("base.") | {"bias": np.ones(13, np.float32), "output.bias": np.ones(13, np.float32)}
    values["output.weight"] = values["base.table.weight"]
    model = Head(PreTrainedConfig())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_files(model, executor, values) == LoadingInfo()
    assert model.output.weight is model.base.table.weight
    assert model.output.bias is model.bias
    check_values(model, values)
    free(model)


@pytest.mark.parametrize(
    ("dtype", "layout"), [("fp16", "f16"), ("q8", "q8"), ("q4", "q8g"), ({"output": "q4", "*": "q8"}, "q4")]
)
def test_equal_copies_become_one_in_any_dtype(executor: Executor, dtype: Any, layout: str) -> None:
    values = tensors("base.") | {"bias": np.ones(13, np.float32)}
    values["output.weight"] = values["base.table.weight"]
    model = Head(PreTrainedConfig())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_files(model, executor, values, dtype=dtype) == LoadingInfo()
    assert model.output.weight is model.base.table.weight
    assert model.output.weight.layout == layout
    free(model)


def test_equal_copies_in_halves_become_one(executor: Executor) -> None:
    values = tensors("base.") | {"bias": np.ones(13, np.float32)}
    values["output.weight"] = values["base.table.weight"]
    halves = encode({name: value.astype(np.float16) for name, value in values.items()})
    model = Head(PreTrainedConfig())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(model, executor, MemoryRepository({"model.fp16.safetensors": halves}), dtype="fp16")
    assert model.output.weight is model.base.table.weight
    assert model.output.weight.layout == "f16"
    free(model)


def test_different_values_are_not_tied(executor: Executor) -> None:
    values = tensors("base.") | {"bias": np.ones(13, np.float32), "output.bias": np.ones(13, np.float32)}
    values["output.weight"] = values["base.table.weight"] + np.float32(1e-6)
    model = Head(PreTrainedConfig())
    with pytest.warns(UserWarning, match="different values"):
        load_files(model, executor, values)
    assert model.output.weight is not model.base.table.weight
    check_values(model, values)
    free(model)


def test_no_ties_when_the_configuration_says_so(executor: Executor) -> None:
    values = tensors("base.")
    model = Head(PreTrainedConfig(tie_word_embeddings=False))
    with pytest.warns(UserWarning):
        info = load_files(model, executor, values)
    assert info.missing_keys == ["bias", "output.bias", "output.weight"]
    assert model.base.table.weight.layout == "rows"
    free(model)


# What is missing or does not fit


def test_missing_parameters_are_initialised(executor: Executor) -> None:
    class Big(PreTrainedModel):
        def __init__(self, config: PreTrainedConfig) -> None:
            super().__init__(config)
            self.table = nn.Embedding(301, 100)
            self.linear = nn.Linear(100, 301)
            self.norm = nn.LayerNorm(100)
            self.extra = nn.Parameter((5,))

    model = Big(PreTrainedConfig(initializer_range=0.5))
    with pytest.warns(UserWarning) as caught:
        info = load_files(model, executor, {})
    assert len(caught) == 1
    assert "table.weight" in str(caught[0].message)
    assert info.missing_keys == ["extra", "linear.bias", "linear.weight", "norm.bias", "norm.weight", "table.weight"]
    values = values_of(model)
    for name in ("table.weight", "linear.weight"):
        # 30,100 samples: the mean lies within 5 sigma of 0, the deviation within 5 of 0.5.
        assert abs(values[name].mean()) < 5 * 0.5 / np.sqrt(values[name].size)
        assert abs(values[name].std() - 0.5) < 5 * 0.5 / np.sqrt(2 * values[name].size)
    assert not np.array_equal(values["table.weight"], values["linear.weight"])
    assert (values["norm.weight"] == 1).all()
    assert not values["norm.bias"].any()
    assert not values["linear.bias"].any()
    assert not values["extra"].any()
    free(model)
    again = Big(PreTrainedConfig(initializer_range=0.5))
    with pytest.warns(UserWarning):
        load_files(again, executor, {})
    check_values(again, values)
    free(again)


def test_mismatched_shapes(executor: Executor) -> None:
    values = tensors() | {"linear.bias": np.zeros(12, np.float32)}
    with pytest.raises(MismatchedShapesError, match=r"linear\.bias: \[12\], expected \[11\]") as caught:
        load_files(Base(PreTrainedConfig()), executor, values)
    assert caught.value.details["mismatched_keys"] == [("linear.bias", (12,), (11,))]
    model = Base(PreTrainedConfig())
    with pytest.warns(UserWarning, match=r"linear\.bias"):
        info = load_files(model, executor, values, ignore_mismatched_sizes=True)
    assert info.mismatched_keys == [("linear.bias", (12,), (11,))]
    assert info.missing_keys == []
    check_values(model, values | {"linear.bias": np.zeros(11, np.float32)})
    free(model)


def test_integer_weights(executor: Executor) -> None:
    with pytest.raises(UnsupportedError, match=r"'linear\.weight' has dtype I8"):
        load_files(Base(PreTrainedConfig()), executor, tensors() | {"linear.weight": np.zeros((11, 6), np.int8)})


@pytest.mark.parametrize("dtype", [None, "auto", "fp32", "float32"])
def test_known_dtypes(dtype: str | None) -> None:
    check_dtype(dtype)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", ""])
def test_unknown_dtypes(dtype: str) -> None:
    with pytest.raises(UnsupportedError, match="fp32"):
        check_dtype(dtype)


# Failures


@pytest.mark.parametrize("error", [RuntimeError("broke"), KeyboardInterrupt()])
@pytest.mark.parametrize("fail_at", [0, 400, 900])
def test_memory_is_given_back_when_the_stream_fails(executor: Executor, fail_at: int, error: BaseException) -> None:
    repository = MemoryRepository({SINGLE: encode(tensors())}, chunk=64, fail_at=fail_at)
    repository.error = error
    with pytest.raises(type(error)):
        load(Base(PreTrainedConfig()), executor, repository)


def test_a_stream_that_ends_early(executor: Executor) -> None:
    class Cut(MemoryRepository):
        def stream(self, name: str, start: int = 0, stop: int | None = None) -> Any:
            return super().stream(name, start, len(self.files[name]) - 4 if stop is None else stop)

    with pytest.raises(CheckpointError, match="ended at byte"):
        load(Base(PreTrainedConfig()), executor, Cut({SINGLE: encode(tensors())}))


def test_what_does_not_fit_is_not_fetched(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nbytes: int) -> None:
        raise OutOfMemoryError("no")

    class Large(PreTrainedModel):
        def __init__(self, config: PreTrainedConfig) -> None:
            super().__init__(config)
            self.first = nn.Embedding(1, 6)
            self.second = nn.Embedding(1 << 20, 6)

    repository = MemoryRepository({SINGLE: encode({"first.weight": np.zeros((1, 6), np.float32)})})
    monkeypatch.setattr(executor, "grow", refuse)
    with pytest.raises(OutOfMemoryError):
        load(Large(PreTrainedConfig()), executor, repository)
    assert [stop for _, _, stop in repository.streamed if stop is None] == []


# Conversions


def test_layouts() -> None:
    a, b = whole("a", (2, 3)), whole("b", (4, 3))
    (joined,) = Concatenate(0)([a, b], [(6, 3)])
    assert joined.shape == (6, 3)
    assert [(p.tensor, p.origin) for p in joined.pieces] == [("a", (0, 0)), ("b", (2, 0))]
    first, second = Split(0)([joined], [(3, 3), (3, 3)])
    assert [(p.tensor, p.offset, p.shape, p.origin) for p in first.pieces] == [
        ("a", 0, (2, 3), (0, 0)),
        ("b", 0, (1, 3), (2, 0)),
    ]
    assert [(p.tensor, p.offset, p.shape, p.origin) for p in second.pieces] == [("b", 3, (3, 3), (0, 0))]
    for operation in (Transpose(), Concatenate(1), Split(1)):
        with pytest.raises(CheckpointError, match="too few dimensions"):
            WeightConverter(("a",), ("b",), (operation,)).convert([whole("a", (3,))], [(3, 1)])
    (turned,) = Transpose()([a], [(3, 2)])
    assert turned == Layout((3, 2), (a.pieces[0]._replace(shape=(3, 2), strides=(1, 3)),))


def test_operations_that_cannot_be() -> None:
    with pytest.raises(CheckpointError, match="cannot be concatenated"):
        Concatenate(0)([whole("a", (2, 3)), whole("b", (2, 4))], [(4, 3)])
    with pytest.raises(CheckpointError, match="cannot be split"):
        Split(0)([whole("a", (7, 3))], [(4, 3), (4, 3)])


class Attention(nn.Module):
    def __init__(self) -> None:
        self.q = nn.Linear(12, 12)
        self.kv = nn.Linear(12, 20)
        self.table = nn.Embedding(10, 4)
        self.parts = nn.Embedding(3, 8)


class Converted(PreTrainedModel):
    weight_conversions = (
        WeightRenaming(r"^blocks\.", "layers."),
        WeightConverter((r"qkv\.weight",), ("q.weight", "kv.weight"), (Transpose(), Split(0))),
        WeightConverter((r"qkv\.bias",), ("q.bias", "kv.bias"), (Split(0),)),
        WeightConverter((r"left\.weight", r"right\.weight"), ("table.weight",), (Concatenate(1),)),
        WeightConverter((r"top\.weight", r"bottom\.weight"), ("parts.weight",), (Concatenate(0),)),
    )

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList(Attention() for _ in range(2))


class Joined(PreTrainedModel):
    """The other way round: parts become one weight in panels."""

    weight_conversions = (
        WeightConverter((r"\.q\.", r"\.k\.", r"\.v\."), (".qkv.",), (Concatenate(0),)),
        WeightConverter((r"\.w",), (".back.weight",), (Transpose(),)),
    )

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.layer = nn.ModuleList([nn.Module()])
        self.layer[0].qkv = nn.Linear(7, 13)
        self.layer[0].back = nn.Embedding(5, 9)


@pytest.mark.parametrize("half", [False, True])
def test_converted_checkpoint(executor: Executor, half: bool) -> None:
    stored: dict[str, Array] = {}
    expected: dict[str, Array] = {}
    for i in range(2):
        qkv, bias = RNG.normal(size=(12, 32)), RNG.normal(size=32)
        left, right = RNG.normal(size=(10, 1)), RNG.normal(size=(10, 3))
        top, bottom = RNG.normal(size=(1, 8)), RNG.normal(size=(2, 8))
        values = {
            "qkv.weight": qkv, "qkv.bias": bias, "left.weight": left, "right.weight": right,
            "top.weight": top, "bottom.weight": bottom,
        }  # fmt: skip
        stored |= {f"blocks.{i}.{name}": v.astype(np.float16 if half else np.float32) for name, v in values.items()}
        s = {name: stored[f"blocks.{i}.{name}"].astype(np.float32) for name in values}
        expected |= {
            f"layers.{i}.q.weight": s["qkv.weight"].T[:12],
            f"layers.{i}.q.bias": s["qkv.bias"][:12],
            f"layers.{i}.kv.weight": s["qkv.weight"].T[12:],
            f"layers.{i}.kv.bias": s["qkv.bias"][12:],
            f"layers.{i}.table.weight": np.concatenate([s["left.weight"], s["right.weight"]], 1),
            f"layers.{i}.parts.weight": np.concatenate([s["top.weight"], s["bottom.weight"]]),
        }
    model = Converted(PreTrainedConfig())
    assert load(model, executor, MemoryRepository({SINGLE: encode(stored)}, chunk=100)) == LoadingInfo()
    check_values(model, expected)
    free(model)


def test_joined_checkpoint(executor: Executor) -> None:
    parts = {name: RNG.normal(size=(rows, 7)).astype(np.float32) for name, rows in (("q", 7), ("k", 3), ("v", 3))}
    biases = {name: RNG.normal(size=len(part)).astype(np.float32) for name, part in parts.items()}
    back = RNG.normal(size=(9, 5)).astype(np.float32)
    stored = {f"layer.0.{name}.weight": parts[name] for name in "vqk"} | {"layer.0.w": back}
    stored |= {f"layer.0.{name}.bias": biases[name] for name in "kvq"}
    model = Joined(PreTrainedConfig())
    assert load_files(model, executor, stored) == LoadingInfo()
    check_values(
        model,
        {
            "layer.0.qkv.weight": np.concatenate([parts[name] for name in "qkv"]),
            "layer.0.qkv.bias": np.concatenate([biases[name] for name in "qkv"]),
            "layer.0.back.weight": back.T,
        },
    )
    free(model)


@pytest.mark.parametrize("left", [40, 120, 340])
def test_memory_is_given_back_when_parts_fail_to_come(executor: Executor, left: int) -> None:
    """The stream breaks within the last, the second and the first of three parts."""
    parts = {f"layer.0.{name}.weight": np.zeros((rows, 7), np.float32) for name, rows in (("q", 7), ("k", 3), ("v", 3))}
    data = encode(parts)
    repository = MemoryRepository({SINGLE: data}, chunk=20, fail_at=len(data) - left)
    with pytest.raises(RuntimeError, match="broke"):
        load(Joined(PreTrainedConfig()), executor, repository)


def test_a_part_is_missing(executor: Executor) -> None:
    stored = {f"layer.0.{name}.weight": np.zeros((4, 7), np.float32) for name in "qk"}
    model = Joined(PreTrainedConfig())
    with pytest.warns(UserWarning):
        info = load_files(model, executor, stored)
    assert info.missing_keys == ["layer.0.back.weight", "layer.0.qkv.bias", "layer.0.qkv.weight"]
    assert info.error_msgs == [r"layer.0.qkv.weight: no tensors for \.v\."]
    free(model)


def test_a_name_that_needs_no_conversion(executor: Executor) -> None:
    """A checkpoint that has the model's own names loads, whatever the conversions say."""
    stored = {
        "layer.0.qkv.weight": RNG.normal(size=(13, 7)).astype(np.float32),
        "layer.0.qkv.bias": RNG.normal(size=13).astype(np.float32),
        "layer.0.back.weight": RNG.normal(size=(5, 9)).astype(np.float32),
    }
    model = Joined(PreTrainedConfig())
    assert load_files(model, executor, stored) == LoadingInfo()
    check_values(model, stored)
    free(model)


def test_reading_pauses_after_each_slice_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    class Source:
        async def size(self, filename: str) -> int:
            return 12

        @asynccontextmanager
        async def stream(self, *_: Any) -> AsyncIterator[Any]:
            async def chunks() -> AsyncIterator[Chunk]:
                for _ in range(6):
                    yield Chunk.from_bytes(b"ab")

            yield chunks()

    done: list[str] = []

    async def pause() -> None:
        done.append("pause")

    monkeypatch.setattr(stream, "TURN", 0)
    monkeypatch.setattr(stream, "pause", pause)
    source: Any = Source()
    finish(stream.stream_into(source, "f", [stream.Region(0, 12, lambda chunk: done.append("work"))]))
    assert done == ["pause", "work"] * 6
