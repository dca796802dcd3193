"""Recording a function over tensors into a program, and keeping programs by the signature of their inputs.

A program is a flat list of instructions (`optable.py`). While recording, Python's reference counts are the memory plan:
a temporary that nothing refers to any more gives its part of the arena to the operations that follow.
"""

import struct
from array import array
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from math import inf, prod
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import InputError
from .executors.memory import Allocator
from .optable import OPS
from .tensor import Tensor, from_bytes

if TYPE_CHECKING:
    from .executors.base import Executor

REGISTERS = 64
REGISTER_BYTES = 4 * REGISTERS
MAX_PROGRAMS = 32


class Slot(NamedTuple):
    """Place of an input or output in the arena."""

    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return 4 * prod(self.shape)


class Scratch:
    """Part of the arena of the program being recorded, free again when the last tensor in it is gone."""

    __slots__ = ("_recorder", "derived", "nbytes", "number", "offset")

    def __init__(self, recorder: "Recorder", number: int, nbytes: int) -> None:
        self._recorder = recorder
        self.derived: dict[Any, Tensor] = {}
        self.number = number  # unlike the offset, of this part alone
        self.nbytes = nbytes
        self.offset = recorder.arena.allocate(nbytes)

    def __del__(self) -> None:
        self._recorder.arena.free(self.offset)


class Constant:
    """Values baked into a program, on the heap for as long as the program lives."""

    __slots__ = ("address", "nbytes")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes


class Part(NamedTuple):
    """The bytes of another storage from `start` on."""

    whole: Any
    start: int


class Instruction(NamedTuple):
    """Where an instruction begins in the words, and the numbers of the scratch parts that it reads and writes.

    What is not in the arena, such as a key-value cache, is 0.
    """

    start: int
    reads: list[int]
    writes: list[int]


class Register(int):
    """Number of a register whose value an integer operand takes when the program runs."""


class Program:
    """Instructions with their memory plan. Owns its words and constants on the executor's heap."""

    def __init__(self, recorder: "Recorder", inputs: list[Slot], outputs: list[Slot]) -> None:
        self.words = recorder.words
        self.table = array("I")  # what the executor puts behind the words
        self.blocks = recorder.blocks
        """Addresses of the blocks that the next run refers to; others may take the places of those of the recording."""
        self._relocations = array("I", recorder.relocations), array("I", recorder.relocations.values())
        self._bases = (0, *recorder.blocks)  # of the addresses in the words: the arena's, and the blocks'
        self.arena_bytes = recorder.arena.peak
        self.inputs = inputs
        self.outputs = outputs
        # Registers and inputs are the first that the arena holds, one after another, so one write brings all of them.
        self.places = [(slot.offset, slot.offset + slot.nbytes) for slot in inputs]
        self.staged = bytearray(self.places[-1][1] if inputs else REGISTER_BYTES)
        self.ints = memoryview(self.staged).cast("i")
        self.results = [(slot.offset, slot.nbytes) for slot in outputs]
        self.address = 0
        self.linked: Any = None  # what addresses of the arena and of blocks the words in kernel memory have
        self.seconds = inf  # that the last run in steps took
        self._executor = recorder.executor
        self.disposed = False
        self._constants = recorder.constants

    def stage(self, inputs: Iterable[Any], registers: Sequence[int] = ()) -> None:
        """Set the values of the next run: inputs as bytes-like objects, and those of the first registers."""
        for i, value in enumerate(registers):
            self.ints[i] = value
        for (start, stop), data in zip(self.places, inputs, strict=True):
            self.staged[start:stop] = data

    def relocate(self, arena: int) -> None:
        """Let the words refer to the arena at this address, and to `blocks`."""
        words, bases = self.words, (arena, *self.blocks)
        moves = [new - old for new, old in zip(bases, self._bases, strict=True)]
        for position, base in zip(*self._relocations, strict=True):
            words[position] += moves[base]
        self._bases = bases

    def after(self, begin: int, count: int) -> int:
        """The word behind the `count` instructions from word `begin` on, or the end."""
        end, words = begin, self.words
        while count > 0 and end < len(words):
            end += words[end] >> 16
            count -= 1
        return end

    def dispose(self) -> None:
        """Free what the program holds in kernel memory."""
        self.disposed = True
        for constant in self._constants:
            self._executor.free(constant.address)
        self._constants = []
        if self.address:
            self._executor.free(self.address)
            self.address, self.linked = 0, None


class Recorder:
    """Collects the instructions of one program. `blocks` are addresses on the heap that it can be moved from."""

    def __init__(self, executor: "Executor", blocks: tuple[int, ...] = ()) -> None:
        self.executor = executor
        self.words = array("I")
        self.blocks = blocks
        self.relocations: dict[int, int] = {}  # by index of a word that is an address: 0 in the arena, n in block n - 1
        self._bases = {address: base for base, address in enumerate(blocks, 1)}
        self.arena = Allocator()
        self.arena.allocate(REGISTER_BYTES)
        self.constants: list[Constant] = []
        self._instructions: list[Instruction] = []
        self._numbers = count(1)

    def scratch(self, shape: tuple[int, ...], dtype: str = "float32") -> Tensor:
        """A tensor in the arena, its contents undefined."""
        return Tensor(shape, dtype, Scratch(self, next(self._numbers), 4 * prod(shape)))

    def constant(self, values: Any, dtype: str | None = None) -> Tensor:
        """A tensor with fixed values."""
        host = Tensor.from_values(values, dtype)
        address = self.executor.allocate(host.nbytes)
        self.constants.append(Constant(address, host.nbytes))
        if host.nbytes:
            self.executor.write(address, host.data)
        return Tensor(host.shape, host.dtype, self.constants[-1])

    def once(self, x: Tensor, key: Any, make: Callable[[], Tensor]) -> Tensor:
        """What `make` derives from x, made once for each key and kept for as long as x is."""
        if not isinstance(x.storage, Scratch):
            return make()
        if key not in x.storage.derived:
            x.storage.derived[key] = make()
        return x.storage.derived[key]

    def emit(self, op_name: str, **operands: Any) -> None:
        """Append an instruction; operands by the names of the op table, missing optional ones are 0."""
        op = OPS[op_name]
        words = self.words
        instruction = Instruction(len(words), [], [])
        self._instructions.append(instruction)
        words.append(op.number | op.length << 16)
        words.append(1)
        for name, kind, optional in op.operands:
            value = operands.pop(name) if not optional else operands.pop(name, None)
            if kind in ("in", "out"):
                parts = instruction.reads if kind == "in" else instruction.writes
                words.append(self._address(value, parts) if value is not None else 0)
            elif kind == "float":
                words.append(struct.unpack("<I", struct.pack("<f", value))[0])
            else:
                words.append((-1 - value if isinstance(value, Register) else value) & 0xFFFFFFFF)
        if operands:
            raise TypeError(f"op {op_name!r} has no operands {sorted(operands)}")

    def drop_unused(self, results: Iterable[int]) -> None:
        """Leave out the instructions of which nothing comes to the results, parts by number, or out of the arena."""
        used = {0, *results}
        kept: list[Instruction] = []
        for instruction in reversed(self._instructions):
            if not used.isdisjoint(instruction.writes):
                used.update(instruction.reads)
                kept.append(instruction)
        if len(kept) == len(self._instructions):
            return
        words, relocations = array("I"), dict[int, int]()
        for start, _, _ in reversed(kept):
            length = self.words[start] >> 16
            moved = len(words) - start
            words += self.words[start : start + length]
            for i in range(start, start + length):
                if i in self.relocations:
                    relocations[i + moved] = self.relocations[i]
        self.words, self.relocations = words, relocations

    def _address(self, tensor: Tensor, parts: list[int]) -> int:
        """Address of an operand, or its offset in the arena; the number of its part of that goes to `parts`."""
        storage, start = tensor.storage, 0
        if isinstance(storage, Part):
            storage, start = storage
        parts.append(storage.number if isinstance(storage, Scratch) else 0)
        if isinstance(storage, Scratch):
            self.relocations[len(self.words)] = 0
            return storage.offset + start
        if storage is None or not hasattr(storage, "address"):
            raise InputError(
                f"{tensor!r} is not in kernel memory.", hint="Pass it to the recorded function as an argument, by name."
            )
        if storage.address in self._bases:
            self.relocations[len(self.words)] = self._bases[storage.address]
        return storage.address + start


_recorders: list[Recorder] = []


def recorder() -> Recorder:
    """The recorder in use. Raises InputError outside a recorded function."""
    if not _recorders:
        raise InputError(
            "Operations work inside a recorded function only.",
            hint="Wrap the function: `run = jit(function, executor)`.",
        )
    return _recorders[-1]


@contextmanager
def recording(executor: "Executor", blocks: tuple[int, ...] = ()) -> Iterator[Recorder]:
    """Make a fresh recorder the one in use."""
    _recorders.append(Recorder(executor, blocks))
    try:
        yield _recorders[-1]
    finally:
        _recorders.pop()


def record(function: Callable[..., Any], executor: "Executor", arguments: dict[str, Any]) -> tuple[Program, Any]:
    """The program of `function(**arguments)` and the structure of its result, with `Slot`s for tensors."""
    with recording(executor, _blocks(arguments)) as into:
        try:
            inputs = {
                name: into.scratch(value.shape, value.dtype)
                for name, value in arguments.items()
                if isinstance(value, Tensor)
            }
            slots = [_slot(symbol) for symbol in inputs.values()]
            result = function(**{**arguments, **inputs})
            outputs: list[Slot] = []
            used: list[int] = []
            structure = _map(result, lambda tensor: _output(tensor, outputs, used))
            into.drop_unused(used)
            return Program(into, slots, outputs), structure
        except BaseException:
            for constant in into.constants:
                executor.free(constant.address)
            raise


class Recorded:
    """A function with its programs; what `jit` returns."""

    def __init__(self, function: Callable[..., Any], executor: "Executor") -> None:
        self._function = function
        self._executor = executor
        self._programs: OrderedDict[Any, tuple[Program, Any]] = OrderedDict()
        self.last: Program | None = None  # that the last call has run

    def __call__(self, *, registers: Sequence[int] = (), **arguments: Any) -> Any:
        """Run with host tensors as inputs and the values of the first registers.

        Other arguments are static and must be hashable. One with a `program_key` is represented by that: memory which a
        program refers to, such as a key-value cache, says so what of it may not change. The addresses of its
        `program_blocks` may.
        """
        program, structure, data = self._ready(arguments)
        return _filled(structure, self._executor.run(program, data, registers))

    def steps(
        self, *, registers: Sequence[int] = (), at_once: bool = False, **arguments: Any
    ) -> Generator[None, None, Any]:
        """A call with pauses, unless it is to run `at_once`; see `Executor.steps`."""
        program, structure, data = self._ready(arguments)
        if at_once:
            return _filled(structure, self._executor.run(program, data, registers))
        return _filled(structure, (yield from self._executor.steps(program, data, registers)))

    def _ready(self, arguments: dict[str, Any]) -> tuple[Program, Any, list[memoryview]]:
        """The program for some arguments, the structure of its result, and the data of its inputs."""
        signature: list[Any] = []
        data: list[memoryview] = []
        for name, value in arguments.items():
            if isinstance(value, Tensor):
                signature.append((name, value.shape, value.dtype))
                data.append(value.data)
            else:
                signature.append((name, getattr(value, "program_key", value)))
        self.last, structure = self._program(tuple(signature), arguments)
        self.last.blocks = _blocks(arguments)
        return self.last, structure, data

    def dispose(self) -> None:
        """Free all programs."""
        for program, _ in self._programs.values():
            program.dispose()
        self._programs.clear()

    def _program(self, signature: Any, arguments: dict[str, Any]) -> tuple[Program, Any]:
        found = self._programs.get(signature)
        if found is None:
            found = record(self._function, self._executor, arguments)
            self._programs[signature] = found
            if len(self._programs) > MAX_PROGRAMS:
                self._programs.popitem(last=False)[1][0].dispose()
        else:
            self._programs.move_to_end(signature)
        return found


def jit(function: Callable[..., Any], executor: "Executor") -> Recorded:
    """`function` recorded once for each signature of its inputs (names, shapes, dtypes, static values), then replayed.

    Inputs are passed by name, tensors as inputs and everything else as static values. The function returns tensors, or
    dicts, lists and tuples of tensors and plain values; the caller gets host tensors in their places.
    """
    return Recorded(function, executor)


def _blocks(arguments: dict[str, Any]) -> tuple[int, ...]:
    """Addresses of the blocks of what programs refer to."""
    found: tuple[int, ...] = ()
    for value in arguments.values():
        found += getattr(value, "program_blocks", ())
    return found


def _filled(structure: Any, outputs: Iterable[bytes]) -> Any:
    """The structure of a result with host tensors of these outputs."""
    results = iter(outputs)
    return _map(structure, lambda slot: from_bytes(slot.shape, slot.dtype, next(results)), of=Slot)


def _slot(tensor: Tensor) -> Slot:
    return Slot(tensor.storage.offset, tensor.shape, tensor.dtype)


def _output(tensor: Tensor, outputs: list[Slot], used: list[int]) -> Any:
    """Slot of a symbolic result; a host tensor passes through."""
    if isinstance(tensor.storage, memoryview):
        return tensor
    if not isinstance(tensor.storage, Scratch):
        raise InputError("A recorded function cannot return a parameter or constant.", hint="Read it from the model.")
    outputs.append(_slot(tensor))
    used.append(tensor.storage.number)
    return outputs[-1]


def _map(structure: Any, function: Callable[[Any], Any], of: type = Tensor) -> Any:
    """`structure` with every `of` replaced; dicts, lists and tuples keep their types."""
    if isinstance(structure, of):
        return function(structure)
    if isinstance(structure, dict):
        return type(structure)((key, _map(value, function, of)) for key, value in structure.items())
    if isinstance(structure, list | tuple) and not isinstance(structure, Slot):
        return type(structure)(_map(value, function, of) for value in structure)
    return structure


def run_once(function: Callable[[], None], executor: "Executor") -> None:
    """Record a function without inputs or results, run it, and drop the program."""
    program, _ = record(function, executor, {})
    try:
        executor.run(program, ())
    finally:
        program.dispose()
