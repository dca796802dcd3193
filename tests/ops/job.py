"""A case as bytes: what an executor needs to run it, without NumPy, so that the same code runs inside Pyodide."""

from array import array
from typing import Any, NamedTuple

GUARD = b"\xa5" * 64  # lies behind every output and must survive


class Job(NamedTuple):
    """One program with its data, all in one relocatable block.

    block: words, registers and arrays; addresses in the words count from its start
    words: number of words, which lie at offset 0
    relocations: indices of the words that are addresses
    registers: offset of the register file
    outputs: (offset, bytes) of every output
    """

    block: bytes
    words: int
    relocations: list[int]
    registers: int
    outputs: list[tuple[int, int]]


def run_job(executor: Any, job: Job) -> tuple[int, list[bytes]]:
    """Status of the run, and the bytes of every output with the guard behind it."""
    base = executor.allocate(len(job.block))
    try:
        words = array("I", job.block[: 4 * job.words])
        for position in job.relocations:
            words[position] += base
        executor.write(base, job.block)
        executor.write(base, words)
        status = executor.execute(base, job.words, base + job.registers)
        return status, [executor.read(base + offset, nbytes + len(GUARD)) for offset, nbytes in job.outputs]
    finally:
        executor.free(base)
