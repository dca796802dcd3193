"""The reference executor's ops of attention: scores, softmax, the join of shares, and key-value caches."""

import numpy as np

from ..optable import CACHE_DTYPES, cache_head_words
from .reference_memory import LOWEST, Array, Memory, Refused


def log_softmax(scores: Array) -> Array:
    shifted = scores - scores.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def adjusted(m: Memory, scores: Array, mask: int, bias: int, bias_batch_stride: int, causal: int, window: int,
             mask_stride: int) -> Array:  # fmt: skip
    """Scores [batch, heads, q_len, kv_len] with the bias added, and the lowest float32 where nothing may be seen."""
    batch, _, q_len, kv_len = scores.shape
    if bias:
        strides = (bias_batch_stride, q_len * kv_len, kv_len, 1)
        scores = np.maximum(scores + m.strided(bias, scores.shape, strides).astype(np.float64), LOWEST)
    if mask:
        seen = m.strided(mask, (batch, 1, 1, kv_len), (mask_stride, 0, 0, 1), np.int32)
        scores = np.where(seen == 0, LOWEST, scores)
    if causal:
        last, keys = np.arange(q_len)[:, None] + (kv_len - q_len), np.arange(kv_len)[None, :]
        scores = np.where((keys > last) | (window > 0) & (keys <= last - window), LOWEST, scores)
    return scores


def head_vectors(m: Memory, address: int, shape: tuple[int, int, int], row_words: int, capacity: int, dtype: int,
                 head_dim: int) -> Array:  # fmt: skip
    """[batch, length, heads, head_dim] of a cache whose batch items are `capacity` rows of `row_words` words apart."""
    name = CACHE_DTYPES[dtype]
    words = cache_head_words(name, head_dim)
    steps = (capacity * row_words, row_words, words, 1)
    stored = np.ascontiguousarray(m.strided(address, (*shape, words), steps, np.uint32))
    if name == "f32":
        return stored.view(np.float32).astype(np.float64)
    if name == "f16":
        return stored.view(np.float16)[..., :head_dim].astype(np.float64)
    quants = np.ascontiguousarray(stored[..., 1:]).view(np.int8)[..., :head_dim]
    return stored[..., :1].view(np.float32).astype(np.float64) * quants


def attention(m: Memory, y: int, q: int, k: int, v: int, mask: int, bias: int, batch: int, heads: int, kv_heads: int,
              q_len: int, kv_len: int, head_dim: int, q_stride: int, k_stride: int, v_stride: int,
              bias_batch_stride: int, causal: int, scale: float, capacity: int, mask_stride: int, window: int,
              cache_dtype: int, softcap: float, shares: int) -> None:  # fmt: skip
    """y [batch, q_len, heads, head_dim] = softmax(scale * q k^T + bias, masked) v, head by head.

    q is [batch, q_len, heads, head_dim], k and v are [batch, kv_len, kv_heads] head vectors of the cache dtype;
    `q_stride` is the elements, `k_stride` and `v_stride` are the 32-bit words from one position to the next (so q, k
    and v may lie side by side). A batch item of q is q_len such steps, one of k and v `capacity` steps. Head h reads
    key head h // (heads / kv_heads). mask is int32 [batch, kv_len], its rows `mask_stride` apart; bias is [batch,
    heads, q_len, kv_len] with `bias_batch_stride` elements from item to item (0: one for all). softcap: scores s become
    softcap * tanh(s / softcap) before the bias. causal: query i sees keys up to i + kv_len - q_len, and of these the
    last `window` if that is not 0. With several `shares` of the keys y is what `join_attention` takes. Refuses more
    keys than `capacity`, and shares for several queries or with a window.
    """
    if kv_len > capacity or (shares > 1 and (q_len > 1 or window)):
        raise Refused
    group = heads // kv_heads
    strides = (q_len * q_stride, q_stride, head_dim, 1)
    queries = m.strided(q, (batch, q_len, heads, head_dim), strides).astype(np.float64)
    keys, values = (
        head_vectors(m, address, (batch, kv_len, kv_heads), stride, capacity, cache_dtype, head_dim).repeat(group, 2)
        for address, stride in ((k, k_stride), (v, v_stride))
    )
    scores = scale * np.einsum("bihd,bjhd->bhij", queries, keys)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    scores = adjusted(m, scores, mask, bias, bias_batch_stride, causal, window, mask_stride)
    if shares > 1:
        m.put(y, np.stack([open_share(scores, values, *kv_share(kv_len, s, shares)) for s in range(shares)], 2))
        return
    m.put(y, np.einsum("bhij,bjhd->bihd", np.exp(log_softmax(scores)), values))


def kv_share(kv_len: int, share: int, shares: int) -> tuple[int, int]:
    """First key of a share and that of the next."""
    return kv_len * share // shares, kv_len * (share + 1) // shares


def open_share(scores: Array, values: Array, start: int, stop: int) -> Array:
    """[batch, heads, head_dim + 2] of the scores [batch, heads, 1, kv_len] and values of one share of the keys."""
    scores, values = scores[:, :, 0, start:stop], values[:, start:stop]
    highest = np.maximum(scores.max(2, initial=-np.inf, keepdims=True) / np.log(2), LOWEST)
    weights = np.exp2(np.maximum(scores / np.log(2), LOWEST) - highest)
    return np.concatenate([np.einsum("bhj,bjhd->bhd", weights, values), highest, weights.sum(2, keepdims=True)], 2)


def join_attention(m: Memory, y: int, x: int, rows: int, shares: int, head_dim: int) -> None:
    """y [rows, head_dim] = attention to all keys, from what `attention` left of each share of them."""
    parts = m.floats(x, rows, shares, head_dim + 2)
    sums, highest, totals = parts[..., :head_dim], parts[..., head_dim], parts[..., head_dim + 1]
    factors = np.exp2(highest - highest.max(1, keepdims=True))
    m.put(y, (sums * factors[..., None]).sum(1) / (totals * factors).sum(1)[:, None])


def softmax(m: Memory, y: int, x: int, mask: int, bias: int, batch: int, heads: int, q_len: int, kv_len: int,
            bias_batch_stride: int, causal: int, window: int, log: int) -> None:  # fmt: skip
    """y = softmax (or its logarithm) of x + bias over the last axis of [batch, heads, q_len, kv_len].

    mask [batch, kv_len], bias, causal and window are as in `attention`.
    """
    scores = m.floats(x, batch, heads, q_len, kv_len)
    scores = adjusted(m, scores, mask, bias, bias_batch_stride, causal, window, kv_len)
    result = log_softmax(scores)
    m.put(y, result if log else np.exp(result))


def cache_append(m: Memory, y: int, x: int, batch: int, length: int, heads: int, head_dim: int, capacity: int,
                 position: int, dtype: int) -> None:  # fmt: skip
    """Rows position .. position + length - 1 of the cache y = x [batch, length, heads, head_dim], in its dtype.

    q8 takes each head vector in 127 steps to its largest magnitude. Refuses rows past `capacity`.
    """
    if position + length > capacity:
        raise Refused
    name, values = CACHE_DTYPES[dtype], m.array(x, (batch, length, heads, head_dim))
    words = cache_head_words(name, head_dim)
    rows = m.array(y, (batch, capacity, heads, words), np.uint32)[:, position : position + length]
    if name == "f32":
        rows[...] = values.view(np.uint32)
    elif name == "f16":
        padded = np.zeros((batch, length, heads, 2 * words), np.float16)
        padded[..., :head_dim] = values
        rows[...] = padded.view(np.uint32)
    else:
        highest = np.abs(values).max(-1, keepdims=True)
        inverse = np.divide(np.float32(127), highest, where=highest > 0, out=np.zeros_like(highest))
        padded = np.zeros((batch, length, heads, 4 * (words - 1)), np.int8)
        padded[..., :head_dim] = np.rint(values * inverse)
        rows[..., :1] = (highest / np.float32(127)).view(np.uint32)
        rows[..., 1:] = padded.view(np.uint32)


def cache_read(m: Memory, y: int, x: int, batch: int, length: int, heads: int, head_dim: int, capacity: int,
               dtype: int) -> None:  # fmt: skip
    """y [batch, length, heads, head_dim] = the first `length` rows of every batch item of the cache x."""
    words = cache_head_words(CACHE_DTYPES[dtype], head_dim)
    m.put(y, head_vectors(m, x, (batch, length, heads), heads * words, capacity, dtype, head_dim))
