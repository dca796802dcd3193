"""What a visitor waits for, in Chromium with all-MiniLM-L6-v2: starts, calls, Python's part in them, threads.

    python tests/bench/page.py [--dtypes fp32 q8] [--threads 1 2]

Cold is the first visit of a new profile, warm the second, both from the start of the navigation to the first embedding;
bytes read are those of the model's files. A call is from the page's call to its result. Of the same calls, "in worker"
is what the pipeline takes; the rest is the way there and back. Python's part is what of it is not spent in the kernels.
"tokenizer" is the Rust code in that, "rest" Python without it, and "program" what of the rest the call of the cached
program takes; the others are checks, ids and results of the texts. Medians; calls of one and of more threads alternate.
Prints a table and writes tests/bench/results/page.json.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests import environment

if __name__ == "__main__":
    environment.ensure()

from tests.browser.pages import BLANK, Opened, open_browser

RESULTS = ROOT / "tests" / "bench" / "results" / "page.json"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
CASES = ((1, 16), (1, 128), (1, 256), (32, 32))

ROUNDS = 5

START = """async ({ dtype, threads }) => {
  window.inpage = await import("./inpage.js");
  inpage.env.remoteHost = "./";
  inpage.env.wasm.numThreads = threads;
  let bytes = 0;
  const progress_callback = ({ status, loaded }) => { if (status === "progress_total") bytes = loaded; };
  window.extract = await inpage.pipeline("feature-extraction", "MODEL", { dtype, progress_callback });
  await extract("a first text", { pooling: "mean", normalize: true });
  return [performance.now(), bytes];
}""".replace("MODEL", MODEL)

CALLS = """async ({ texts, seconds }) => {
  const times = [];
  const until = performance.now() + 1000 * seconds;
  while (performance.now() < until || times.length < 3) {
    const start = performance.now();
    await extract(texts, { pooling: "mean", normalize: true, batch_size: 32 });
    times.push(performance.now() - start);
  }
  return times;
}"""

# Notes where the time of each call goes inside the worker, in ms.
SPY = """
from time import perf_counter
import gc
from inpage.pipelines.feature_extraction import FeatureExtractionPipeline

(pipe,) = [o for o in gc.get_objects() if isinstance(o, FeatureExtractionPipeline)]
spent = {"inside": [], "program": [], "kernels": [], "tokenizer": []}
pieces = []  # of a call, as long programs run in several

def spy(owner, name, times):
    function = getattr(owner, name)
    def timed(*arguments, **options):
        start = perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            times.append(1e3 * (perf_counter() - start))
    setattr(owner, name, timed)

def timed_steps(*arguments, **options):
    start = perf_counter()
    result = yield from FeatureExtractionPipeline.steps(pipe, *arguments, **options)
    spent["inside"].append(1e3 * (perf_counter() - start))
    spent["kernels"].append(sum(pieces))
    pieces.clear()
    return result

spy(pipe, "_run", spent["program"])
spy(pipe.model.executor, "execute", pieces)
spy(pipe.tokenizer, "_encode_batch", spent["tokenizer"])
pipe.steps = timed_steps

def taken():
    import json
    text = json.dumps(spent)
    for times in spent.values():
        times.clear()
    return text
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


class Visit:
    """A page with a pipeline that has given its first result, `first_ms` after the start of its navigation."""

    def __init__(self, context: Any, url: str, dtype: str, threads: int) -> None:
        page = context.new_page()
        page.goto(url + BLANK)
        self.opened = Opened(page)
        self.first_ms, self.bytes_read = page.evaluate(START, {"dtype": dtype, "threads": threads})

    def calls(self, texts: list[str], seconds: float) -> list[dict[str, float]]:
        """What each of the calls of some seconds takes, and its parts."""
        times = self.opened.page.evaluate(CALLS, {"texts": texts, "seconds": seconds})
        parts = json.loads(self.opened.python("taken()"))
        names = ("call", *parts)
        return [dict(zip(names, row, strict=True)) for row in zip(times, *parts.values(), strict=True)]


def measure(browser: Any, url: str, dtype: str, threads: list[int]) -> list[dict[str, Any]]:
    """Starts, calls and their parts for one dtype and each number of threads."""
    results: list[dict[str, Any]] = []
    visits: list[Visit] = []
    for count in threads:
        context = browser.new_context()
        first = Visit(context, url, dtype, count)
        first.opened.page.close()
        visits.append(second := Visit(context, url, dtype, count))
        second.opened.python(SPY)
        results.append({"dtype": dtype, "threads": count, "cold_ms": first.first_ms, "warm_ms": second.first_ms,
                        "first_bytes": first.bytes_read, "second_bytes": second.bytes_read, "calls": []})  # fmt: skip
    for batch, length in CASES:
        texts = [words(length, row) for row in range(batch)]
        seen: list[list[dict[str, float]]] = [[] for _ in threads]
        for turn in range(ROUNDS):
            for visited, found in zip(visits, seen, strict=True):
                calls = visited.calls(texts, 1.0)
                found += calls if turn else []  # the engine's optimising tier is done only after a while
        for result, calls in zip(results, seen, strict=True):
            result["calls"].append({"case": f"{batch}x{length}", **summary(calls)})
    for visited in visits:
        visited.opened.page.context.close()
    return results


def summary(calls: list[dict[str, float]]) -> dict[str, float]:
    """Medians over the calls."""
    parts = {
        "call_ms": [c["call"] for c in calls],
        "inside_ms": [c["inside"] for c in calls],
        "kernels_ms": [c["kernels"] for c in calls],
        "python_ms": [c["inside"] - c["kernels"] for c in calls],
        "tokenizer_ms": [c["tokenizer"] for c in calls],
        "rest_ms": [c["inside"] - c["kernels"] - c["tokenizer"] for c in calls],
        "program_ms": [c["program"] - c["kernels"] for c in calls],
        "way_ms": [c["call"] - c["inside"] for c in calls],
    }
    medians = {name: median(values) for name, values in parts.items()}
    return {
        **medians,
        "python_part": medians["python_ms"] / medians["inside_ms"],
        "rest_least_ms": min(parts["rest_ms"]),
    }


def table(results: list[dict[str, Any]]) -> None:
    """Print results."""
    alone = {(result["dtype"], row["case"]): row["call_ms"] for result in results if result["threads"] == 1
             for row in result["calls"]}  # fmt: skip
    for result in results:
        print(f"{result['dtype']}, {result['threads']} thread(s): first result after {result['cold_ms']:.0f} ms cold "
              f"({result['first_bytes']:,} bytes read), {result['warm_ms']:.0f} ms warm "
              f"({result['second_bytes']:,})")  # fmt: skip
        print(f"{'case':8} {'call ms':>9} {'in worker':>10} {'kernels':>9} {'Python':>8} {'of it':>7} "
              f"{'tokenizer':>10} {'rest':>6} {'(least)':>8} {'program':>8} {'way':>6} "
              f"{'1 thread/this':>14}")  # fmt: skip
        for row in result["calls"]:
            times = alone.get((result["dtype"], row["case"]), float("nan")) / row["call_ms"]
            print(f"{row['case']:8} {row['call_ms']:9.1f} {row['inside_ms']:10.1f} {row['kernels_ms']:9.1f} "
                  f"{row['python_ms']:8.2f} {row['python_part']:7.1%} {row['tokenizer_ms']:10.2f} "
                  f"{row['rest_ms']:6.2f} {row['rest_least_ms']:8.2f} {row['program_ms']:8.2f} {row['way_ms']:6.2f} "
                  f"{times:14.2f}")  # fmt: skip


def run(dtypes: list[str], threads: list[int]) -> dict[str, Any]:
    """All results, with the machine's load at the start."""
    load = os.getloadavg()[0]
    with open_browser(MODEL) as (browser, url):
        results = [result for dtype in dtypes for result in measure(browser, url, dtype, threads)]
    return {"load": load, "results": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "q8"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    arguments = parser.parse_args()
    measured = run(arguments.dtypes, arguments.threads)
    print(f"load average {measured['load']:.1f} at the start")
    table(measured["results"])
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
