"""What all executors share: the heap, the arena, and how a program is linked and run.

A subclass brings a memory and six primitives over it: `size`, `grow`, `write`, `read`, `execute`, `close`.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Generator, Sequence
from time import perf_counter
from typing import Any, ClassVar

from ..errors import DisposedError, KernelError
from ..optable import BY_NUMBER
from ..program import Program
from .memory import Allocator

PAUSE = 0.02  # seconds, about, between two pauses of a run in steps: an abort waits for them
PIECE = 0.01  # seconds of instructions that are run at once in between, or less


class Interrupted(Exception):
    """What a run in steps needs was taken in a pause; it must start over."""


class Executor(ABC):
    """Runs programs over one memory, in which parameters live on the heap and temporaries in the arena."""

    name: ClassVar[str]
    threads = 1

    def __init__(self, heap_start: int) -> None:
        self._heap = Allocator(heap_start)
        self._arena = (0, 0)  # address, bytes
        self._changes = 0  # so far: runs, and memory that was freed
        self.users = 0
        self.closed = False

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of memory there are now."""

    @abstractmethod
    def grow(self, nbytes: int) -> None:
        """Make `size` at least `nbytes`. Raises OutOfMemoryError."""

    @abstractmethod
    def write(self, address: int, data: Any) -> None:
        """Copy a bytes-like object (or, under Pyodide, a JS typed array) to `address`."""

    @abstractmethod
    def read(self, address: int, nbytes: int) -> bytes:
        """Copy of `nbytes` bytes at `address`."""

    @abstractmethod
    def execute(self, address: int, words: int, registers: int, begin: int = 0, end: int | None = None) -> int:
        """Run the instructions in the `words` words at `address`, with the register file at `registers`.

        With `begin` and `end`, words at which instructions start, only those from the one up to the other. Returns 0,
        or 1 + the index of the word at which the failing instruction starts.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the memory; called once, when the last user is gone."""

    @property
    def used_bytes(self) -> int:
        """Bytes allocated on the heap now, the arena included."""
        return self._heap.used

    @property
    def peak_bytes(self) -> int:
        """Highest extent that the heap ever had."""
        return self._heap.peak

    def allocate(self, nbytes: int) -> int:
        """Address of `nbytes` fresh bytes on the heap. Raises OutOfMemoryError, DisposedError."""
        if self.closed:
            raise DisposedError(f"The {self.name} executor was closed.", hint="Load the model again.")
        self._reserve(self._heap.extent_after(nbytes))
        return self._heap.allocate(nbytes)

    def free(self, address: int) -> None:
        """Give a heap block back; nothing happens once the executor is closed."""
        self._changes += 1
        if not self.closed:
            self._heap.free(address)

    def run(self, program: Program, inputs: Sequence[Any], registers: Sequence[int] = ()) -> list[bytes]:
        """Outputs of one run. `inputs` are bytes-like, one for each slot of `program.inputs`."""
        program.stage(inputs, registers)
        return self.run_staged(program)

    def run_staged(self, program: Program) -> list[bytes]:
        """Outputs of one run with the inputs and registers that the program has staged."""
        base = self._begin(program)
        self._execute(program, base, 0, len(program.words))
        return self._outputs(program, base)

    def steps(
        self, program: Program, inputs: Sequence[Any], registers: Sequence[int] = ()
    ) -> Generator[None, None, list[bytes]]:
        """As `run`, pausing about every PAUSE seconds; one that took less the last time does not.

        Raises Interrupted where in a pause another program ran, which took the arena, or memory was freed.
        """
        program.stage(inputs, registers)
        base = self._begin(program)
        changes, whole = self._changes, len(program.words)
        begin, count = 0, whole if program.seconds < PAUSE else 1
        program.seconds, paused = 0.0, perf_counter()
        while begin < whole:
            end, began = program.after(begin, count), perf_counter()
            self._execute(program, base, begin, end)
            begin, now = end, perf_counter()
            program.seconds += now - began
            count = 2 * count if 2 * (now - began) < PIECE else max(count // 2, 1) if now - began > PIECE else count
            if begin < whole and now - paused > PAUSE:
                yield
                if self._changes != changes:
                    raise Interrupted
                paused = perf_counter()
        return self._outputs(program, base)

    def _begin(self, program: Program) -> int:
        """Make a program ready to run; returns the arena's address, where the registers are."""
        base = self._link(program)
        self._changes += 1
        if program.staged:
            self.write(base, program.staged)
        return base

    def _execute(self, program: Program, base: int, begin: int, end: int) -> None:
        """Run the instructions in some words of a program."""
        failed = self.execute(program.address, len(program.words), base, begin, end)
        if failed:
            raise self._failure(program, failed - 1)

    def _outputs(self, program: Program, base: int) -> list[bytes]:
        return [self.read(base + offset, nbytes) for offset, nbytes in program.results]

    def _link(self, program: Program) -> int:
        """Put the program into kernel memory with its addresses for the present arena; returns the arena's address."""
        if self.closed:
            raise DisposedError(f"The {self.name} executor was closed.", hint="Load the model again.")
        address, nbytes = self._arena
        if program.arena_bytes > nbytes or not address:
            if address:
                self._heap.free(address)
                self._arena = (0, 0)
            self._arena = address, nbytes = self.allocate(program.arena_bytes), program.arena_bytes
        wanted = (address, program.blocks)
        if program.linked != wanted:
            program.relocate(address)
            if not program.address:
                program.table = self._finish(program.words)  # addresses change, but not which parts of memory overlap
                program.address = self.allocate(4 * (len(program.words) + len(program.table)))
            self.write(program.address, program.words + program.table)
            program.linked = wanted
        return address

    def _finish(self, words: "array[int]") -> "array[int]":
        """Complete the linked words of a program; returns what is to lie behind them."""
        return array("I")

    def _reserve(self, extent: int) -> None:
        if extent > self.size:
            self.grow(extent)

    def _failure(self, program: Program, position: int) -> KernelError:
        op = BY_NUMBER[program.words[position] & 0xFFFF]
        hints = {
            "embedding": "An id is outside the table: the tokenizer and the model may not belong together.",
            "pack_published": "Scales are out of range, or zero points are not what quantization_config says.",
        }
        return KernelError(
            f"The kernel of {op.name!r} (word {position} of the program) refused its operands.",
            hint=hints.get(op.name, "Check the values of the inputs."),
            op=op.name,
        )
