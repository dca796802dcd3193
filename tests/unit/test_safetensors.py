"""The safetensors header: what it says, and one message for each way in which it can be wrong."""

import json
import random
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from inpage.checkpoint.safetensors import BITS, HEADER_LIMIT, TensorInfo, header_length, parse_header
from inpage.errors import CheckpointError
from tests.checkpoints import encode, framed


def parse(data: bytes) -> dict[str, TensorInfo]:
    length = header_length(data[:8], file="f", size=len(data))
    return parse_header(data[8 : 8 + length], file="f", size=len(data))


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_files_of_the_safetensors_package() -> None:
    arrays = {"b": np.zeros((2, 3), np.float32), "a": np.zeros((5,), np.float16), "empty": np.zeros((0, 4), np.float32)}
    data = save(arrays, {"format": "pt"})
    infos = parse(data)
    assert {name: (info.shape, info.nbytes) for name, info in infos.items()} == {
        name: (array.shape, array.nbytes) for name, array in arrays.items()
    }
    starts = [info.start for info in infos.values()]
    assert starts == sorted(starts)
    assert infos["b"].dtype == "F32"
    assert max(info.end for info in infos.values()) == len(data)


def test_offsets_are_those_of_the_file() -> None:
    data = encode({"x": np.arange(3, dtype=np.float32), "y": np.arange(4, dtype=np.float32)})
    info = parse(data)["y"]
    assert np.frombuffer(data[info.start : info.end], np.float32).tolist() == [0, 1, 2, 3]


def test_empty_file_and_scalar() -> None:
    assert parse(framed({})) == {}
    assert parse(framed({"s": entry(shape=[], offsets=[0, 4])}) + bytes(4))["s"].shape == ()


def test_unpadded_header() -> None:
    text = json.dumps({"x": entry()}).encode()
    while not len(text) % 8:
        text += b" "
    assert parse(len(text).to_bytes(8, "little") + text + bytes(8))["x"].nbytes == 8


def test_four_bit_types() -> None:
    assert parse(framed({"x": entry("F4", [4], [0, 2])}) + bytes(2))["x"].nbytes == 2
    with pytest.raises(CheckpointError, match=r"expected 1\.5 bytes, found 2"):
        parse(framed({"x": entry("F4", [3], [0, 2])}) + bytes(2))


BROKEN = {
    "nothing": (b"", "too short"),
    "seven bytes": (bytes(7), "too short"),
    "length past the end": ((100).to_bytes(8, "little") + b"{}", "ends inside its header"),
    "length over the limit": ((HEADER_LIMIT + 1).to_bytes(8, "little"), "too long a header"),
    "huge length": ((2**64 - 1).to_bytes(8, "little"), "too long a header"),
    "leading space": (framed(b"  {}"), "no JSON object"),
    "a list": (framed(b"[]"), "no JSON object"),
    "an HTML page": (framed(b"<!doctype html>"), "no JSON object"),
    "empty header": (bytes(8), "no JSON object"),
    "not UTF-8": (framed(b'{"\xff": 1}'), "not UTF-8"),
    "not JSON": (framed(b'{"a": }'), "cannot be parsed"),
    "nested too deep": (framed(b'{"a":' * 100_000), "cannot be parsed"),
    "text after the object": (framed(b"{} x"), "cannot be parsed"),
    "a name twice": (framed(b'{"a": 1, "a": 2}'), "names something twice"),
    "a key twice": (framed(b'{"a": {"dtype": "F32", "dtype": "F16"}}'), "names something twice"),
    "metadata of numbers": (framed({"__metadata__": {"a": 1}}), "malformed metadata"),
    "metadata list": (framed({"__metadata__": []}), "malformed metadata"),
    "entry is no object": (framed({"a": 3}), "describes 'a' wrongly"),
    "entry lacks a key": (framed({"a": {"dtype": "F32", "shape": []}}), "describes 'a' wrongly"),
    "entry has more": (framed({"a": entry() | {"x": 1}}), "describes 'a' wrongly"),
    "unknown dtype": (framed({"a": entry("F33")}), "unknown dtype"),
    "dtype no string": (framed({"a": entry(32)}), "unknown dtype"),
    "dtype a list": (framed({"a": entry([])}), "unknown dtype"),
    "negative dimension": (framed({"a": entry(shape=[-2])}), "malformed shape"),
    "float dimension": (framed({"a": entry(shape=[2.0])}), "malformed shape"),
    "true dimension": (framed({"a": entry(shape=[True], offsets=[0, 4])}), "malformed shape"),
    "shape no list": (framed({"a": entry(shape=2)}), "malformed shape"),
    "one offset": (framed({"a": entry(offsets=[0])}), "malformed offsets"),
    "offsets reversed": (framed({"a": entry(offsets=[8, 0])}), "malformed offsets"),
    "negative offset": (framed({"a": entry(offsets=[-8, 0])}), "malformed offsets"),
    "length and shape disagree": (framed({"a": entry(offsets=[0, 12])}), "disagree"),
    "overflowing shape": (framed({"a": entry(shape=[2**40, 2**40])}), "disagree"),
    "astronomic shape": (framed({"a": entry(shape=[2**1100] * 400)}), "disagree"),
    "number too long": (framed(b'{"a": ' + b"9" * 5000 + b"}"), "cannot be parsed"),
    "overlap": (framed({"a": entry(), "b": entry(offsets=[4, 12])}) + bytes(12), "overlaps"),
    "same place twice": (framed({"a": entry(), "b": entry()}) + bytes(8), "overlaps"),
    "hole": (framed({"a": entry(), "b": entry(offsets=[12, 20])}) + bytes(20), "leaves a hole"),
    "hole at the start": (framed({"a": entry(offsets=[8, 16])}) + bytes(16), "leaves a hole"),
    "cut short": (framed({"a": entry()}) + bytes(7), "is cut short"),
    "too long": (framed({"a": entry()}) + bytes(9), "after its last tensor"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken(kind: str) -> None:
    data, message = BROKEN[kind]
    with pytest.raises(CheckpointError, match=message) as caught:
        parse(data)
    assert caught.value.code == "checkpoint"
    assert caught.value.details["file"] == "f"
    assert caught.value.details["expected"]
    assert caught.value.hint


def test_dtypes_are_those_of_the_format() -> None:
    assert set(BITS.values()) == {4, 6, 8, 16, 32, 64}
    assert len(BITS) == 20


def test_damaged_headers_raise_nothing_else() -> None:
    """Random bytes changed, removed or added: an error of ours, or tensors that tile the file."""
    rng = random.Random(1)
    good = encode(
        {"a.weight": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float16), "c": np.zeros((), np.float32)}
    )
    header = 8 + int.from_bytes(good[:8], "little")
    refused = 0
    for _ in range(5000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            position = rng.randrange(header)
            change = rng.choice(("replace", "remove", "insert"))
            byte = rng.choice((rng.randrange(256), *b'0123456789[]{},:".-eE'))
            data[position : position + (change != "insert")] = b"" if change == "remove" else bytes([byte])
        try:
            infos = parse(bytes(data))
        except CheckpointError:
            refused += 1
            continue
        ranges = [(info.start, info.end) for info in infos.values()]
        assert [start for start, _ in ranges[1:]] == [end for _, end in ranges[:-1]]
        assert not ranges or ranges[-1][1] == len(data)
    assert refused > 4000
