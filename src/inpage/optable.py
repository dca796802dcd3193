"""The op table: the one source of op numbers and operand layouts.

`build_wheels.py` generates `build/optable.h` for the kernels from it; `program.py` encodes by it; the reference
executor decodes by it. An instruction is a run of 32-bit words:

    [op | length << 16] [chunks] [operand 0] [operand 1] ...

`length` counts all words of the instruction, `chunks` says into how many independent parts an executor with threads may
cut it. Operand kinds:

    out, in   byte address of a dense row-major array in kernel memory; an optional `in` (marked `?`) may be 0
    int       a non-negative 32-bit integer; a negative word -1-r stands for register r, read when the program runs
    literal   a signed 32-bit integer that is never a register
    float     the bits of a float32

All arrays are float32 unless the operand's comment says otherwise. Weights of `linear` (and tables with layout
`PANELS`) are packed as [ceil(rows / 8)][inner][8], rows past the end zero.

Layouts of a weight [rows, inner]. Panels hold 8 rows each, one after the other, zeros past the last row:

    rows    row-major float32
    panels  float32 [inner][8]
    f16     float16 [inner][8]
    q8      one scale a row: int8 [inner / 4][8][4] with inner padded to a multiple of 16, then float32 scale[8], and
            float32 sum[8] of each row's quants.  w = scale * q
    q8g     for each group of 32 along inner (padded): float16 scale[8], uint8 [8][8][4].  w = rotated(scale * (q - 64))
    q4      for each group: float16 scale[8], [4][8][4] bytes of two quants, k of a step in the low halves and k + 4 in
            the high ones.  w = scale * (q - 8)
    q4z     as q4, with float16 offset[8] after the scales.  w = scale * q + offset

Rotated, a group is multiplied by a quarter of the 32 x 32 Hadamard matrix:
rotated(g)[j] = sum_k (-1)^popcount(j & k) g[k] / 4. Twice that is 2 g, so that weights rotated / 2 and activations
rotated have the products of plain ones; but what is large in one place is so in all 32, and costs the others less
precision. A last group of fewer than 32 columns stays as it is.

`linear_f16`, `linear_q8` ... are `linear` for these; for q8 and the groups x is what `quantize_rows` made of it: q8
takes each row in 128 steps between its lowest and highest value, the others groups of 32 (q8g: rotated) as signed 8-bit
quants with the least power of two as scale that takes them in.

`pack_quantized` and `unpack_quantized` convert between a packed weight and plain row-major arrays:
q int8 [rows, inner] (q8, q8g) or uint8 [rows, ceil(inner / 2)] with the even column in the low half (q4, q4z), scale
float32 [rows] (q8) or float16 [rows, inner / 32], offset float16 [rows, inner / 32] (q4z only).

`pack_published` packs 4-bit weights (q4 or q4z) as other libraries publish them: w = scale * (q - zero), eight quants
an int32, groups of a multiple of 32 along inner, scales of dtype `source` rounded to float16, and the product with
zero again. The op refuses scales that float16 cannot hold, and, for q4, zeros other than 8.

    compressed  q [rows, inner / 8], scale [rows, groups], zero [rows / 8, groups] (absent: 8)
    gptq        q [inner / 8, rows], scale [groups, rows], zero [groups, rows / 8], kept less 1; gptq_v2: kept as it is
    awq         q [inner, rows / 8], scale [groups, rows], zero [groups, rows / 8], rows of a word in the order 02461357

A key-value cache is [batch, capacity, heads] of head vectors, each a whole number of 32-bit words:

    f32     float32 [head_dim]
    f16     float16 [head_dim], an odd one padded
    q8      float32 scale, int8 [head_dim], padded to whole words.  x = scale * q

`attention` reads keys and values of these dtypes; `k_stride` and `v_stride` are words, `capacity` rows from one batch
item to the next. `cache_append` writes rows `position` .. of every item.

With `shares` from 2 on, `attention` of a single query without a window leaves open results, for `join_attention` to
join: share s of the keys, from kv_len * s / shares on, gives [sum of w v, highest score, sum of w] with scores in units
of log 2 and weights w = 2^(score - highest), and y is [batch * heads, shares, head_dim + 2]. So several threads can
work on one head.

`matmul`, for o < outer, m < middle, all strides in elements:
    c[o*c_outer + m*c_middle + r*c_row + j] = alpha * sum_i a[o*a_outer + m*a_middle + r*a_row + i]
                                                            * b[o*b_outer + m*b_middle + j*b_row + i*b_inner]
`copy`: y[i0*y0 + i1*y1 + i2*y2 + i3*y3] = x[i0*x0 + i1*x1 + i2*x2 + i3*x3] for i < d, 32-bit elements,
strides in elements.
`binary`: y[i] = a[i] op b[i % b_count].  `layer_norm`: of x + residual.  `linear`: act(x W^T + bias) + residual.
`edit_scores` and `mask_scores` change y in place.
`pack`: element (r, c) of the source is at r*row_stride + c*column_stride, in elements of dtype `source`.
"""

from typing import Literal, NamedTuple

Kind = Literal["out", "in", "int", "literal", "float"]


class Operand(NamedTuple):
    name: str
    kind: Kind
    optional: bool


class Op(NamedTuple):
    name: str
    number: int
    operands: tuple[Operand, ...]

    @property
    def length(self) -> int:
        """Words of one instruction."""
        return 2 + len(self.operands)


ACTIVATIONS = ("none", "gelu", "gelu_tanh", "relu", "silu", "tanh", "sigmoid")
BINARY = ("add", "subtract", "multiply", "divide")
DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
CACHE_DTYPES = ("f32", "f16", "q8")
LAYOUTS = ("rows", "panels", "f16", "q8", "q8g", "q4", "q4z")
POOLING = ("mean", "first", "last", "max")
PUBLISHED = ("compressed", "gptq", "gptq_v2", "awq")
QUANTIZED = ("q8", "q8g", "q4", "q4z")
GROUPED = ("q8g", "q4", "q4z")
PANEL = 8
GROUP_SIZE = 32

_TABLE = """
linear           out:y in:x in:weight in?:bias in?:residual int:rows int:columns int:inner int:activation
embedding        out:y in:ids in:table in?:residual int:count int:dim int:vocabulary int:layout
layer_norm       out:y in:x in?:residual in:weight in:bias int:rows int:dim float:eps
attention        out:y in:q in:k in:v in?:mask in?:bias int:batch int:heads int:kv_heads int:q_len int:kv_len
                 int:head_dim int:q_stride int:k_stride int:v_stride int:bias_batch_stride int:causal float:scale
                 int:capacity int:mask_stride int:window int:cache_dtype float:softcap int:shares
matmul           out:c in:a in:b int:outer int:middle int:rows int:columns int:inner int:a_outer int:a_middle
                 int:a_row int:b_outer int:b_middle int:b_row int:b_inner int:c_outer int:c_middle int:c_row
                 float:alpha
softmax          out:y in:x in?:mask in?:bias int:batch int:heads int:q_len int:kv_len int:bias_batch_stride
                 int:causal int:window int:log
activation       out:y in:x int:count int:activation
binary           out:y in:a in:b int:count int:b_count int:operation
copy             out:y in:x int:d0 int:d1 int:d2 int:d3 int:y0 int:y1 int:y2 int:y3 int:x0 int:x1 int:x2 int:x3
convert          out:y in:x int:count int:source int:target
pack             out:y in:x int:rows int:inner int:source int:row_stride int:column_stride
unpack           out:y in:x int:rows int:inner int:layout
pool             out:y in:x in?:mask int:batch int:length int:dim int:pooling
normalize        out:y in:x int:rows int:dim float:eps
position_ids     out:y in:ids int:rows int:length int:padding_id
cross_entropy    out:loss in:logits in:labels int:rows int:classes literal:ignore_index
mse_loss         out:loss in:x in:target int:count
bce_loss         out:loss in:logits in:target int:count
topk             out:values out:indices in:x int:rows int:columns int:k
random_normal    out:y int:count literal:seed float:mean float:std
fill             out:y int:count float:value
linear_f16       out:y in:x in:weight in?:bias in?:residual int:rows int:columns int:inner int:activation
linear_q8        out:y in:x in:weight in?:bias in?:residual int:rows int:columns int:inner int:activation
linear_q8g       out:y in:x in:weight in?:bias in?:residual int:rows int:columns int:inner int:activation
linear_q4        out:y in:x in:weight in?:bias in?:residual int:rows int:columns int:inner int:activation
linear_q4z       out:y in:x in:weight in?:bias in?:residual int:rows int:columns int:inner int:activation
quantize_rows    out:xq in:x int:rows int:inner int:layout
quantize_weight  out:w in:x int:rows int:inner int:source int:row_stride int:column_stride int:layout
pack_quantized   out:w in:q in:scale in?:offset int:rows int:inner int:layout
unpack_quantized out:q out:scale out:offset in:w int:rows int:inner int:layout
rms_norm         out:y in:x in:weight int:rows int:dim float:eps float:offset
positions        out:y int:rows int:length int:start
rotary_tables    out:y in:positions in:frequencies int:count int:half float:scale
rope             out:y in:x in:tables int:rows int:heads int:head_dim int:half int:interleaved
gated            out:y in:gate in:up int:rows int:columns int:gate_stride int:up_stride int:activation
cache_append     out:y in:x int:batch int:length int:heads int:head_dim int:capacity int:position int:dtype
cache_read       out:y in:x int:batch int:length int:heads int:head_dim int:capacity int:dtype
gather           out:y in:x in:index int:count int:rows int:words int:stride
argmax           out:y in:x int:rows int:columns
sample           out:y out:order out:weights in:x in:uniform int:rows int:columns int:k float:temperature float:top_p
                 float:min_p
pack_published   out:w in:q in:scale in?:zero int:rows int:inner int:group int:source int:format int:layout
edit_scores      out:y in:index in:factors int:count int:size
mask_scores      out:y in:bits int:rows int:columns
join_attention   out:y in:x int:rows int:shares int:head_dim
"""


def _parse(line: str, number: int) -> Op:
    name, *operands = line.split()
    parsed: list[Operand] = []
    for text in operands:
        kind, operand = text.split(":")
        parsed.append(Operand(operand, kind.rstrip("?"), kind.endswith("?")))  # pyright: ignore[reportArgumentType]
    return Op(name, number, tuple(parsed))


# A line that begins with spaces continues the one before.
_LINES = _TABLE.strip().replace("\n ", " ").splitlines()
OPS: dict[str, Op] = {op.name: op for op in (_parse(line, i) for i, line in enumerate(_LINES, 1))}
BY_NUMBER: dict[int, Op] = {op.number: op for op in OPS.values()}


def padded_inner(layout: str, inner: int) -> int:
    """The inner dimension of a weight as it is stored."""
    multiple = 16 if layout == "q8" else GROUP_SIZE if layout in GROUPED else 1
    return -(-inner // multiple) * multiple


def panel_nbytes(layout: str, inner: int) -> int:
    """Bytes of one panel of a weight, in any layout but rows."""
    padded = padded_inner(layout, inner)
    if layout in GROUPED:
        return padded // GROUP_SIZE * {"q8g": 272, "q4": 144, "q4z": 160}[layout]
    return {"panels": 32 * padded, "f16": 16 * padded, "q8": 8 * padded + 64}[layout]


def weight_nbytes(layout: str, rows: int, inner: int) -> int:
    """Bytes of a weight [rows, inner] in kernel memory."""
    return 4 * rows * inner if layout == "rows" else -(-rows // PANEL) * panel_nbytes(layout, inner)


def activation_nbytes(layout: str, rows: int, inner: int) -> int:
    """Bytes of what `quantize_rows` makes of [rows, inner], in the roomiest variant."""
    padded = padded_inner(layout, inner)
    groups = padded // GROUP_SIZE if layout in GROUPED else 1
    return -(-2 * rows * padded // 16) * 16 + 8 * rows * groups


def cache_head_words(dtype: str, head_dim: int) -> int:
    """32-bit words of one head vector in a key-value cache."""
    return {"f32": head_dim, "f16": -(-head_dim // 2), "q8": 1 + -(-head_dim // 4)}[dtype]


def c_header() -> str:
    """Text of `optable.h`: an enum of op numbers and, for each op, the index of every operand in an instruction."""
    lines = ["/* Generated from src/inpage/optable.py by build_wheels.py. */", "#pragma once", ""]
    for enum, names in (
        ("ACT", ACTIVATIONS),
        ("BINARY", BINARY),
        ("DTYPE", DTYPES),
        ("CACHE", CACHE_DTYPES),
        ("LAYOUT", LAYOUTS),
        ("POOL", POOLING),
        ("PUBLISHED", PUBLISHED),
    ):
        members = ", ".join(f"{enum}_{name.upper()} = {i}" for i, name in enumerate(names))
        lines.append(f"enum {{ {members} }};")
    lines.append(f"enum {{ PANEL = {PANEL}, GROUP_SIZE = {GROUP_SIZE} }};")
    lines.append("enum { " + ", ".join(f"OP_{op.name.upper()} = {op.number}" for op in OPS.values()) + " };")
    for op in OPS.values():
        members = ", ".join(f"{op.name.upper()}_{o.name.upper()} = {i}" for i, o in enumerate(op.operands, 2))
        lines.append(f"enum {{ {members} }};")
    lines.append("#define FOR_EACH_OP(X) " + " ".join(f"X({op.name.upper()}, {op.name})" for op in OPS.values()))
    return "\n".join(lines) + "\n"
