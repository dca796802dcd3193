"""Allocation of address ranges: the heap of an executor and the arena of a program."""

from bisect import bisect_left, insort

ALIGNMENT = 64


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to whole cache lines, at least one."""
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)


class Allocator:
    """Best-fit allocator over [start, infinity); `end` is the first byte that was never needed or is free again."""

    def __init__(self, start: int = 0) -> None:
        self.start = aligned(start) if start else 0
        self.end = self.start
        self.used = 0
        self.peak = self.end
        self._sizes: dict[int, int] = {}
        self._holes: list[tuple[int, int]] = []  # (address, size), by address, never adjacent

    def allocate(self, nbytes: int) -> int:
        """Address of `nbytes` bytes, a multiple of ALIGNMENT."""
        size = aligned(nbytes)
        fitting = [(hole, address) for address, hole in self._holes if hole >= size]
        if fitting:
            hole, address = min(fitting)
            self._holes.remove((address, hole))
            if hole > size:
                insort(self._holes, (address + size, hole - size))
        else:
            address = self.end
            self.end += size
        self._sizes[address] = size
        self.used += size
        self.peak = max(self.peak, self.end)
        return address

    def extent_after(self, nbytes: int) -> int:
        """What `end` would be after `allocate(nbytes)`."""
        size = aligned(nbytes)
        return self.end if any(hole >= size for _, hole in self._holes) else self.end + size

    def free(self, address: int) -> None:
        """Give back what `allocate` returned."""
        size = self._sizes.pop(address)
        self.used -= size
        at = bisect_left(self._holes, (address, 0))
        if at < len(self._holes) and self._holes[at][0] == address + size:
            size += self._holes.pop(at)[1]
        if at and sum(self._holes[at - 1]) == address:
            at -= 1
            address, before = self._holes.pop(at)
            size += before
        if address + size == self.end:
            self.end = address
        else:
            self._holes.insert(at, (address, size))
