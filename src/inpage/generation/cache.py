"""Key-value caches: what a language model keeps of the tokens it has seen, in kernel memory.

A cache has two blocks a layer, keys and values, `[batch, capacity, heads]` of head vectors in a cache dtype
(`optable.py`). Layers with the same attention window form a group, whose rows are appended, moved and cut together. A
recorded program refers to the blocks by address and to registers for the number of rows, so one program serves all
steps until a block grows, and all caches of one size: `program_key` says what a program was recorded for, and
`program_blocks` to which blocks it is to refer.

A layer with a sliding window of W tokens keeps the last W - 1 rows at least; when its block is full, these move to its
beginning.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from .. import ops
from ..errors import DisposedError, InputError, UnsupportedError
from ..nn import HeapBlock
from ..optable import CACHE_DTYPES, cache_head_words
from ..program import Part, Recorded, Register, run_once
from ..tensor import Tensor

if TYPE_CHECKING:
    from ..executors.base import Executor

FIRST_CAPACITY = 64  # rows of a dynamic cache at the beginning
WINDOW_SLACK = 512  # most rows beyond a window, which save moving at every step

SEEN = Register(0)
"""Tokens in the cache before the run."""


class LayerShape(NamedTuple):
    """What a layer of a model asks of a cache; `window` 0 is attention to everything before."""

    kv_heads: int
    head_dim: int
    window: int = 0


class CacheLayer:
    """The blocks of one layer, and what of them is in use, as operands of recorded instructions."""

    def __init__(self, shape: LayerShape, group: "_Group", dtype: str) -> None:
        self.shape = shape
        self.group = group
        self.dtype = dtype
        self.row_words = shape.kv_heads * cache_head_words(dtype, shape.head_dim)
        self.blocks: list[HeapBlock] = []  # keys, values

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Record writing k and v [B, L, KVH*D] behind the rows there are; returns the whole blocks."""
        keys, values = self._tensor(0), self._tensor(1)
        for block, x in ((keys, k), (values, v)):
            ops.cache_append(block, x, self.group.before, head_dim=self.shape.head_dim, dtype=self.dtype)
        return keys, values

    def read(self, block: Tensor, length: int) -> Tensor:
        """Record reading the first `length` rows of a block: [B, length, KVH*D]."""
        return ops.cache_read(block, length, head_dim=self.shape.head_dim, dtype=self.dtype)

    def _tensor(self, which: int) -> Tensor:
        shape = (self.group.batch, self.group.capacity, self.shape.kv_heads, self.row_words // self.shape.kv_heads)
        return Tensor(shape, "int32", self.blocks[which])


class _Group:
    """The layers of one window. `rows` are in use, of which the first is token `start` of the sequence."""

    def __init__(self, number: int, window: int, batch: int) -> None:
        self.number = number
        self.window = window
        self.batch = batch
        self.layers: list[CacheLayer] = []
        self.mask_block: HeapBlock | None = None
        self.capacity = self.rows = self.start = 0
        self.before, self.after = Register(1 + 2 * number), Register(2 + 2 * number)

    @property
    def mask(self) -> Tensor | None:
        """int32 [B, capacity], 0 where a token is hidden; None if none is."""
        return None if self.mask_block is None else Tensor((self.batch, self.capacity), "int32", self.mask_block)

    def blocks(self) -> Iterator[tuple[int, HeapBlock]]:
        """Every block with the words of one of its rows."""
        for layer in self.layers:
            yield from ((layer.row_words, block) for block in layer.blocks)
        if self.mask_block is not None:
            yield 1, self.mask_block

    def limit(self, length: int) -> int:
        """Rows that are enough for a window and `length` new tokens."""
        return self.window - 1 + max(length, FIRST_CAPACITY, min(self.window, WINDOW_SLACK))


class Cache:
    """Keys and values of a batch of sequences; give it to every call of a model as `past_key_values`.

    `kv_cache_dtype` is f32, f16 or q8. Memory is taken at the first use, and given back by `dispose()`, at the end of a
    `with` block, or with the last reference.
    """

    def __init__(self, *, kv_cache_dtype: str = "f32") -> None:
        if kv_cache_dtype not in CACHE_DTYPES:
            raise UnsupportedError(
                f"Unknown kv_cache_dtype {kv_cache_dtype!r}.", hint=f"Use one of {', '.join(CACHE_DTYPES)}."
            )
        self.kv_cache_dtype = kv_cache_dtype
        self.layers: list[CacheLayer] = []
        self.program_key: tuple[Any, ...] = ()
        self.program_blocks: tuple[int, ...] = ()
        self.disposed = False
        self._groups: list[_Group] = []
        self._executor: Executor | None = None
        self._shapes: Sequence[LayerShape] = ()
        self._length = 0
        self.expected = 0  # tokens that the sequence is about to have; 0 where nobody says
        self._mask: list[bytearray] | None = None  # for each sequence, 1 where a token is visible
        self._reorder: Recorded | None = None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens seen."""
        return self._length

    def __len__(self) -> int:
        return len(self.layers)

    def __bool__(self) -> bool:
        return True

    @property
    def mask(self) -> list[bytearray] | None:
        """For every sequence 1 where a token is visible, 0 where it is not; None if all are."""
        return self._mask

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows in use, for every group of layers."""
        return tuple(group.rows for group in self._groups)

    @property
    def batch_size(self) -> int:
        """Sequences, 0 before the first use."""
        return self._groups[0].batch if self._groups else 0

    @property
    def nbytes(self) -> int:
        """Bytes in kernel memory."""
        return sum(block.nbytes for group in self._groups for _, block in group.blocks())

    @contextmanager
    def expecting(self, length: int) -> Iterator[None]:
        """While the sequence gets to `length` tokens in pieces: blocks grow once, and frequencies are those of all."""
        self.expected = length
        try:
            yield
        finally:
            self.expected = 0

    def crop(self, max_length: int) -> None:
        """Forget all but the first `max_length` tokens, or the last -max_length if it is negative.

        Raises InputError where a sliding window has dropped what would then be seen.
        """
        self.check()
        length = max_length if max_length >= 0 else max(0, self._length + max_length)
        if length >= self._length:
            return
        cut = self._length - length
        for group in self._groups:
            if group.start and group.rows - cut < group.window - 1:
                raise InputError(
                    f"The cache cannot be cropped to {length} tokens: a window of {group.window} has dropped some.",
                    hint="Start a new cache and give it the tokens again.",
                )
        for group in self._groups:
            group.rows -= cut
            self._reveal(group)
        self._length = length
        if self._mask is not None:
            self._mask = [row[:length] for row in self._mask]

    def reset(self) -> None:
        """Forget all tokens and keep the memory."""
        self.check()
        for group in self._groups:
            group.rows = group.start = 0
            self._reveal(group)
        self._length = 0
        self._mask = None if self._mask is None else [bytearray() for _ in self._mask]

    def reorder_cache(self, beam_idx: Sequence[int]) -> None:
        """Let sequence i continue what sequence beam_idx[i] has been."""
        self.check()
        if self.batch_size != len(beam_idx):
            raise InputError(f"reorder_cache() needs {self.batch_size} indices, found {len(beam_idx)}.")
        if not self._groups or list(beam_idx) == list(range(len(beam_idx))):
            return
        if self._reorder is None:
            self._reorder = Recorded(self._record_reorder, self._on())
        index = Tensor.from_values(list(beam_idx), "int32")
        self._reorder(index=index, cache=self, registers=self._registers(0))
        if self._mask is not None:
            self._mask = [bytearray(self._mask[i]) for i in beam_idx]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence `repeats` times, one after the other."""
        self.batch_select_indices([i for i in range(self.batch_size) for _ in range(repeats)])

    def batch_select_indices(self, indices: Sequence[int]) -> None:
        """The sequences `indices` in place of those there are."""
        self.check()
        if bad := [i for i in indices if not 0 <= i < self.batch_size]:
            raise InputError(f"The cache has no sequence {bad[0]}; it has {self.batch_size}.")
        for group in self._groups:
            self._rebuild(group, group.capacity, indices)
        if self._mask is not None:
            self._mask = [bytearray(self._mask[i]) for i in indices]
        self._moved()

    def copy(self) -> Self:
        """Another cache with the same contents."""
        self.check()
        other = self._empty_copy()
        if self._executor is None:
            return other
        other._open(self._executor, self._shapes, self.batch_size)
        other._length = self._length
        other._mask = None if self._mask is None else [bytearray(row) for row in self._mask]
        for mine, its in zip(self._groups, other._groups, strict=True):
            its.rows, its.start, its.capacity = mine.rows, mine.start, mine.capacity
            for layer, source in zip(its.layers, mine.layers, strict=True):
                layer.blocks = [self._duplicate(block) for block in source.blocks]
            its.mask_block = None if mine.mask_block is None else self._duplicate(mine.mask_block)
        other._moved()
        return other

    def __copy__(self) -> Self:
        return self.copy()  # two caches with the same blocks would free them twice

    def __deepcopy__(self, memo: Any) -> Self:
        return self.copy()

    def dispose(self) -> None:
        """Free the memory. The cache is of no use afterwards."""
        for group in self._groups:
            for _, block in group.blocks():
                block.free()
        if self._reorder is not None:
            self._reorder.dispose()
        self._groups, self.layers, self._executor, self.disposed = [], [], None, True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.dispose()

    def __del__(self) -> None:
        if not getattr(self, "disposed", True):
            self.dispose()

    # What models use

    @contextmanager
    def extended(
        self, executor: "Executor", shapes: Sequence[LayerShape], batch: int, length: int, mask: Tensor | None
    ) -> Iterator[list[int]]:
        """Room for `length` more tokens of `batch` sequences; gives the registers of a run that fills it.

        `mask` int32 [B, tokens seen + length] hides tokens with 0; without one the new tokens are visible. If the run
        fails, the cache is as before.
        """
        self.check()
        if self._executor is None:
            self._open(executor, shapes, batch)
        elif self._executor is not executor or (shapes is not self._shapes and list(shapes) != list(self._shapes)):
            raise InputError("The cache belongs to another model.", hint="Use one cache for each model.")
        if batch != self.batch_size:
            raise InputError(
                f"The cache holds {self.batch_size} sequences, the inputs {batch}.",
                hint="Use a new cache, or batch_select_indices().",
            )
        for group in self._groups:
            self._reserve(group, length)
        before = self._mask
        if mask is not None:
            self._hide(mask, length)
        try:
            yield self._registers(length)
        except BaseException:
            if self._mask is not None:
                self._show(before or [bytearray(b"\1" * self._length) for _ in self._mask])
            raise
        self.add(length)
        if self._mask is not None:
            self._mask = [row.ljust(self._length, b"\1") for row in self._mask]

    def set_registers(self, registers: memoryview, length: int) -> bool:
        """Put in what programs refer to, in a run that adds `length` tokens; False unless no block need move for them.

        A program that was recorded with the present `program_key` can run with these and `program_blocks`, and `add`
        counts the tokens after it. This is `extended` without a look at what has not changed; False, too, while tokens
        are hidden.
        """
        if self._mask is not None:
            return False
        registers[0] = self._length
        place = 1
        for group in self._groups:
            rows = group.rows + length
            if rows > group.capacity:
                return False
            registers[place], registers[place + 1] = group.rows, rows
            place += 2
        return True

    def add(self, length: int) -> None:
        """Count `length` more tokens as seen."""
        for group in self._groups:
            group.rows += length
        self._length += length

    def _capacity(self, group: _Group, needed: int, length: int) -> int:
        """Rows to allocate where `needed` are too many for the present block."""
        raise NotImplementedError

    def _empty_copy(self) -> Self:
        return type(self)(kv_cache_dtype=self.kv_cache_dtype)

    def _open(self, executor: "Executor", shapes: Sequence[LayerShape], batch: int) -> None:
        self._executor, self._shapes = executor, shapes
        groups: dict[int, _Group] = {}
        for shape in shapes:
            if shape.window not in groups:
                groups[shape.window] = _Group(len(groups), shape.window, batch)
            layer = CacheLayer(shape, groups[shape.window], self.kv_cache_dtype)
            groups[shape.window].layers.append(layer)
            self.layers.append(layer)
        self._groups = list(groups.values())

    def _registers(self, length: int) -> list[int]:
        values = [self._length]
        for group in self._groups:
            values += (group.rows, group.rows + length)
        return values

    def _reserve(self, group: _Group, length: int) -> None:
        if group.window and group.rows + length > max(group.capacity, group.limit(length)):
            self._slide(group)
        needed = group.rows + length
        if needed > group.capacity:
            self._rebuild(group, self._capacity(group, needed, length), range(group.batch))
            self._moved()

    def _slide(self, group: _Group) -> None:
        """Move the rows that a window still needs to the beginning."""
        kept = min(group.rows, group.window - 1)
        dropped = group.rows - kept
        if dropped:
            self._run(lambda: [self._move(block, words, group, dropped, kept) for words, block in group.blocks()])
            group.rows, group.start = kept, group.start + dropped
            self._reveal(group)

    def _move(self, block: HeapBlock, words: int, group: _Group, first: int, rows: int) -> None:
        step = group.capacity * words
        _copy(_at(block, 0), _at(block, first * words), (group.batch, rows * words), (step, step))

    def _rebuild(self, group: _Group, capacity: int, indices: Sequence[int]) -> None:
        """New blocks of `capacity` rows for the sequences `indices`, one block at a time, to save memory.

        If there is not enough of it, the cache is disposed of.
        """

        def moved(block: HeapBlock | None, words: int) -> HeapBlock:
            new = HeapBlock(self._on(), 4 * len(indices) * capacity * words)
            if block is not None and group.rows:
                self._run(lambda: [gather(block, new, words, to, source) for to, source in enumerate(indices)])
            if block is not None:
                block.free()
            return new

        def gather(old: HeapBlock, new: HeapBlock, words: int, to: int, source: int) -> None:
            x, y = _at(old, source * group.capacity * words), _at(new, to * capacity * words)
            _copy(y, x, (1, group.rows * words), (0, 0))

        try:
            for layer in group.layers:
                for i in range(2):
                    new = moved(layer.blocks[i] if i < len(layer.blocks) else None, layer.row_words)
                    layer.blocks[i : i + 1] = [new]
            if group.mask_block is not None:
                group.mask_block = moved(group.mask_block, 1)
        except BaseException:
            self.dispose()  # some blocks have moved and others have not
            raise
        group.batch, group.capacity = len(indices), capacity
        self._reveal(group)

    def _hide(self, mask: Tensor, length: int) -> None:
        """Take over an attention mask of all tokens, the `length` new ones included. Without zeros there is none."""
        total, batch = self._length + length, self.batch_size
        if mask.shape != (batch, total):
            raise InputError(
                f"attention_mask must have shape {[batch, total]} with {self._length} tokens in the cache, "
                f"found {list(mask.shape)}."
            )
        data = mask.data
        if self._mask is None and 0 not in data:
            return
        rows = [bytearray(bool(v) for v in data[b * total : (b + 1) * total]) for b in range(batch)]
        if self._mask is None:
            self._mask = [bytearray(b"\1" * self._length) for _ in rows]
            for group in self._groups:
                group.mask_block = HeapBlock(self._on(), 4 * batch * group.capacity)
                self._on().write(group.mask_block.address, array("i", [1]) * (batch * group.capacity))
            self._moved()
        same = all(row[: self._length] == old for row, old in zip(rows, self._mask, strict=True))
        self._write_mask(rows, self._length if same else 0)

    def _show(self, rows: list[bytearray]) -> None:
        """Go back to a mask of the tokens in use."""
        self._write_mask(rows, 0)
        for group in self._groups:
            self._reveal(group)

    def _write_mask(self, rows: list[bytearray], first: int) -> None:
        """Let `rows` be the mask; they differ from what there is from token `first` on."""
        self._mask = rows
        for group in self._groups:
            assert group.mask_block is not None
            begin = max(first, group.start)
            for b, row in enumerate(rows):
                address = group.mask_block.address + 4 * (b * group.capacity + begin - group.start)
                self._on().write(address, array("i", list(row[begin:])))

    def _reveal(self, group: _Group) -> None:
        """Let tokens behind those in use be visible."""
        free = group.capacity - group.rows
        if group.mask_block is not None and free:
            for b in range(group.batch):
                address = group.mask_block.address + 4 * (b * group.capacity + group.rows)
                self._on().write(address, array("i", [1]) * free)

    def _record_reorder(self, index: Tensor, cache: "Cache") -> None:
        for group in cache._groups:
            for words, block in group.blocks():
                shape = (group.batch, group.capacity * words)
                taken = ops.gather(Tensor(shape, "int32", block), index, group.before, words)
                dims, strides = (group.batch, group.before, words), (group.capacity * words, words, 1)
                ops.copy_into(_at(block, 0), taken, dims, strides, strides)

    def _duplicate(self, block: HeapBlock) -> HeapBlock:
        new = HeapBlock(self._on(), block.nbytes)
        self._run(lambda: _copy(_at(new, 0), _at(block, 0), (1, block.nbytes // 4), (0, 0)))
        return new

    def _moved(self) -> None:
        """Blocks have other places or sizes."""
        self.program_blocks = tuple(block.address for group in self._groups for _, block in group.blocks())
        capacities = tuple(group.capacity for group in self._groups)
        masked = any(group.mask_block is not None for group in self._groups)
        self.program_key = (self.kv_cache_dtype, self.batch_size, masked, capacities)

    def _run(self, function: Callable[[], Any]) -> None:
        run_once(lambda: function() and None, self._on())

    def _on(self) -> "Executor":
        self.check()
        assert self._executor is not None
        return self._executor

    def check(self) -> None:
        """Raise DisposedError after `dispose()`."""
        if self.disposed:
            raise DisposedError("This cache was disposed of.", hint="Make a new one.")


class DynamicCache(Cache):
    """A cache that grows with the sequence, by doubling, so that little is copied and at most half stays empty."""

    def _capacity(self, group: _Group, needed: int, length: int) -> int:
        # One of few sizes, as programs are recorded for each, and with room for a token more.
        rows = FIRST_CAPACITY
        while rows <= max(needed, self.expected):
            rows *= 2
        return max(needed, min(rows, group.limit(length)) if group.window else rows)


class StaticCache(Cache):
    """A cache with room for `max_cache_len` tokens, taken at once; it never moves, and its programs stay valid."""

    def __init__(self, max_cache_len: int, *, kv_cache_dtype: str = "f32") -> None:
        super().__init__(kv_cache_dtype=kv_cache_dtype)
        if max_cache_len < 1:
            raise InputError(f"max_cache_len must be positive, not {max_cache_len}.")
        self.max_cache_len = max_cache_len

    def _empty_copy(self) -> Self:
        return type(self)(self.max_cache_len, kv_cache_dtype=self.kv_cache_dtype)

    def _capacity(self, group: _Group, needed: int, length: int) -> int:
        if self._length + length > self.max_cache_len:
            raise InputError(
                f"{self._length + length} tokens do not fit into a StaticCache of {self.max_cache_len}.",
                hint="Make it larger, or use a DynamicCache.",
            )
        return min(self.max_cache_len, group.limit(length)) if group.window else self.max_cache_len


def check_cache(cache: Any) -> None:
    """Raise InputError for what is neither a cache nor None, DisposedError for one that was disposed of."""
    if not isinstance(cache, Cache | None):
        raise InputError(f"past_key_values must be a cache, not {cache!r:.60}.", hint="Begin with DynamicCache().")
    if cache is not None:
        cache.check()


def cache_nbytes(shapes: Sequence[LayerShape], batch: int, capacity: int, kv_cache_dtype: str = "f32") -> int:
    """Bytes of a cache: 2 * layers * batch * capacity * heads * bytes of a head vector, without masks."""
    words = sum(shape.kv_heads * cache_head_words(kv_cache_dtype, shape.head_dim) for shape in shapes)
    return 4 * prod((2, batch, capacity, words))


def _at(block: HeapBlock, words: int) -> Tensor:
    return Tensor((), "int32", Part(block, 4 * words))


def _copy(y: Tensor, x: Tensor, dims: tuple[int, int], strides: tuple[int, int]) -> None:
    """Rows of words from x to y, `strides` of y and x apart."""
    ops.copy_into(y, x, dims, (strides[0], 1), (strides[1], 1))
