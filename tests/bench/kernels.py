"""GFLOP/s of the kernels in Chromium, as a fraction of what registers alone reach in the same engine, in the same run.

    python tests/bench/kernels.py [--variants relaxed simd] [--only linear]

Each case is timed in rounds that alternate with the peak loop, after a warm-up for V8's optimising tier. Time is the
CPU time of the worker's thread, from /proc, as other work on the machine disturbs it less than wall time; figures are
medians over the rounds, "of peak" that of the ratios of neighbours. "at best" compares the quickest rounds of both:
another thread of the same processor core takes its share of the instructions of a kernel, while it leaves the peak
loop, which waits for its results, nearly alone. Prints a table and writes tests/bench/results/kernels.json.
"""

import argparse
import base64
import json
import os
import platform
import sys
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests import environment

if __name__ == "__main__":
    environment.ensure()

import build_wheels
from inpage.executors.wasm import VARIANTS, kernels
from inpage.optable import QUANTIZED
from tests.ops.cases import Case, benchmark_cases

RESULTS = ROOT / "tests" / "bench" / "results" / "kernels.json"
ROUNDS = 40
ROUND_MS = 10

WORKER = """
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
let kernels, base;
const calls = { peak_f32: () => kernels.peak_f32(2000), peak_i8: () => kernels.peak_i8(2000) };

function load({ module, shared }) {
  const memory = new WebAssembly.Memory({ initial: 2048, maximum: 65535, shared });
  const { exports } = new WebAssembly.Instance(new WebAssembly.Module(bytes(module)), { env: { memory } });
  kernels = { memory, ...exports };
  base = Math.ceil(exports.__heap_base.value / 64) * 64;
}

function prepare({ block, words, relocations, registers }) {
  new Uint8Array(kernels.memory.buffer).set(bytes(block), base);
  const code = new Uint32Array(kernels.memory.buffer, base, words);
  for (const position of relocations) code[position] += base;
  calls.run = () => { if (kernels.run(base, words, base + registers)) throw new Error("refused"); };
}

function repeat({ name, count }) {
  for (let i = 0; i < count; i++) calls[name]();
}

/** Warms up, and gives the number of calls that take about `milliseconds`. */
function calibrate({ name, milliseconds }) {
  let count = 0;
  const start = performance.now();
  for (let batch = 1; performance.now() - start < 500; batch *= 2, repeat({ name, count: batch })) count += batch;
  return Math.max(1, Math.round((count * milliseconds) / (performance.now() - start)));
}

const functions = { load, prepare, repeat, calibrate };
onmessage = ({ data: [name, argument] }) => postMessage(functions[name](argument));
"""

PAGE = """
(source) => {
  const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  window.ask = (...message) => new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => resolve(data);
    worker.onerror = (event) => reject(new Error(event.message));
    worker.postMessage(message);
  });
}
"""


class Bench:
    """A worker in Chromium with the kernels of one variant at a time."""

    def __init__(self, page: Any) -> None:
        self._page = page
        page.set_default_timeout(0)
        page.evaluate(PAGE, WORKER)
        self.ask("repeat", {"name": "", "count": 0})  # the thread is there once it answers
        self._thread = worker_thread()

    def ask(self, name: str, argument: Any) -> Any:
        return self._page.evaluate("([name, argument]) => ask(name, argument)", [name, argument])

    def load(self, variant: str) -> None:
        module = base64.b64encode(kernels(variant)).decode()
        self.ask("load", {"module": module, "shared": "threads" in VARIANTS[variant]})

    def rounds(self, case: Case) -> list[tuple[float, float]]:
        """For each round the seconds of one call of the peak loop and of the case."""
        job, peak = case.job(), peak_of(case)
        self.ask("prepare", {**job._asdict(), "block": base64.b64encode(job.block).decode()})
        counts = {name: self.ask("calibrate", {"name": name, "milliseconds": ROUND_MS}) for name in (peak, "run")}
        return [(self._seconds(peak, counts[peak]), self._seconds("run", counts["run"])) for _ in range(ROUNDS)]

    def _seconds(self, name: str, count: int) -> float:
        before = self._cpu_time()
        self.ask("repeat", {"name": name, "count": count})
        return (self._cpu_time() - before) / count

    def _cpu_time(self) -> float:
        return int((self._thread / "schedstat").read_text().split()[0]) / 1e9


def worker_thread() -> Path:
    """/proc entry of the newest worker thread among the descendants of this process."""
    parents = {int(status.parent.name): _parent(status) for status in Path("/proc").glob("[0-9]*/status")}

    def ours(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and parents[pid] != pid and ours(parents[pid]))

    threads = [
        task.parent
        for pid in filter(ours, parents)
        for task in Path(f"/proc/{pid}/task").glob("*/comm")
        if task.read_text().startswith("DedicatedWorker")
    ]
    return max(threads, key=lambda thread: int(thread.name))


def _parent(status: Path) -> int:
    try:
        return int(status.read_text().split("PPid:")[1].split()[0])
    except OSError:  # ended meanwhile
        return 0


def peak_of(case: Case) -> str:
    """The loop that shows what the case could reach."""
    return "peak_i8" if case.op.removeprefix("linear_") in QUANTIZED else "peak_f32"


def peak_flop(case: Case, variant: str) -> int:
    """Operations of one call of the peak loop: 192 sums an iteration, of 1, 2 or 4 products."""
    products = 1 if peak_of(case) == "peak_f32" else 4 if "relaxed" in variant else 2
    return 2 * 192 * products * 2000


def row(case: Case, variant: str, rounds: list[tuple[float, float]]) -> dict[str, Any]:
    flop = peak_flop(case, variant)
    return {
        "op": case.op,
        "case": case.label,
        "variant": variant,
        "microseconds": median(seconds for _, seconds in rounds) * 1e6,
        "gflops": median(case.flops / seconds / 1e9 for _, seconds in rounds),
        "peak_gflops": median(flop / seconds / 1e9 for seconds, _ in rounds),
        "of_peak": median(case.flops / seconds / (flop / peak) for peak, seconds in rounds),
        "at_best": case.flops / min(seconds for _, seconds in rounds) / (flop / min(peak for peak, _ in rounds)),
    }


def measure(variants: list[str], cases: list[Case]) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    rows: list[dict[str, Any]] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=environment.chromium(), args=environment.CHROMIUM_ARGUMENTS
        )
        bench = Bench(browser.new_page())
        print(f"{'op':12}{'case':24}{'variant':16}{'us':>10}{'GFLOP/s':>10}{'peak':>8}{'of peak':>9}{'at best':>9}")
        for variant in variants:
            bench.load(variant)
            for case in cases:
                rows.append(measured := row(case, variant, bench.rounds(case)))
                print(
                    f"{case.op:12}{case.label:24}{variant:16}{measured['microseconds']:10.1f}{measured['gflops']:10.2f}"
                    f"{measured['peak_gflops']:8.1f}{measured['of_peak']:9.2f}{measured['at_best']:9.2f}",
                    flush=True,
                )
        version = browser.version
        browser.close()
    return {"chromium": version, "machine": platform.machine(), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    single = [variant for variant in VARIANTS if "threads" not in VARIANTS[variant]]
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=single)
    parser.add_argument("--only", help="ops whose name contains this", default="")
    options = parser.parse_args()
    build_wheels.build("kernels")
    cases = [case for case in benchmark_cases() if options.only in case.op]
    results = measure(options.variants, cases)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(f"wrote {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
