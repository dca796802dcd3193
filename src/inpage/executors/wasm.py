"""The WebAssembly executor: the C kernels in a memory of their own, in the page or, through wasmtime, under CPython.

The kernels come in variants, which differ in the instructions they may use. Which one runs is decided here, once.
"""

from array import array
from importlib import import_module
from importlib.resources import files
from typing import Any, Protocol

from ..env import env
from ..errors import ConfigError, OutOfMemoryError, UnsupportedError
from ..optable import OPS, QUANTIZED
from ..runtime import IN_PYODIDE
from . import threads
from .base import Executor
from .chunks import cut
from .pages import MAXIMUM, PAGE, growth, out_of_memory, step_down

INITIAL_PAGES = 32
STALLED = 0x80000000  # the highest bit of a status of `run_threads`

VARIANTS: dict[str, frozenset[str]] = {
    "relaxed": frozenset({"relaxed"}),
    "simd": frozenset(),
    "relaxed_threads": frozenset({"relaxed", "threads"}),
    "simd_threads": frozenset({"threads"}),
}
"""Features that each variant of the kernels needs, the preferred variant first."""

FEATURE_PROBES: dict[str, bytes] = {
    # (func (param v128 v128 v128) (result v128) local.get 0 local.get 1 local.get 2 f32x4.relaxed_madd)
    "relaxed": bytes.fromhex("0061736d01000000 010801 60037b7b7b017b 03020100 0a0d010b00 200020012002fd85020b"),
    # (memory 1 1 shared)
    "threads": bytes.fromhex("0061736d01000000 050401 030101"),
}
"""Modules that are valid only where a feature is."""


class Instance(Protocol):
    """Kernels with their memory, as a host gives them."""

    size: int
    heap_base: int

    def grow(self, pages: int) -> bool: ...
    def write(self, address: int, data: Any) -> None: ...
    def read(self, address: int, nbytes: int) -> bytes: ...
    def call(self, name: str, *arguments: int) -> int: ...
    def start_helper(self, control: int, stack: int) -> threads.Helper: ...
    def close(self) -> None: ...


class Host(Protocol):
    """What runs WebAssembly: the modules `pyodide_host` and `wasmtime_host`."""

    NAME: str

    def valid(self, module: bytes) -> bool: ...
    def can_share(self) -> bool: ...
    def instantiate(self, module: bytes, shared: bool, pages: int, maximum: int) -> Instance: ...


def host() -> Host:
    return import_module(".pyodide_host" if IN_PYODIDE else ".wasmtime_host", __package__)  # pyright: ignore[reportReturnType]


def features() -> frozenset[str]:
    """Features that the engine has, and gets right."""
    engine = host()
    found = {feature for feature, module in FEATURE_PROBES.items() if engine.valid(module)}
    if not engine.can_share():
        found.discard("threads")
    if "relaxed" in found and not relaxed_is_right():
        found.discard("relaxed")
    return frozenset(found)


def relaxed_is_right() -> bool:
    """Self-test of the relaxed instructions: an engine may choose among results, and one computed a wrong one."""
    instance = host().instantiate(kernels("relaxed"), False, INITIAL_PAGES, INITIAL_PAGES)
    try:
        return instance.call("probe_relaxed") == 1
    finally:
        instance.close()


def choose(wanted: str | None = None, shared: bool = False) -> str:
    """The variant to run: `wanted` if given, else the best one, with shared memory or without.

    Raises ConfigError for an unknown variant, UnsupportedError for one that the engine cannot run.
    """
    if wanted is not None and wanted not in VARIANTS:
        raise ConfigError(f"Unknown kernel variant {wanted!r}.", hint=f"Variants are: {', '.join(VARIANTS)}.")
    available = features()
    runnable = [name for name, needed in VARIANTS.items() if needed <= available]
    if wanted is None:
        return next(name for name in runnable if ("threads" in VARIANTS[name]) == shared)
    if wanted not in runnable:
        raise UnsupportedError(
            f"The kernel variant {wanted!r} needs {', '.join(sorted(VARIANTS[wanted] - available))}, "
            "which this WebAssembly engine or page does not have.",
            hint=f"Variants that run here: {', '.join(runnable)}.",
        )
    return wanted


def decide(wanted: str | None = None) -> tuple[str, int]:
    """The variant and the number of threads to run on. Raises as `choose`."""
    if wanted is None or _is_shared(wanted):
        count = _threads()
        return choose(wanted, shared=count > 1), count
    variant = choose(wanted)
    if (env.wasm.num_threads or 1) > 1:
        threads.say_once(
            f"inpage computes on one thread: the kernel variant {variant!r} cannot share memory. Use {variant}_threads."
        )
    return variant, 1


def _is_shared(variant: str) -> bool:
    return "threads" in VARIANTS.get(variant, ())


def _threads() -> int:
    """Threads to run on here."""
    count = threads.wanted()
    if count > 1 and not threads.can_block():
        threads.say_once(
            "inpage computes on one thread: this thread of the page must not wait for others. "
            "Run inpage in a Web Worker."
        )
        return 1
    if count > 1 and not host().can_share():
        threads.say_once(
            "inpage computes on one thread: the page is not cross-origin isolated. Serve it with the headers "
            "Cross-Origin-Opener-Policy: same-origin and Cross-Origin-Embedder-Policy: require-corp, or load "
            "isolation.js, to use several."
        )
        return 1
    return count


def kernels(variant: str) -> bytes:
    """The module of a variant. Raises ConfigError if it was not built."""
    path = files("inpage") / "kernels" / f"{variant}.wasm"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"The kernels {variant}.wasm are not there.",
            hint="In a source tree run `python build_wheels.py kernels` first.",
        ) from None


class WasmExecutor(Executor):
    """Runs programs in the C kernels. `variant` overrides the choice and the setting `env.wasm.variant`."""

    name = "wasm"

    def __init__(self, variant: str | None = None) -> None:
        self._maximum = min(MAXIMUM, env.wasm.max_memory or MAXIMUM) // PAGE * PAGE
        if self._maximum < INITIAL_PAGES * PAGE:
            raise ConfigError(
                f"env.wasm.max_memory is {env.wasm.max_memory:,} bytes, less than what kernel memory starts with.",
                hint=f"Set it to {INITIAL_PAGES * PAGE:,} or more.",
            )
        self.variant, self.threads = decide(variant or env.wasm.variant)
        self._instance = self._open([self.variant] if variant or self.threads == 1 else [self.variant, choose()])
        super().__init__(self._instance.heap_base)
        self._helpers: list[threads.Helper] = []
        self._control = 0
        if self.threads > 1:
            self._start_helpers()

    @property
    def size(self) -> int:
        return self._instance.size

    def grow(self, nbytes: int) -> None:
        for goal in growth(nbytes, self.size, self._maximum):
            if self._instance.grow((goal - self.size) // PAGE):
                return
        raise out_of_memory(nbytes, self.size)

    def write(self, address: int, data: Any) -> None:
        self._instance.write(address, data)

    def read(self, address: int, nbytes: int) -> bytes:
        return self._instance.read(address, nbytes)

    def execute(self, address: int, words: int, registers: int, begin: int = 0, end: int | None = None) -> int:
        end = words if end is None else end
        if not self._helpers:
            return self._run(address, registers, begin, end)
        status = self._instance.call("run_threads", self._control, address, words, registers, begin, end)
        return status if status < STALLED else self._go_on(address, registers, status ^ 0xFFFFFFFF, end)

    def _run(self, address: int, registers: int, begin: int, end: int) -> int:
        status = self._instance.call("run", address + 4 * begin, end - begin, registers)
        return status and status + begin

    def close(self) -> None:
        self._stop_helpers()
        self._instance.close()

    def _open(self, variants: list[str]) -> Instance:
        """Kernels of the first variant and with the largest memory that the engine grants, saying what it refused.

        Engines may reserve the whole maximum, and refuse what the machine or the browser's settings do not have.
        """
        attempts = [(variant, maximum) for variant in variants for maximum in step_down(self._maximum)]
        for variant, maximum in attempts:
            try:
                instance = host().instantiate(kernels(variant), _is_shared(variant), INITIAL_PAGES, maximum // PAGE)
            except OutOfMemoryError:
                continue
            if maximum < self._maximum:
                threads.say_once(f"kernel memory is limited to {maximum:,} bytes, as the engine refuses more.")
            if variant != self.variant:
                self.threads = 1
                threads.say_once("inpage computes on one thread: the engine refuses shared memory.")
            self.variant, self._maximum = variant, maximum
            return instance
        raise out_of_memory(attempts[-1][1], 0)

    def _start_helpers(self) -> None:
        self._control = self.allocate(threads.CONTROL_BYTES)
        self.write(self._control, bytes(threads.CONTROL_BYTES))
        stacks = [self.allocate(threads.STACK_BYTES) for _ in range(self.threads - 1)]
        self._helpers = [self._instance.start_helper(self._control, s + threads.STACK_BYTES) for s in stacks]

    def _stop_helpers(self) -> None:
        if self._helpers:
            self._instance.call("stop", self._control)
        for helper in self._helpers:
            helper.close()
        self._helpers = []

    def _go_on(self, address: int, registers: int, begin: int, end: int) -> int:
        """A helper went away in the middle of its work: do the rest, and all later programs, without helpers."""
        self._stop_helpers()
        self.threads = 1
        threads.say_once("inpage computes on one thread: a helper thread stopped answering.")
        return self._run(address, registers, begin, end)

    def _finish(self, words: "array[int]") -> "array[int]":
        return cut(words, self.threads) if self.threads > 1 else super()._finish(words)


_DTYPES = {
    **dict.fromkeys(("copy", "convert", "pack", "unpack", "embedding"), "any"),
    **dict.fromkeys(("quantize_rows", "quantize_weight", "pack_quantized", "unpack_quantized"), "any"),
    "pack_published": "any",
    **{f"linear_{layout}": layout for layout in ("f16", *QUANTIZED)},
    "position_ids": "i32",
}


def _kernel(op: str, variant: str) -> str:
    """Name of a kernel: dtype, op, rows x columns of results held in registers (where it works by tiles), variant."""
    dtype, tile = _DTYPES.get(op, "f32"), ""
    if op.startswith(("linear", "matmul", "attention")):
        # Without the dot product of bytes, sums take two registers, so that half a panel is done at a time.
        tile = "6x4" if dtype in QUANTIZED and "relaxed" not in variant else "6x8"
    return "_".join(filter(None, (dtype, op.removesuffix(f"_{dtype}"), tile, variant)))


def config() -> dict[str, Any]:
    """What the executor chooses here: host, features, variant, threads, and the kernel of every op and dtype."""
    variant, count = decide(env.wasm.variant)
    table = [{"op": op, "dtype": _DTYPES.get(op, "f32"), "kernel": _kernel(op, variant)} for op in OPS]
    return {"host": host().NAME, "features": sorted(features()), "variant": variant, "threads": count, "kernels": table}


def show_config() -> None:
    """Print `config()` as a table."""
    chosen = config()
    print(f"WebAssembly host: {chosen['host']}; features: {', '.join(chosen['features']) or 'none'}")
    print(f"kernel variant: {chosen['variant']} of {', '.join(VARIANTS)} (override: env.wasm.variant)")
    print(f"threads: {chosen['threads']} of {threads.cores()} cores (override: env.wasm.num_threads)")
    print(f"{'op':18}{'dtype':10}kernel")
    for row in chosen["kernels"]:
        print(f"{row['op']:18}{row['dtype']:10}{row['kernel']}")
