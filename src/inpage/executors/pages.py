"""How kernel memory grows: in pages, by halves at first and by fixed steps later, up to what 32-bit addresses reach."""

from ..errors import OutOfMemoryError

PAGE = 2**16
MAXIMUM = 2**32 - PAGE
STEP = 2**24
SMALLEST_MAXIMUM = 2**28


def growth(nbytes: int, size: int, maximum: int) -> tuple[int, ...]:
    """Sizes to try, best first, for a memory of `size` bytes that must hold `nbytes`: with some room, then without.

    Raises OutOfMemoryError if `nbytes` is over `maximum`.
    """
    exact = -(-nbytes // PAGE) * PAGE
    if exact > maximum:
        raise out_of_memory(nbytes, maximum)
    roomy = min(max(exact, size + min(size // 2, STEP) // PAGE * PAGE), maximum)
    return (roomy, exact) if roomy > exact else (exact,)


def step_down(maximum: int) -> list[int]:
    """Maxima to try for a memory, largest first."""
    goals = [maximum]
    while goals[-1] // 2 >= SMALLEST_MAXIMUM:
        goals.append(goals[-1] // 2 // PAGE * PAGE)
    return goals


def out_of_memory(needed: int, available: int) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"Kernel memory cannot grow: {needed:,} bytes are needed and {available:,} are available.",
        hint="Dispose of models that are not in use, or load a smaller model, a smaller dtype or shorter inputs.",
        needed=needed,
        available=available,
    )
