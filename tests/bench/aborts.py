"""How long the worker is busy after an abort, in Chromium, with SmolLM2-135M-Instruct.

    python tests/bench/aborts.py [--threads 1] [--tries 12]

Each try aborts a call at another time after it has begun: loading, by downloading, while weights are quantised or from
the copy that an earlier visit kept; reading a prompt of 1,500 tokens; writing; and making a constraint, which walks
through the vocabulary. Shown are milliseconds from the abort until the call rejects, and until the worker answers
another request, the median and the worst, beside those of the same request to an idle worker. The bar is for the worst
of both; what the worker cannot interrupt is a single call of `tokenizers`, which makes a tokenizer of its file. Prints
a table, and writes tests/bench/results/aborts.json.
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

from tests.browser.pages import Opened, open_browser, open_page

RESULTS = ROOT / "tests" / "bench" / "results" / "aborts.json"
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
BAR = 100  # ms
WHAT = ("rejects", "answers")

# `aborted(begin, wait)` aborts what `begin(signal, progress)` calls `wait` ms after its first event that counts, and
# gives how many ms later the worker answers; null if the call was over by then.
TOOLS = """
const answer = async () => {
  const start = performance.now();
  await inpage.create("env.as_dict");
  return performance.now() - start;
};
globalThis.aborted = async (begin, wait, counts) => {
  const controller = new AbortController();
  let abort;
  const answered = new Promise((resolve) => { abort = () => { controller.abort(); resolve(answer()); }; });
  let begun = false;
  let start = Infinity;
  const call = begin(controller.signal, (event) => {
    if (begun || !counts(event)) return;
    begun = true;
    setTimeout(() => { start = performance.now(); abort(); }, wait);
  });
  try {
    await call;
    return null;
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    return [performance.now() - start, await answered];
  }
};
globalThis.idle = async (count) => {
  const found = [];
  for (let i = 0; i < count; i++) found.push(await answer());
  return found;
};
inpage.env.wasm.numThreads = threads;
"""

LOAD = """
const found = [];
for (let i = 0; i < tries; i++) {
  const begin = (signal, progress_callback) =>
    inpage.pipeline("text-generation", name, {dtype, signal, progress_callback});
  const share = 0.9 * i / tries;
  const counts = ({status, loaded, total}) => status === "progress_total" && loaded >= share * total;
  found.push(await aborted(begin, 7 * i, counts));
}
return found;
"""
CALL = """
const found = [];
for (let i = 0; i < tries; i++) {
  const begin = (signal, progress_callback) =>
    generate(`${i}. ` + prompt, {max_new_tokens: 200, do_sample: false, ...options(i), signal,
      progress_callback});
  found.push(await aborted(begin, first + 37 * i, ({status}) => status === "run"));
}
await generate.clear_cache();
return found;
"""
LONG = "It was a bright cold day in April, and the clocks were striking thirteen. " * 88
CALLS = {
    "prompt": ("const options = () => ({eos_token_id: []});", LONG, 0),
    "decode": ("const options = () => ({eos_token_id: []});", "Once upon a time", 150),
    "constraint": (
        "const options = (i) => ({eos_token_id: [7], regex: `[^#${i}]*( and [a-z]+){3}`});",
        "Say something.",
        0,
    ),
}


Times = list[float]
"""ms until the call rejected, if there was one, and until the worker answered."""


def measure(opened: Opened, dtype: str, tries: int) -> dict[str, list[Times | None]]:
    """Times of each try by case; None where the call was over before the abort."""
    found: dict[str, list[Times | None]] = {}
    common = {"name": MODEL, "dtype": dtype, "tries": tries}
    opened.run("inpage.env.useBrowserCache = false;")
    found["load, download"] = opened.run(LOAD, **common)
    opened.run("inpage.env.useBrowserCache = true;")
    opened.run("await (await inpage.pipeline('text-generation', name, {dtype})).dispose();", **common)
    found["load, kept copy"] = opened.run(LOAD, **common)
    opened.run("globalThis.generate = await inpage.pipeline('text-generation', name, {dtype});", **common)
    found["idle"] = [[0.0, ms] for ms in opened.run("return await idle(tries);", **common)]
    for name, (options, prompt, first) in CALLS.items():
        found[name] = opened.run(options + CALL, prompt=prompt, first=first, **common)
    opened.run("await generate.dispose();")
    return found


def run(threads: int, tries: int) -> list[dict[str, Any]]:
    """A row of the table for each case and dtype."""
    rows: list[dict[str, Any]] = []
    with open_browser(MODEL) as (browser, url):
        for dtype in ("fp32", "q4"):
            with open_page(browser, url) as opened:
                opened.run(TOOLS, threads=threads)
                for name, found in measure(opened, dtype, tries).items():
                    times = [each for each in found if each is not None]
                    row: dict[str, Any] = {"dtype": dtype, "case": name, "tries": len(times)}
                    for what, each in zip(WHAT, zip(*times, strict=True), strict=False):
                        row |= {f"{what}_median_ms": median(each), f"{what}_worst_ms": max(each)}
                    rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> None:
    """Print results."""
    columns = "".join(f"{f'{what}: median':>17} {'worst ms':>12}" for what in WHAT)
    print(f"{'dtype':6} {'case':20} {'tries':>6}{columns}")
    for row in rows:
        line = f"{row['dtype']:6} {row['case']:20} {row['tries']:6}"
        for what in WHAT if row["tries"] else ():
            worst = row[f"{what}_worst_ms"]
            bar = "" if row["case"] == "idle" else "met" if worst < BAR else "NOT"
            line += f"{row[f'{what}_median_ms']:17.1f} {worst:8.1f} {bar:3}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tries", type=int, default=12)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    rows = run(**vars(arguments))
    print(f"{MODEL}, {arguments.threads} thread(s); load average {load:.1f} at the start, bar {BAR} ms")
    table(rows)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"load": load, **vars(arguments), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
