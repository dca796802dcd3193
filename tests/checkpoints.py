"""Checkpoints for tests: made of arrays, kept in memory, served in chunks of any size."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from inpage.errors import FileNotFoundInRepositoryError
from inpage.hub import Chunk

Array = npt.NDArray[Any]
DTYPES = {
    "float32": "F32", "float16": "F16", "uint16": "BF16", "int64": "I64", "int32": "I32", "int8": "I8", "uint8": "U8",
}  # fmt: skip


def encode(tensors: Mapping[str, Array], **header: Any) -> bytes:
    """A safetensors file; arrays of uint16 hold the bits of bfloat16. Keywords replace entries of the header."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, array in tensors.items():
        entries[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    return framed(entries | header) + b"".join(array.tobytes() for array in tensors.values())


def framed(header: Any) -> bytes:
    """Length and header, padded to a multiple of 8."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def decode(data: bytes) -> dict[str, Array]:
    """Arrays of a safetensors file that holds float32."""
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length])
    entries.pop("__metadata__", None)
    return {
        name: np.frombuffer(data, np.float32, int(np.prod(e["shape"])), 8 + length + e["data_offsets"][0]).reshape(
            e["shape"]
        )
        for name, e in entries.items()
    }


def bfloat16(array: Array) -> Array:
    """Bits of the nearest bfloat16, as uint16."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


class MemoryRepository:
    """The part of `Repository` that loading a checkpoint uses. `fail_at` makes a stream fail at that byte of a file."""

    name = "memory"

    def __init__(self, files: Mapping[str, bytes], *, chunk: int = 1 << 16, fail_at: int | None = None) -> None:
        self.files = files
        self.chunk = chunk
        self.fail_at = fail_at
        self.error: BaseException = RuntimeError("the stream broke")
        self.streamed: list[tuple[str, int, int | None]] = []

    async def exists(self, name: str) -> bool:
        return name in self.files

    async def size(self, name: str) -> int:
        return len(self.files[name])

    async def json(self, name: str, required: bool = True) -> Any:
        if name not in self.files:
            if required:
                raise FileNotFoundInRepositoryError(name)
            return None
        return json.loads(self.files[name])

    async def expect(self, *names: str) -> None:
        return None

    async def expect_instead(self, name: str) -> None:
        return None

    async def find_kept(self, key: str) -> None:
        return None

    async def new_kept(self, *arguments: Any) -> None:
        return None

    @asynccontextmanager
    async def stream(self, name: str, start: int = 0, stop: int | None = None) -> AsyncIterator[AsyncIterator[Chunk]]:
        self.streamed.append((name, start, stop))
        yield self._chunks(self.files[name], start, stop)

    async def _chunks(self, data: bytes, start: int, stop: int | None) -> AsyncIterator[Chunk]:
        end = len(data) if stop is None else stop
        for begin in range(start, end, self.chunk):
            if stop is None and self.fail_at is not None and begin >= self.fail_at:
                raise self.error
            yield Chunk(memoryview(data)[begin : min(begin + self.chunk, end)])


def _shape_of(weights: Mapping[str, Array], path: str) -> tuple[int, int]:
    out, inner = weights[f"{path}.weight"].shape
    return (inner, out) if ".c_" in path else (out, inner)


def write_adapter(
    folder: Path,
    base: Path,
    targets: str,
    rank: int = 4,
    seed: int = 0,
    alpha: float = 8,
    dtype: str = "float32",
    prefix: str = "base_model.model.",
    **config: Any,
) -> dict[str, Array]:
    """Files of an adapter for the layers that a pattern fits; returns scale * B A by path, in float64."""
    weights = load_file(base / "model.safetensors")
    random = np.random.default_rng(seed)
    tensors: dict[str, Array] = {}
    deltas: dict[str, Array] = {}
    values = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none"} | config
    for path in [name.removesuffix(".weight") for name in weights if re.search(targets, name)]:
        out, inner = _shape_of(weights, path)
        last = path.rpartition(".")[2]
        r = values.get("rank_pattern", {}).get(last, rank)
        scale = values.get("alpha_pattern", {}).get(last, alpha) / (sqrt(r) if values.get("use_rslora") else r)
        a = random.normal(0, 0.3, (r, inner)).astype(dtype)
        b = random.normal(0, 0.3, (out, r)).astype(dtype)
        tensors[f"{prefix}{path}.lora_A.weight"], tensors[f"{prefix}{path}.lora_B.weight"] = a, b
        deltas[path] = scale * b.astype(np.float64) @ a.astype(np.float64)
    values.setdefault("target_modules", sorted({path.rpartition(".")[2] for path in deltas}))
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(values))
    return deltas
