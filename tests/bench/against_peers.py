"""inpage against transformers.js (ONNX Runtime Web) in the same Chromium, in one run: times faster, case by case.

    python tests/bench/against_peers.py --peers ../shared/peers [--dtypes fp32 q8] [--threads 1 2] [--rounds 2]

`--peers` is the harness that drives the engines (set it up once with its `run.py --setup`). Jobs of both engines
alternate. A call is what the page waits for: tokenising, model, pooling, and the way to the worker and back. Medians of
single calls; the best of transformers.js's shipped and tuned builds is what we compare with. Prints a table and writes
tests/bench/results/against_peers.json.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench import harness

RESULTS = harness.ROOT / "tests" / "bench" / "results" / "against_peers.json"
MODEL = "all-MiniLM-L6-v2"


def job(engine: str, dtype: str, threads: int) -> dict[str, Any]:
    """Configuration of the harness for one engine."""
    shared = {"task": "embed", "dtype": dtype, "threads": threads}
    if engine == "inpage":
        return {**shared, "adapter": "/bench/adapter.js", "where": "main", "model": f"/models/{MODEL}/"}
    tuned = {"modelFile": "model_fused", "wasmBuild": "plain"} if engine == "tuned" else {}
    return {**shared, "adapter": "/engines/tjs.js", "model": f"local/{MODEL}", **tuned}


def measure(arguments: argparse.Namespace, engines: list[str]) -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    """Results of every engine, dtype and number of threads, one for each round."""
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    with harness.engines(arguments) as (run, browser, reference):
        for _ in range(arguments.rounds):
            for dtype in arguments.dtypes:
                for threads in arguments.threads:
                    for engine in engines:
                        config = job(engine, dtype, threads)
                        config = {**run.common_cfg("embed", arguments.quick, reference), **config}
                        result = run.run_browser(browser, config, 1 if arguments.quick else 2)
                        result["verdict"] = run.verdict(config, result, reference)
                        found.setdefault((engine, dtype, threads), []).append(result)
                        print(f"{engine} {dtype} {threads} thread(s): {result['verdict']}", file=sys.stderr, flush=True)
    return found


def milliseconds(results: list[dict[str, Any]], case: int) -> float:
    """Median of the single calls of a case over all rounds."""
    return median(ms for result in results for ms in result["cases"][case]["pipeline"]["ms"])


def rows(found: dict[tuple[str, str, int], list[dict[str, Any]]], peers: list[str]) -> list[dict[str, Any]]:
    """The table: ours, the best of theirs, and how many times faster ours is."""
    table: list[dict[str, Any]] = []
    for (engine, dtype, threads), ours in found.items():
        if engine != "inpage":
            continue
        others = [found[peer, dtype, threads] for peer in peers]
        for case, shape in enumerate(ours[0]["cases"]):
            mine = milliseconds(ours, case)
            best = min(milliseconds(results, case) for results in others)
            name = f"{shape['batch']}x{shape['len']}"
            table.append(_row(dtype, threads, f"call {name}", mine, best))
        for what, key in (("cold start", "coldFirstResultMs"), ("warm start", "warmFirstResultMs")):
            mine = median(ms for result in ours for ms in result[key])
            best = min(median(ms for result in results for ms in result[key]) for results in others)
            table.append(_row(dtype, threads, what, mine, best))
    return table


def _row(dtype: str, threads: int, what: str, mine: float, best: float) -> dict[str, Any]:
    return {"dtype": dtype, "threads": threads, "what": what, "inpage_ms": mine, "peer_ms": best, "times": best / mine}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "q8"])
    parser.add_argument("--engines", nargs="+", default=["inpage", "shipped", "tuned"])
    arguments = parser.parse_args()
    harness.enter(arguments)
    load = os.getloadavg()
    found = measure(arguments, arguments.engines)
    table = rows(found, [engine for engine in arguments.engines if engine != "inpage"] or ["inpage"])
    print(f"load average {load[0]:.1f} at the start, {os.getloadavg()[0]:.1f} at the end")
    print(f"{'dtype':6} {'threads':>7}  {'what':14} {'inpage ms':>10} {'peer ms':>10} {'times faster':>13}")
    for row in table:
        print(
            f"{row['dtype']:6} {row['threads']:7}  {row['what']:14} {row['inpage_ms']:10.1f} {row['peer_ms']:10.1f} "
            f"{row['times']:13.2f}"
        )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"load": load, "rows": table}, indent=1))


if __name__ == "__main__":
    main()
