"""What a visitor waits for, in Chromium with all-MiniLM-L6-v2: starts, calls, and Python's part in them.

    python tests/bench/page.py [--dtypes fp32 q8] [--threads 1]

Cold is the first visit of a new profile, warm the second, both from the start of the navigation to the first embedding.
A call is from the page's call to its result. Python's part is the time of the same call inside the worker that is not
spent in the kernels, tokenising in Rust included and stated apart. Medians. Prints a table and writes
tests/bench/results/page.json.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests import environment, models  # noqa: E402

if __name__ == "__main__":
    environment.ensure()

from tests.browser.pages import BLANK, Opened, serve_site  # noqa: E402

RESULTS = ROOT / "tests" / "bench" / "results" / "page.json"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
CASES = ((1, 16), (1, 128), (1, 256), (32, 32))

START = """async ({ dtype, threads }) => {
  window.inpage = await import("./inpage.js");
  inpage.env.remoteHost = "./";
  inpage.env.wasm.numThreads = threads;
  window.extract = await inpage.pipeline("feature-extraction", "MODEL", { dtype });
  await extract("a first text", { pooling: "mean", normalize: true });
  return performance.now();
}""".replace("MODEL", MODEL)

CALLS = """async ({ texts, seconds }) => {
  const times = [];
  const until = performance.now() + 1000 * seconds;
  while (performance.now() < until || times.length < 5) {
    const start = performance.now();
    await extract(texts, { pooling: "mean", normalize: true, batch_size: 32 });
    times.push(performance.now() - start);
  }
  times.splice(0, Math.floor(times.length / 2));  // the engine's optimising tier is done only after a while
  times.sort((a, b) => a - b);
  return times[Math.floor(times.length / 2)];
}"""

# Where the time of calls goes inside the worker: all, kernels, tokenizer; medians in ms.
PARTS = """
from statistics import median
from time import perf_counter
import gc, json
from inpage.pipelines.feature_extraction import FeatureExtractionPipeline

def parts(texts, calls):
    (pipe,) = [o for o in gc.get_objects() if isinstance(o, FeatureExtractionPipeline)]
    spent = {"kernels": 0.0, "tokenizer": 0.0}
    def timed(owner, name, key):
        function = getattr(owner, name)
        def wrapper(*arguments, **options):
            start = perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                spent[key] += perf_counter() - start
        setattr(owner, name, wrapper)
        return lambda: delattr(owner, name)
    restore = [timed(pipe.model.executor, "execute", "kernels")]
    rows = []
    for _ in range(calls):
        spent.update(kernels=0.0)
        start = perf_counter()
        pipe(texts, pooling="mean", normalize=True, batch_size=32)
        rows.append((perf_counter() - start, spent["kernels"]))
    for undo in restore:
        undo()
    start = perf_counter()
    for _ in range(calls):
        pipe.tokenizer(texts, truncation=True)
    tokenizer = (perf_counter() - start) / calls
    return json.dumps([1e3 * v for v in (*map(median, zip(*rows)), tokenizer)])

parts(TEXTS, CALLS)
"""


def words(count: int, row: int) -> str:
    """A text of `count` tokens with the two special ones."""
    chosen = [
        "time",
        "person",
        "year",
        "way",
        "day",
        "thing",
        "man",
        "world",
        "life",
        "hand",
        "part",
        "child",
        "eye",
        "woman",
        "place",
        "work",
        "week",
        "case",
    ]
    return " ".join(chosen[(7 * i + row) % len(chosen)] for i in range(count - 2))


def visit(context: Any, url: str, dtype: str, threads: int) -> tuple[Opened, float]:
    """A page with a pipeline that has given its first result, and the milliseconds until then."""
    page = context.new_page()
    page.goto(url + BLANK)
    return Opened(page), page.evaluate(START, {"dtype": dtype, "threads": threads})


def measure(browser: Any, url: str, dtype: str, threads: int) -> dict[str, Any]:
    """Starts, calls and their parts for one dtype."""
    context = browser.new_context()
    opened, cold = visit(context, url, dtype, threads)
    opened.page.close()
    opened, warm = visit(context, url, dtype, threads)
    calls: list[dict[str, Any]] = []
    for batch, length in CASES:
        texts = [words(length, row) for row in range(batch)]
        call = opened.page.evaluate(CALLS, {"texts": texts, "seconds": 3})
        code = PARTS.replace("TEXTS", repr(texts)).replace("CALLS", "15")
        inside, kernels, tokenizer = json.loads(opened.python(code))
        calls.append(
            {
                "case": f"{batch}x{length}",
                "call_ms": call,
                "inside_ms": inside,
                "kernels_ms": kernels,
                "python_ms": inside - kernels,
                "tokenizer_ms": tokenizer,
                "python_part": (inside - kernels) / inside,
            }
        )
    context.close()
    return {"dtype": dtype, "threads": threads, "cold_ms": cold, "warm_ms": warm, "calls": calls}


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "q8"])
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_site(Path(folder), {MODEL: models.path(MODEL)}) as url,
        sync_playwright() as playwright,
    ):
        path = environment.chromium()
        browser = playwright.chromium.launch(executable_path=path, args=environment.CHROMIUM_ARGUMENTS)
        results = [measure(browser, url, dtype, arguments.threads) for dtype in arguments.dtypes]
        browser.close()
    print(f"load average {load:.1f} at the start")
    for result in results:
        print(f"{result['dtype']}, {result['threads']} thread(s): first result after {result['cold_ms']:.0f} ms cold, "
              f"{result['warm_ms']:.0f} ms warm")  # fmt: skip
        print(
            f"{'case':8} {'call ms':>9} {'in worker':>10} {'kernels':>9} {'Python':>8} {'of it':>7} {'tokenizer':>10}"
        )
        for row in result["calls"]:
            print(f"{row['case']:8} {row['call_ms']:9.1f} {row['inside_ms']:10.1f} {row['kernels_ms']:9.1f} "
                  f"{row['python_ms']:8.2f} {row['python_part']:7.1%} {row['tokenizer_ms']:10.2f}")  # fmt: skip
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"load": load, "results": results}, indent=1))


if __name__ == "__main__":
    main()
