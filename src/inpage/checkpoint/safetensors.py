"""The safetensors format by its header: names, dtypes, shapes and byte ranges, without touching the data.

A file is an 8-byte little-endian header length, a JSON header of that length, and the data, whose offsets the header
gives relative to the header's end. Writers pad the header so that the data starts at a multiple of 8; readers accept
files that do not, because old ones exist.
"""

import json
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

from ..errors import CheckpointError

LENGTH_BYTES = 8
HEADER_LIMIT = 100_000_000
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


class TensorInfo(NamedTuple):
    """One tensor of a file; `start` and `end` are byte offsets from the beginning of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


def header_length(prefix: bytes, *, file: str, size: int) -> int:
    """Length of the header of a file of `size` bytes that begins with `prefix`. Raises CheckpointError."""
    if size < LENGTH_BYTES or len(prefix) < LENGTH_BYTES:
        raise _broken(file, "is too short for a header length", f"at least {LENGTH_BYTES} bytes", f"{size} bytes")
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if length > HEADER_LIMIT:
        raise _broken(file, "has too long a header", f"at most {HEADER_LIMIT:,} bytes", f"{length:,}")
    if LENGTH_BYTES + length > size:
        raise _broken(file, "ends inside its header", f"{LENGTH_BYTES + length:,} bytes or more", f"{size:,}")
    return length


def parse_header(header: bytes, *, file: str, size: int) -> dict[str, TensorInfo]:
    """Tensors of a file of `size` bytes with this header (without the 8 length bytes), in the order of their data.

    Raises CheckpointError, a message of its own for each way in which the header can be wrong.
    """
    return parse_file(header, file=file, size=size)[0]


def parse_file(header: bytes, *, file: str, size: int) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Tensors as `parse_header` gives them, and the file's metadata."""
    entries = _entries(header, file)
    metadata = entries.pop("__metadata__", {})
    base = LENGTH_BYTES + len(header)
    infos = {name: _info(entry, name, file, base) for name, entry in entries.items()}
    ordered = dict(sorted(infos.items(), key=lambda item: (item[1].start, item[1].end)))
    _check_coverage(ordered, file, base, size)
    return ordered, metadata


def encode_header(tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]) -> tuple[bytes, int]:
    """What a file begins with whose tensors have these dtypes and shapes, in this order, and the bytes that follow."""
    header: dict[str, Any] = {"__metadata__": metadata}
    position = 0
    for name, (dtype, shape) in tensors.items():
        start, position = position, position + prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, position]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text, position


def _entries(header: bytes, file: str) -> dict[str, Any]:
    if header[:1] != b"{":
        raise _broken(file, "has a header that is no JSON object", "a first byte '{'", repr(header[:1]))

    def unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise _broken(file, "names something twice in its header", "unique names", repr(key))
            found[key] = value
        return found

    try:
        entries = json.loads(header.decode("utf-8"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise _broken(file, "has a header that is not UTF-8", "UTF-8 text", str(error)) from None
    except (ValueError, RecursionError) as error:
        raise _broken(file, "has a header that cannot be parsed", "a JSON object", str(error)) from None
    metadata = entries.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _broken(file, "has malformed metadata", "an object of strings", repr(metadata)[:100])
    return entries


def _info(entry: Any, name: str, file: str, base: int) -> TensorInfo:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        found = sorted(entry) if isinstance(entry, dict) else type(entry).__name__
        raise _broken(file, f"describes {name!r} wrongly", "dtype, shape and data_offsets", str(found))
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise _broken(file, f"gives {name!r} an unknown dtype", f"one of {', '.join(BITS)}", repr(dtype))
    if not _counts(shape):
        raise _broken(file, f"gives {name!r} a malformed shape", "a list of non-negative integers", repr(shape)[:100])
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _broken(file, f"gives {name!r} malformed offsets", "[begin, end], begin <= end", repr(offsets)[:100])
    bits, nbytes = prod(shape) * BITS[dtype], offsets[1] - offsets[0]
    if bits != 8 * nbytes:
        expected = f"{bits / 8:g} bytes" if bits < 2**64 else "fewer elements"
        raise _broken(file, f"gives {name!r} offsets that disagree with its dtype and shape", expected, f"{nbytes}")
    return TensorInfo(dtype, tuple(shape), base + offsets[0], base + offsets[1])


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check_coverage(ordered: dict[str, TensorInfo], file: str, base: int, size: int) -> None:
    """The tensors must lie one after the other, from the header's end to the file's end."""
    position = base
    for name, info in ordered.items():
        if info.start != position:
            problem = "overlaps the tensor before it" if info.start < position else "leaves a hole before it"
            raise _broken(file, f"is inconsistent: {name!r} {problem}", f"start {position:,}", f"{info.start:,}")
        position = info.end
    if position != size:
        problem = "is cut short" if position > size else "has bytes after its last tensor"
        raise _broken(file, problem, f"{position:,} bytes", f"{size:,}")


def _broken(file: str, problem: str, expected: str, found: str) -> CheckpointError:
    return CheckpointError(
        f"{file} {problem}: expected {expected}, found {found}.",
        hint="The file is damaged or not a safetensors file; fetch it again or convert the checkpoint anew.",
        file=file,
        expected=expected,
        found=found,
    )
