"""Generation of SmolLM2-135M-Instruct against transformers.js, wllama and native llama.cpp, in one run.

    python tests/bench/generation.py --peers ../shared/peers [--dtypes q4 q8g] [--threads 1 2] [--rounds 1] [--quick]

Tokens a second of decoding and of a prompt of 128 tokens, the browsers' engines in the same Chromium, the best of what
each peer has; native llama.cpp runs on one thread. Before that, in CPython: Python's CPU time per token, the memory of
a long generation as computed and as measured, and what 20 more tokens compute. Prints every figure with its bar and
whether it is met, and writes tests/bench/results/generation.json. With --quick each peer runs only the weights that the
bars are about, once, and fewer tokens: minutes instead of a quarter of an hour.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.bench import harness

RESULTS = harness.ROOT / "tests" / "bench" / "results" / "generation.json"
MODEL = "SmolLM2-135M-Instruct"
TUNED = {"modelFile": "model_gqa", "wasmBuild": "plain"}
PEERS: dict[str, list[dict[str, Any]]] = {
    "transformers.js": [
        {"adapter": "/engines/tjs.js", "model": f"local/{MODEL}", "dtype": dtype, **tuned}
        for dtype in ("q8", "q4")
        for tuned in (TUNED, {})
    ],
    "wllama": [
        {"adapter": "/engines/wllama.js", "where": "main", "gguf": f"/models/gguf/{MODEL}.{kind}.gguf"}
        for kind in ("Q8_0", "Q4_1")
    ],
    "llama.cpp": [{"engine": "llamacpp", "file": f"{MODEL}.{kind}.gguf"} for kind in ("Q8_0", "Q4_1")],
}
"""What each peer has; the bars are about the first."""
BARS = {("decode", "wllama"): 4.0, ("decode", "transformers.js"): 2.5, ("prefill", "transformers.js"): 4.0,
        ("decode", "llama.cpp"): 1.0, ("prefill", "llama.cpp"): 1.0}  # fmt: skip
PYTHON_MS = 0.3


def jobs(dtypes: list[str], threads: list[int], quick: bool) -> list[tuple[str, str, dict[str, Any]]]:
    """(engine, dtype of ours or "", configuration) of all measurements; engines alternate."""
    shared = {"adapter": "/bench/adapter.js", "where": "main", "model": f"/models/{MODEL}/"}
    found: list[tuple[str, str, dict[str, Any]]] = []
    for count in threads:
        for dtype in dtypes:
            found.append(("inpage", dtype, {**shared, "dtype": dtype, "threads": count}))
        for engine, configs in PEERS.items():
            if engine != "llama.cpp" or count == 1:
                found += [(engine, "", {**config, "threads": count}) for config in (configs[:1] if quick else configs)]
    return found


def measure(arguments: argparse.Namespace) -> dict[tuple[str, str, int], list[dict[str, float]]]:
    """Tokens a second of decoding and prefill by engine, dtype of ours and threads: one entry a configuration."""
    runs: dict[tuple[str, str, int, str], list[dict[str, Any]]] = {}
    with harness.engines(arguments) as (run, browser, reference):
        for engine, dtype, config in jobs(arguments.dtypes, arguments.threads, arguments.quick) * arguments.rounds:
            config = {**run.common_cfg("generate", arguments.quick, reference), **config, "task": "generate"}
            if "file" in config:
                config["model"] = str(arguments.work / "models" / "gguf" / config["file"])
                result = run.run_native(config, arguments.work)
            else:
                with browser.profile() as profile:
                    result = browser.visit(profile, config)
            key = (engine, dtype, config["threads"], json.dumps(config, sort_keys=True))
            runs.setdefault(key, []).extend(result["runs"])
            print(f"{engine} {dtype} {config['threads']} thread(s) done", file=sys.stderr, flush=True)
    found: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    for (engine, dtype, threads, _), samples in runs.items():
        decode = median((each["newTokens"] - 1) / each["decodeMs"] * 1e3 for each in samples)
        prefill = median(each["promptTokens"] / each["prefillMs"] * 1e3 for each in samples)
        found.setdefault((engine, dtype, threads), []).append({"decode": decode, "prefill": prefill})
    return found


def rows(found: dict[tuple[str, str, int], list[dict[str, float]]]) -> list[dict[str, Any]]:
    """The table: ours over the best of each peer, with the bar where there is one."""
    table: list[dict[str, Any]] = []
    for (engine, dtype, threads), (ours, *_) in found.items():
        for peer in PEERS if engine == "inpage" else ():
            for what in ("decode", "prefill"):
                if theirs := [each[what] for each in found.get((peer, "", threads), ())]:
                    row = {"dtype": dtype, "threads": threads, "what": what, "peer": peer, "inpage": ours[what]}
                    times, bar = ours[what] / max(theirs), BARS.get((what, peer))
                    table.append({**row, "theirs": max(theirs), "times": times, "bar": bar})
    return table


def alone(dtypes: list[str], quick: bool) -> list[dict[str, Any]]:
    """Python's share and memory of each dtype, measured in CPython by a process of its own."""
    found: list[dict[str, Any]] = []
    for dtype in dtypes:
        command = [
            os.environ["INPAGE_PYTHON"],
            str(Path(__file__).parent / "generation_alone.py"),
            dtype,
            "200" if quick else "2000",
        ]
        found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return found


def verdict(met: bool) -> str:
    return "met" if met else "missed"


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["q4", "q8g"])
    arguments = parser.parse_args()
    harness.enter(arguments)
    load = os.getloadavg()
    own = alone(arguments.dtypes, arguments.quick)
    for row in own:
        print(
            f"{row['dtype']:4} {row['tokens']} tokens in CPython: Python {row['python_ms']:.3f} ms a token "
            f"(bar {PYTHON_MS}: {verdict(row['python_ms'] < PYTHON_MS)}); cache {row['computed']:,} bytes computed, "
            f"{row['measured']:,} measured, programs {row['programs']:,}, then {row['growth']:,} more "
            f"({verdict(row['measured'] == row['computed'] and not row['growth'])}); 20 more tokens computed "
            f"{row['turn']} ({verdict(row['turn'] == 20)})",
            flush=True,
        )
    table = rows(measure(arguments))
    print(f"load average {load[0]:.1f} at the start, {os.getloadavg()[0]:.1f} at the end; tokens a second")
    print(f"{'dtype':5} {'threads':>7}  {'what':8} {'peer':16} {'inpage':>8} {'peer':>8} {'times':>6} {'bar':>5}")
    for row in table:
        bar = f"{row['bar']:5.1f} {verdict(row['times'] >= row['bar'])}" if row["bar"] else "    -"
        print(
            f"{row['dtype']:5} {row['threads']:7}  {row['what']:8} {row['peer']:16} {row['inpage']:8.1f} "
            f"{row['theirs']:8.1f} {row['times']:6.2f} {bar}"
        )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"load": load, "alone": own, "rows": table}, indent=1))


if __name__ == "__main__":
    main()
