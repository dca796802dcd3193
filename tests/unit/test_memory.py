"""The allocator: no overlap, full reuse, holes merge."""

import random

from inpage.executors.memory import ALIGNMENT, Allocator


def test_random_blocks_never_overlap_and_everything_comes_back() -> None:
    chooser = random.Random(7)
    allocator = Allocator(start=100)
    blocks: dict[int, int] = {}
    for _ in range(3000):
        if blocks and chooser.random() < 0.48:
            address = chooser.choice(list(blocks))
            del blocks[address]
            allocator.free(address)
        else:
            nbytes = chooser.randrange(0, 5000)
            address = allocator.allocate(nbytes)
            assert address >= 100
            assert address % ALIGNMENT == 0
            end = address + max(nbytes, 1)
            assert all(end <= other or other + max(size, 1) <= address for other, size in blocks.items())
            blocks[address] = nbytes
    for address in list(blocks):
        allocator.free(address)
    assert allocator.used == 0
    assert allocator.end == allocator.start


def test_best_fit_takes_the_smallest_hole() -> None:
    allocator = Allocator()
    first, _, third, _ = (allocator.allocate(n * ALIGNMENT) for n in (4, 1, 2, 1))
    allocator.free(first)
    allocator.free(third)
    assert allocator.extent_after(2 * ALIGNMENT) == allocator.end
    assert allocator.allocate(2 * ALIGNMENT) == third
    assert allocator.allocate(3 * ALIGNMENT) == first


def test_peak_is_the_highest_end() -> None:
    allocator = Allocator()
    address = allocator.allocate(1000)
    peak = allocator.end
    allocator.free(address)
    allocator.allocate(10)
    assert allocator.peak == peak
