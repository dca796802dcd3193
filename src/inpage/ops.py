"""The operations that model code calls. Each checks shapes and dtypes, gives the output's shape, and records.

Shapes: B batch, L length, H heads, D head dimension, N features. `...` are any leading dimensions. All tensors are
float32 unless int32 is stated.
"""

from collections.abc import Sequence
from functools import partial
from math import gcd, prod
from typing import Any

from .errors import InputError, UnsupportedError
from .optable import ACTIVATIONS, BINARY, CACHE_DTYPES, LAYOUTS, POOLING, QUANTIZED, activation_nbytes, cache_head_words
from .program import Part, Register, recorder
from .tensor import Tensor, row_major

# Names of transformers' ACT2FN whose function is one of ours.
_ACTIVATION_NAMES = {name: name for name in ACTIVATIONS} | {
    "linear": "none",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "swish": "silu",
}
MAX_DIMS = 4


def emit(op_name: str, **operands: Any) -> None:
    """Record one instruction of the op table as it is."""
    recorder().emit(op_name, **operands)


def constant(values: Any, dtype: str | None = None) -> Tensor:
    """Tensor with fixed values, kept with the program."""
    return recorder().constant(values, dtype)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """activation(x W^T + bias) + residual.

    x [..., K], weight [N, K] in panels of any layout, bias [N], residual [..., N] -> [..., N]. For a quantised weight
    x is quantised first, once for all linears that take it.
    """
    columns, inner = weight.shape
    _expect("linear", "x", x, (*x.shape[:-1], inner))
    layout = getattr(weight, "layout", "rows")
    if layout == "rows":
        raise InputError("linear() needs a weight in panels.", hint="Use nn.Linear, or tie to the weight of one.")
    shape = (*x.shape[:-1], columns)
    if bias is not None:
        _expect("linear", "bias", bias, (columns,))
    if residual is not None:
        _expect("linear", "residual", residual, shape)
    y = _new(shape)
    if layout in QUANTIZED:
        x = recorder().once(x, (layout, inner), partial(_quantize_rows, x, layout))
    emit(
        "linear" if layout == "panels" else f"linear_{layout}", y=y, x=x, weight=weight, bias=bias, residual=residual,
        rows=prod(shape[:-1]), columns=columns, inner=inner, activation=_activation(activation),
    )  # fmt: skip
    return y


def embedding(ids: Tensor, weight: Tensor, residual: Tensor | None = None) -> Tensor:
    """weight[ids] + residual: ids int32 [...], weight [V, N], residual [..., N] -> [..., N]."""
    vocabulary, dim = weight.shape
    _expect("embedding", "ids", ids, ids.shape, "int32")
    y = _new((*ids.shape, dim))
    if residual is not None:
        _expect("embedding", "residual", residual, y.shape)
    layout = LAYOUTS.index(getattr(weight, "layout", "rows"))
    emit(
        "embedding", y=y, ids=ids, table=weight, residual=residual,
        count=ids.size, dim=dim, vocabulary=vocabulary, layout=layout,
    )  # fmt: skip
    return y


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """Layer normalisation of x + residual over the last dimension.

    x, residual [..., N], weight, bias [N] -> [..., N].
    """
    dim = x.shape[-1]
    _expect("layer_norm", "x", x, x.shape)
    _expect("layer_norm", "weight", weight, (dim,))
    _expect("layer_norm", "bias", bias, (dim,))
    if residual is not None:
        _expect("layer_norm", "residual", residual, x.shape)
    y = _new(x.shape)
    emit("layer_norm", y=y, x=x, residual=residual, weight=weight, bias=bias, rows=x.size // dim, dim=dim, eps=eps)
    return y


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """x over its root mean square along the last dimension, times weight + offset: [..., N], weight [N] -> [..., N]."""
    dim = x.shape[-1]
    _expect("rms_norm", "x", x, x.shape)
    _expect("rms_norm", "weight", weight, (dim,))
    y = _new(x.shape)
    emit("rms_norm", y=y, x=x, weight=weight, rows=x.size // dim, dim=dim, eps=eps, offset=offset)
    return y


def positions(batch: int, length: int, start: int = 0) -> Tensor:
    """start, start + 1, ... in every row -> int32 [B, L]. `start` may be a register."""
    y = _new((batch, length), "int32")
    emit("positions", y=y, rows=batch, length=length, start=start)
    return y


def rotary_tables(positions: Tensor, frequencies: Tensor, scale: float = 1.0) -> Tensor:
    """Cosines and sines of positions times frequencies, times scale: int32 [B, L], [D] -> [B, L, 2, D]."""
    (half,) = frequencies.shape
    _expect("rotary_tables", "positions", positions, positions.shape, "int32")
    y = _new((*positions.shape, 2, half))
    emit(
        "rotary_tables", y=y, positions=positions, frequencies=frequencies, count=positions.size, half=half, scale=scale
    )
    return y


def rope(x: Tensor, tables: Tensor, heads: int, *, interleaved: bool = False) -> Tensor:
    """x with its heads rotated by `rotary_tables`: [B, L, H*D], tables [B, L, 2, R] -> [B, L, H*D].

    Element j of a head goes with element R + j, or 2 j with 2 j + 1 if interleaved; those from 2 R on stay.
    """
    rows, half = tables.shape[:2], tables.shape[3]
    _expect("rope", "tables", tables, (*x.shape[:-1], 2, half))
    if x.shape[-1] % heads or 2 * half > x.shape[-1] // heads:
        raise InputError(f"rope() cannot rotate {2 * half} elements of {heads} heads in {x.shape[-1]} features.")
    y = _new(x.shape)
    emit(
        "rope", y=y, x=x, tables=tables, rows=prod(rows), heads=heads, head_dim=x.shape[-1] // heads, half=half,
        interleaved=int(interleaved),
    )  # fmt: skip
    return y


def gated(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """activation(gate) * up, elementwise: [..., N] twice -> [..., N]."""
    _expect("gated", "gate", gate, gate.shape)
    _expect("gated", "up", up, gate.shape)
    columns = gate.shape[-1]
    y = _new(gate.shape)
    emit(
        "gated", y=y, gate=gate, up=up, rows=gate.size // columns, columns=columns,
        gate_stride=columns, up_stride=columns, activation=_activation(activation),
    )  # fmt: skip
    return y


def gated_halves(x: Tensor, activation: str) -> Tensor:
    """activation(first half) * second half of the last dimension: [..., 2 N] -> [..., N]."""
    columns = x.shape[-1] // 2
    _expect("gated_halves", "x", x, (*x.shape[:-1], 2 * columns))
    y = _new((*x.shape[:-1], columns))
    emit(
        "gated", y=y, gate=x, up=_at(x, columns), rows=x.size // (2 * columns), columns=columns,
        gate_stride=2 * columns, up_stride=2 * columns, activation=_activation(activation),
    )  # fmt: skip
    return y


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    heads: int,
    kv_heads: int | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
) -> Tensor:
    """softmax(scale q k^T + bias) v without the score matrix in memory.

    q [B, Lq, H*D], k and v [B, Lk, KVH*D], mask int32 [B, Lk] (0 hides a key), bias [1 or B, H, Lq, Lk]
    -> [B, Lq, H*D]. `scale` is 1/sqrt(D) by default. `causal` lets query i see keys up to i + Lk - Lq, of these only
    the last `window` if that is not 0. `softcap` c makes scores s to c tanh(s / c), before the bias.
    """
    a = _AttentionShapes(q, k, v, mask, bias, heads, kv_heads, scale)
    _check_window(window, causal)
    y = _new(q.shape)
    emit(
        "attention", y=y, q=q, k=k, v=v, mask=mask, bias=bias,
        batch=a.batch, heads=heads, kv_heads=a.kv_heads, q_len=a.q_len, kv_len=a.kv_len, head_dim=a.head_dim,
        q_stride=heads * a.head_dim, k_stride=a.kv_heads * a.head_dim, v_stride=a.kv_heads * a.head_dim,
        bias_batch_stride=a.bias_batch_stride, causal=int(causal), scale=a.scale, capacity=a.kv_len,
        mask_stride=a.kv_len, window=window, cache_dtype=CACHE_DTYPES.index("f32"), softcap=softcap, shares=1,
    )  # fmt: skip
    return y


def cached_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    *,
    length: int | Register,
    heads: int,
    head_dim: int,
    dtype: str = "f32",
    scale: float | None = None,
    window: int = 0,
    softcap: float = 0.0,
) -> Tensor:
    """Causal `attention` of the last Lq of `length` positions over the first `length` rows of a cache.

    q [B, Lq, H*D], keys and values [B, capacity, KVH, words] as `cache_append` fills them, mask int32 [B, capacity]
    -> [B, Lq, H*D]. Threads share the keys of a head where heads do not go evenly among them.
    """
    batch, capacity, kv_heads, words = keys.shape
    _expect("cached_attention", "q", q, (batch, q.shape[1], heads * head_dim))
    _expect("cached_attention", "values", values, keys.shape, "int32")
    if mask is not None:
        _expect("cached_attention", "mask", mask, (batch, capacity), "int32")
    shares, threads = 1, recorder().executor.threads
    if q.shape[1] == 1 and not window:  # so that all threads are equally busy
        shares = threads // gcd(threads, batch * kv_heads)
    y = _new(q.shape) if shares == 1 else _new((batch * heads, shares, head_dim + 2))
    emit(
        "attention", y=y, q=q, k=keys, v=values, mask=mask, bias=None, batch=batch, heads=heads, kv_heads=kv_heads,
        q_len=q.shape[1], kv_len=length, head_dim=head_dim, q_stride=heads * head_dim, k_stride=kv_heads * words,
        v_stride=kv_heads * words, bias_batch_stride=0, causal=1, scale=head_dim**-0.5 if scale is None else scale,
        capacity=capacity, mask_stride=capacity, window=window, cache_dtype=CACHE_DTYPES.index(dtype), softcap=softcap,
        shares=shares,
    )  # fmt: skip
    if shares == 1:
        return y
    joined = _new(q.shape)
    emit("join_attention", y=joined, x=y, rows=batch * heads, shares=shares, head_dim=head_dim)
    return joined


def cache_append(cache: Tensor, x: Tensor, position: int | Register, *, head_dim: int, dtype: str = "f32") -> None:
    """Write x [B, L, KVH*D] into rows position .. position + L - 1 of a cache int32 [B, capacity, KVH, words]."""
    batch, capacity, heads, _ = cache.shape
    length = x.shape[1]
    _expect("cache_append", "x", x, (batch, length, heads * head_dim))
    _expect("cache_append", "cache", cache, (batch, capacity, heads, cache_head_words(dtype, head_dim)), "int32")
    emit(
        "cache_append", y=cache, x=x, batch=batch, length=length, heads=heads, head_dim=head_dim, capacity=capacity,
        position=position, dtype=CACHE_DTYPES.index(dtype),
    )  # fmt: skip


def cache_read(cache: Tensor, length: int, *, head_dim: int, dtype: str = "f32") -> Tensor:
    """The first `length` rows of a cache int32 [B, capacity, KVH, words] -> [B, length, KVH*D]."""
    batch, capacity, heads, _ = cache.shape
    y = _new((batch, length, heads * head_dim))
    emit(
        "cache_read", y=y, x=cache, batch=batch, length=length, heads=heads, head_dim=head_dim, capacity=capacity,
        dtype=CACHE_DTYPES.index(dtype),
    )  # fmt: skip
    return y


def attention_eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    heads: int,
    kv_heads: int | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """As `attention`, and the probabilities [B, H, Lq, Lk] beside it."""
    a = _AttentionShapes(q, k, v, mask, bias, heads, kv_heads, scale)
    group, d, lq, lk = heads // a.kv_heads, a.head_dim, a.q_len, a.kv_len
    scores = _new((a.batch, heads, lq, lk))
    q_row, kv_row = heads * d, a.kv_heads * d
    # Consecutive query heads share a key head, so one matmul a key head serves its group with a middle stride of 0.
    for head in range(a.kv_heads) if group > 1 else (0,):
        middle, kv_middle, first = (group, 0, head * group) if group > 1 else (heads, d, 0)
        emit(
            "matmul", c=_at(scores, first * lq * lk), a=_at(q, first * d), b=_at(k, head * d),
            outer=a.batch, middle=middle, rows=lq, columns=lk, inner=d,
            a_outer=lq * q_row, a_middle=d, a_row=q_row,
            b_outer=lk * kv_row, b_middle=kv_middle, b_row=kv_row, b_inner=1,
            c_outer=heads * lq * lk, c_middle=lq * lk, c_row=lk, alpha=a.scale,
        )  # fmt: skip
    if softcap:
        scores = soft_cap(scores, softcap)
    probabilities = softmax(scores, mask, bias, causal=causal, window=window)
    y = _new(q.shape)
    for head in range(a.kv_heads) if group > 1 else (0,):
        middle, kv_middle, first = (group, 0, head * group) if group > 1 else (heads, d, 0)
        emit(
            "matmul", c=_at(y, first * d), a=_at(probabilities, first * lq * lk), b=_at(v, head * d),
            outer=a.batch, middle=middle, rows=lq, columns=d, inner=lk,
            a_outer=heads * lq * lk, a_middle=lq * lk, a_row=lk,
            b_outer=lk * kv_row, b_middle=kv_middle, b_row=1, b_inner=kv_row,
            c_outer=lq * q_row, c_middle=d, c_row=q_row, alpha=1.0,
        )  # fmt: skip
    return y, probabilities


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap tanh(x / cap), elementwise: [...] -> [...]."""
    return multiply(activation(multiply(x, constant(1 / cap)), "tanh"), constant(float(cap)))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product over equal leading dimensions: [..., M, K] x [..., K, N] -> [..., M, N]."""
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    _expect("matmul", "a", a, a.shape)
    _expect("matmul", "b", b, (*a.shape[:-2], inner, columns))
    batch = prod(a.shape[:-2])
    y = _new((*a.shape[:-1], columns))
    emit(
        "matmul", c=y, a=a, b=b, outer=1, middle=batch, rows=rows, columns=columns, inner=inner,
        a_outer=0, a_middle=rows * inner, a_row=inner, b_outer=0, b_middle=inner * columns, b_row=1, b_inner=columns,
        c_outer=0, c_middle=rows * columns, c_row=columns, alpha=1.0,
    )  # fmt: skip
    return y


def softmax(
    x: Tensor, mask: Tensor | None = None, bias: Tensor | None = None, *, causal: bool = False, window: int = 0
) -> Tensor:
    """Softmax over the last dimension.

    For scores x [B, H, Lq, Lk]: mask int32 [B, Lk], bias [1 or B, H, Lq, Lk], `causal` and `window` as in `attention`.
    Without those, x is [..., N].
    """
    return _softmax(x, mask, bias, causal, window, log=False)


def log_softmax(x: Tensor) -> Tensor:
    """Logarithm of the softmax over the last dimension: [..., N] -> [..., N]."""
    return _softmax(x, None, None, causal=False, window=0, log=True)


def activation(x: Tensor, name: str) -> Tensor:
    """An activation by its name in transformers, elementwise: [...] -> [...]."""
    _expect("activation", "x", x, x.shape)
    y = _new(x.shape)
    emit("activation", y=y, x=x, count=x.size, activation=_activation(name))
    return y


def add(a: Tensor, b: Tensor) -> Tensor:
    """a + b, where b has one element or the last dimensions of a."""
    return _binary("add", a, b)


def subtract(a: Tensor, b: Tensor) -> Tensor:
    """a - b, where b has one element or the last dimensions of a."""
    return _binary("subtract", a, b)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """a * b, where b has one element or the last dimensions of a."""
    return _binary("multiply", a, b)


def divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b, where b has one element or the last dimensions of a."""
    return _binary("divide", a, b)


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements under another shape; one dimension may be -1."""
    return x.reshape(tuple(shape))


def transpose(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Dimensions of x (at most 4) in the order `axes`, any dtype."""
    if sorted(axes) != list(range(len(x.shape))) or len(x.shape) > MAX_DIMS:
        raise InputError(f"transpose() cannot order the dimensions of {list(x.shape)} as {list(axes)}.")
    strides = row_major(x.shape)
    y = _new(tuple(x.shape[a] for a in axes), x.dtype)
    copy_into(y, x, y.shape, row_major(y.shape), tuple(strides[a] for a in axes))
    return y


def select(x: Tensor, dim: int, index: int) -> Tensor:
    """x at `index` of dimension `dim`, which goes away, any dtype."""
    dim %= len(x.shape)
    index = index + x.shape[dim] if index < 0 else index
    part = slice(x, dim, index, index + 1)
    return part.reshape((*x.shape[:dim], *x.shape[dim + 1 :]))


def slice(x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    """Elements start..stop-1 along dimension `dim`, any dtype."""
    dim %= len(x.shape)
    if not 0 <= start <= stop <= x.shape[dim]:
        raise InputError(f"slice() {start}:{stop} is outside dimension {dim} of {list(x.shape)}.")
    y = _new((*x.shape[:dim], stop - start, *x.shape[dim + 1 :]), x.dtype)
    outer, inner = prod(x.shape[:dim]), prod(x.shape[dim + 1 :])
    block = (stop - start) * inner
    copy_into(y, _at(x, start * inner), (outer, block), (block, 1), (x.shape[dim] * inner, 1))
    return y


def concatenate(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors one after the other along dimension `dim`; the other dimensions and the dtype are equal."""
    first = tensors[0]
    dim %= len(first.shape)
    for tensor in tensors:
        _expect(
            "concatenate",
            "tensor",
            tensor,
            (*first.shape[:dim], tensor.shape[dim], *first.shape[dim + 1 :]),
            first.dtype,
        )
    total = sum(tensor.shape[dim] for tensor in tensors)
    y = _new((*first.shape[:dim], total, *first.shape[dim + 1 :]), first.dtype)
    outer, inner, offset = prod(first.shape[:dim]), prod(first.shape[dim + 1 :]), 0
    for tensor in tensors:
        block = tensor.shape[dim] * inner
        copy_into(_at(y, offset), tensor, (outer, block), (total * inner, 1), (block, 1))
        offset += block
    return y


def gather(x: Tensor, index: Tensor, rows: int | Register, words: int) -> Tensor:
    """The first `rows` of x[index], `words` long each: x [B, capacity * words], index int32 [B] -> as x.

    Any dtype; what is behind those rows is undefined.
    """
    _expect("gather", "index", index, (x.shape[0],), "int32")
    y = _new(x.shape, x.dtype)
    emit("gather", y=y, x=x, index=index, count=x.shape[0], rows=rows, words=words, stride=x.shape[1])
    return y


def copy_into(y: Tensor, x: Tensor, dims: Sequence[int], y_strides: Sequence[int], x_strides: Sequence[int]) -> None:
    """Write elements of x, by strides, to places in y, by strides, in at most 4 dimensions; any dtype."""
    missing = MAX_DIMS - len(dims)
    padded = {"d": (*[1] * missing, *dims), "y": (*[0] * missing, *y_strides), "x": (*[0] * missing, *x_strides)}
    numbers = {f"{letter}{i}": value for letter, values in padded.items() for i, value in enumerate(values)}
    emit("copy", y=y, x=x, **numbers)


def pool(x: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
    """One vector a sequence: x [B, L, N], mask int32 [B, L] -> [B, N]; pooling is mean, first, last or max."""
    batch, length, dim = x.shape
    if pooling not in POOLING:
        raise UnsupportedError(f"Unknown pooling {pooling!r}.", hint=f"Use one of {', '.join(POOLING)}.")
    _expect("pool", "x", x, x.shape)
    if mask is not None:
        _expect("pool", "mask", mask, (batch, length), "int32")
    y = _new((batch, dim))
    emit("pool", y=y, x=x, mask=mask, batch=batch, length=length, dim=dim, pooling=POOLING.index(pooling))
    return y


def normalize(x: Tensor, eps: float = 1e-12) -> Tensor:
    """x / max(|x|, eps) by the Euclidean norm over the last dimension: [..., N] -> [..., N]."""
    _expect("normalize", "x", x, x.shape)
    y = _new(x.shape)
    emit("normalize", y=y, x=x, rows=x.size // x.shape[-1], dim=x.shape[-1], eps=eps)
    return y


def position_ids(ids: Tensor, padding_id: int) -> Tensor:
    """Positions from padding_id + 1 on, counted over the ids that are not padding: int32 [B, L] -> int32 [B, L].

    Padding has the position padding_id, as in RoBERTa.
    """
    _expect("position_ids", "ids", ids, ids.shape, "int32")
    rows, length = ids.shape
    y = _new(ids.shape, "int32")
    emit("position_ids", y=y, ids=ids, rows=rows, length=length, padding_id=padding_id)
    return y


def cross_entropy(logits: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    """Mean of -log softmax(logits)[label] over labels other than ignore_index: [..., C], int32 [...] -> []."""
    _expect("cross_entropy", "logits", logits, logits.shape)
    _expect("cross_entropy", "labels", labels, logits.shape[:-1], "int32")
    classes = logits.shape[-1]
    loss = _new(())
    rows = logits.size // classes
    emit(
        "cross_entropy", loss=loss, logits=logits, labels=labels, rows=rows, classes=classes, ignore_index=ignore_index
    )
    return loss


def mse_loss(x: Tensor, target: Tensor) -> Tensor:
    """Mean of (x - target)^2 -> []."""
    _expect("mse_loss", "x", x, x.shape)
    _expect("mse_loss", "target", target, x.shape)
    loss = _new(())
    emit("mse_loss", loss=loss, x=x, target=target, count=x.size)
    return loss


def bce_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean binary cross entropy of sigmoid(logits) against target -> []."""
    _expect("bce_loss", "logits", logits, logits.shape)
    _expect("bce_loss", "target", target, logits.shape)
    loss = _new(())
    emit("bce_loss", loss=loss, logits=logits, target=target, count=logits.size)
    return loss


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of the last dimension, descending, and their int32 indices: [..., N] -> [..., k] twice."""
    columns = x.shape[-1]
    _expect("topk", "x", x, x.shape)
    if not 0 < k <= columns:
        raise InputError(f"topk() needs 1 <= k <= {columns}, not {k}.")
    values, indices = _new((*x.shape[:-1], k)), _new((*x.shape[:-1], k), "int32")
    emit("topk", values=values, indices=indices, x=x, rows=x.size // columns, columns=columns, k=k)
    return values, indices


def argmax(x: Tensor) -> Tensor:
    """Index of the largest of the last dimension, the first if there are several: [..., N] -> int32 [...]."""
    columns = x.shape[-1]
    _expect("argmax", "x", x, x.shape)
    y = _new(x.shape[:-1], "int32")
    emit("argmax", y=y, x=x, rows=x.size // columns, columns=columns)
    return y


def sample(
    x: Tensor, uniform: Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Tensor:
    """An index of the last dimension drawn by softmax(x / temperature): [..., N], uniform [...] -> int32 [...].

    Only the `top_k` largest take part (0: all), of these the fewest that have `top_p` of the probability, and of these
    those with `min_p` times the highest probability or more. Numbers `uniform` in [0, 1) decide.
    """
    columns, rows = x.shape[-1], x.size // x.shape[-1]
    _expect("sample", "x", x, x.shape)
    _expect("sample", "uniform", uniform, x.shape[:-1])
    if not temperature > 0:
        raise InputError(f"sample() needs a positive temperature, not {temperature}.")
    k = min(top_k, columns) if top_k > 0 else columns
    y, order, weights = _new(x.shape[:-1], "int32"), _new((rows, k), "int32"), _new((rows, k))
    emit(
        "sample", y=y, order=order, weights=weights, x=x, uniform=uniform, rows=rows, columns=columns, k=k,
        temperature=temperature, top_p=top_p, min_p=min_p,
    )  # fmt: skip
    return y


def edit_scores(x: Tensor, index: Tensor, factors: Tensor) -> None:
    """Change elements of x in place, one edit after the other: index int32 [n], factors [n, 3].

    A finite x.flat[index] is multiplied by the first factor if negative, else by the second, and the third is added; a
    third of -inf makes any element -inf. An index out of range is passed over.
    """
    _expect("edit_scores", "x", x, x.shape)
    _expect("edit_scores", "index", index, index.shape, "int32")
    _expect("edit_scores", "factors", factors, (index.size, 3))
    emit("edit_scores", y=x, index=index, factors=factors, count=index.size, size=x.size)


def mask_scores(x: Tensor, bits: Tensor) -> None:
    """Make elements of x [..., N] -inf, in place, where their bits int32 [..., ceil(N / 32)], lowest first, are 0."""
    columns = x.shape[-1]
    _expect("mask_scores", "x", x, x.shape)
    _expect("mask_scores", "bits", bits, (*x.shape[:-1], -(-columns // 32)), "int32")
    emit("mask_scores", y=x, bits=bits, rows=x.size // columns, columns=columns)


def _quantize_rows(x: Tensor, layout: str) -> Tensor:
    """x as the linears of a quantised layout take it; the bytes are theirs to read."""
    inner = x.shape[-1]
    rows = x.size // inner
    xq = _new((-(-activation_nbytes(layout, rows, inner) // 4),), "int32")
    emit("quantize_rows", xq=xq, x=x, rows=rows, inner=inner, layout=LAYOUTS.index(layout))
    return xq


class _AttentionShapes:
    """Checked sizes of an attention."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        heads: int,
        kv_heads: int | None,
        scale: float | None,
    ) -> None:
        self.batch, self.q_len, width = q.shape
        self.kv_len = k.shape[1]
        self.kv_heads = kv_heads or heads
        self.head_dim = width // heads
        self.scale = self.head_dim**-0.5 if scale is None else scale
        if width % heads or heads % self.kv_heads:
            raise InputError(
                f"attention() cannot split {width} features into {heads} heads over {self.kv_heads} of keys."
            )
        _expect("attention", "q", q, q.shape)
        _expect("attention", "k", k, (self.batch, self.kv_len, self.kv_heads * self.head_dim))
        _expect("attention", "v", v, k.shape)
        if mask is not None:
            _expect("attention", "mask", mask, (self.batch, self.kv_len), "int32")
        self.bias_batch_stride = _bias_batch_stride(bias, self.batch, heads, self.q_len, self.kv_len)


def _at(x: Tensor, offset: int) -> Tensor:
    """The tensor's elements from `offset` on, as an operand."""
    return Tensor((x.size - offset,), x.dtype, Part(x.storage, 4 * offset)) if offset else x


def _bias_batch_stride(bias: Tensor | None, batch: int, heads: int, q_len: int, kv_len: int) -> int:
    if bias is None:
        return 0
    shared = bias.shape[0] == 1
    _expect("attention", "bias", bias, (1 if shared else batch, heads, q_len, kv_len))
    return 0 if shared else heads * q_len * kv_len


def _check_window(window: int, causal: bool) -> None:
    if window and not causal:
        raise InputError("attention() takes a window only where it is causal.")


def _softmax(x: Tensor, mask: Tensor | None, bias: Tensor | None, causal: bool, window: int, log: bool) -> Tensor:
    _check_window(window, causal)
    _expect("softmax", "x", x, x.shape)
    if mask is None and bias is None and not causal:
        batch, heads, q_len, kv_len = 1, 1, x.size // x.shape[-1], x.shape[-1]
    else:
        batch, heads, q_len, kv_len = x.shape
    if mask is not None:
        _expect("softmax", "mask", mask, (batch, kv_len), "int32")
    stride = _bias_batch_stride(bias, batch, heads, q_len, kv_len)
    y = _new(x.shape)
    emit(
        "softmax", y=y, x=x, mask=mask, bias=bias, batch=batch, heads=heads, q_len=q_len, kv_len=kv_len,
        bias_batch_stride=stride, causal=int(causal), window=window, log=int(log),
    )  # fmt: skip
    return y


def _binary(name: str, a: Tensor, b: Tensor) -> Tensor:
    _expect(name, "a", a, a.shape)
    _expect(name, "b", b, b.shape)
    if b.size != 1 and b.shape != a.shape[len(a.shape) - len(b.shape) :]:
        raise InputError(f"{name}() cannot broadcast {list(b.shape)} to {list(a.shape)}.")
    y = _new(a.shape)
    emit("binary", y=y, a=a, b=b, count=a.size, b_count=b.size, operation=BINARY.index(name))
    return y


def _new(shape: tuple[int, ...], dtype: str = "float32") -> Tensor:
    return recorder().scratch(shape, dtype)


def _activation(name: str) -> int:
    if name not in _ACTIVATION_NAMES:
        raise UnsupportedError(f"Unknown activation {name!r}.", hint=f"Known are: {', '.join(_ACTIVATION_NAMES)}.")
    return ACTIVATIONS.index(_ACTIVATION_NAMES[name])


def _expect(op: str, name: str, tensor: Tensor, shape: tuple[int, ...], dtype: str = "float32") -> None:
    if tensor.shape != shape or tensor.dtype != dtype:
        raise InputError(
            f"{op}() expects {name} as {dtype} {list(shape)}, found {tensor.dtype} {list(tensor.shape)}.",
            hint="Check the shapes of the inputs against the model's configuration.",
        )
