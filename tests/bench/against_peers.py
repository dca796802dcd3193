"""inpage against transformers.js (ONNX Runtime Web) in the same Chromium, in one run: times faster, case by case.

    python tests/bench/against_peers.py --peers ../shared/peers [--dtypes fp32 q8] [--threads 1 2] [--rounds 2]

`--peers` is the harness that drives the engines (set it up once with its `run.py --setup`). Jobs of the engines
alternate. A call is what the page waits for: tokenising, model, pooling, and the way to the worker and back; medians of
single calls. A start is from the navigation to the first result, and its bytes are those that the server sent. "hosted"
is inpage with a file that `inpage quantize` wrote, as transformers.js has one; "inpage" loads the float weights as they
were published. What we compare with is the best of transformers.js's shipped and tuned builds. Prints a table and
writes tests/bench/results/against_peers.json.
"""

import argparse
import json
import os
import subprocess
import sys
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench import harness

RESULTS = harness.ROOT / "tests" / "bench" / "results" / "against_peers.json"
MODEL = "all-MiniLM-L6-v2"
OURS = ("inpage", "hosted")
HOSTED = "quantized"  # folder of the site


def job(engine: str, dtype: str, threads: int) -> dict[str, Any]:
    """Configuration of the harness for one engine."""
    shared = {"task": "embed", "dtype": dtype, "threads": threads}
    if engine == "inpage":
        return {**shared, "adapter": "/bench/adapter.js", "where": "main", "model": f"/models/{MODEL}/"}
    if engine == "hosted":
        return {**job("inpage", dtype, threads), "model": f"/ours/{HOSTED}/{dtype}/"}
    tuned = {"modelFile": "model_fused", "wasmBuild": "plain"} if engine == "tuned" else {}
    return {**shared, "adapter": "/engines/tjs.js", "model": f"local/{MODEL}", **tuned}


def measure(arguments: argparse.Namespace, engines: list[str]) -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    """Results of every engine, dtype and number of threads, one for each round."""
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for dtype in set(arguments.dtypes) - {"fp32"}:
        quantize(arguments, dtype)
    with harness.engines(arguments) as (run, browser, reference):
        for _ in range(arguments.rounds):
            for dtype in arguments.dtypes:
                for threads in arguments.threads:
                    for engine in engines:
                        if engine == "hosted" and dtype == "fp32":
                            continue
                        config = job(engine, dtype, threads)
                        config = {**run.common_cfg("embed", arguments.quick, reference), **config}
                        browser.fetched.clear()
                        result = run.run_browser(browser, config, 1 if arguments.quick else 2)
                        result["coldBytes"], result["warmBytes"] = browser.fetched[:2]  # of a profile's two visits
                        result["verdict"] = run.verdict(config, result, reference)
                        found.setdefault((engine, dtype, threads), []).append(result)
                        print(f"{engine} {dtype} {threads} thread(s): {result['verdict']}", file=sys.stderr, flush=True)
    return found


def quantize(arguments: argparse.Namespace, dtype: str) -> None:
    """Write the model as a site would host it."""
    source, target = arguments.work / "models" / MODEL, arguments.site / HOSTED / dtype
    command = [os.environ["INPAGE_PYTHON"], "-m", "inpage", "quantize", source, target, "--dtype", dtype, "--overwrite"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(harness.ROOT / "src")})


def milliseconds(results: list[dict[str, Any]], case: int) -> float:
    """Median of the single calls of a case over all rounds."""
    return median(ms for result in results for ms in result["cases"][case]["pipeline"]["ms"])


def rows(found: dict[tuple[str, str, int], list[dict[str, Any]]], peers: list[str]) -> list[dict[str, Any]]:
    """The table: ours, the best of theirs, and how many times faster ours is."""
    table: list[dict[str, Any]] = []
    for (engine, dtype, threads), ours in found.items():
        if engine not in OURS:
            continue
        others = [found[peer, dtype, threads] for peer in peers]
        if engine == "inpage":
            for case, shape in enumerate(ours[0]["cases"]):
                best = min(milliseconds(results, case) for results in others)
                what = f"call {shape['batch']}x{shape['len']}"
                table.append(_row(engine, dtype, threads, what, milliseconds(ours, case), best))
        for what, key in (("cold start", "coldFirstResultMs"), ("warm start", "warmFirstResultMs")):
            mine = median(ms for result in ours for ms in result[key])
            best = min(median(ms for result in results for ms in result[key]) for results in others)
            table.append(_row(engine, dtype, threads, what, mine, best))
        for what, key in (("cold bytes", "coldBytes"), ("warm bytes", "warmBytes")):
            table.append(_row(engine, dtype, threads, what, ours[0][key], min(results[0][key] for results in others)))
    return table


def _row(engine: str, dtype: str, threads: int, what: str, mine: float, best: float) -> dict[str, Any]:
    shown = what if engine == "inpage" else f"{what}, {engine}"
    return {
        "dtype": dtype,
        "threads": threads,
        "what": shown,
        "inpage": mine,
        "peer": best,
        "times": best / mine if mine else inf,
    }


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "q8"])
    parser.add_argument("--engines", nargs="+", default=[*OURS, "shipped", "tuned"])
    arguments = parser.parse_args()
    harness.enter(arguments)
    load = os.getloadavg()
    found = measure(arguments, arguments.engines)
    table = rows(found, [engine for engine in arguments.engines if engine not in OURS])
    print(f"load average {load[0]:.1f} at the start, {os.getloadavg()[0]:.1f} at the end")
    print(f"{'dtype':6} {'threads':>7}  {'what':22} {'inpage':>14} {'peer':>14} {'peer / inpage':>14}   (ms, bytes)")
    for row in table:
        print(
            f"{row['dtype']:6} {row['threads']:7}  {row['what']:22} {row['inpage']:14,.1f} {row['peer']:14,.1f} "
            f"{row['times']:14.2f}"
        )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"load": load, "rows": table}, indent=1))


if __name__ == "__main__":
    main()
