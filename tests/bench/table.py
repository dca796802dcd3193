"""All benchmarks, and what they found beside what is aimed at: one row a ratio, each from one run.

    python tests/bench/table.py --peers ../shared/peers      run all; transformers.js is measured where --peers is given
    python tests/bench/table.py --only page quality          run these, and take the other figures from earlier runs
    python tests/bench/table.py --only                       print what the last runs found

Prints the table and writes tests/bench/results/table.json. Figures are of this machine under the load that it has.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests import environment

if __name__ == "__main__":
    environment.ensure()

BENCH = ROOT / "tests" / "bench"
RESULTS = BENCH / "results"
BENCHES = ("against_peers", "kernels", "page", "memory", "quality")
ROOM = 32 * 2**20  # bytes that kernel memory may take beside 1.15 times the weights


class Row(NamedTuple):
    """A figure. `bar` is the least that it should be, or the most where it `falls`; None where it is only told."""

    what: str
    found: float
    bar: float | None = None
    falls: bool = False

    @property
    def met(self) -> bool | None:
        if self.bar is None:
            return None
        return self.found <= self.bar if self.falls else self.found >= self.bar


def peers(results: Any) -> Iterator[Row]:
    """Against transformers.js, the same number of threads."""
    for row in results["rows"]:
        dtype, threads, what, times = row["dtype"], row["threads"], row["what"], row["times"]
        title = f"{dtype}, {threads} thread(s), {what}"
        if "start" in what:
            yield Row(f"{title}: ours / theirs", 1 / times, {"warm": 0.7, "cold": 1.5}[what.split()[0]], True)
        elif "bytes" in what:
            yield Row(f"{title}: fetched by us", row["inpage"])
            yield Row(f"{title}: fetched by them", row["peer"])
        elif what.startswith("call"):
            bars = {"fp32": 1.6, "q8": 2.0 if what == "call 1x16" else 2.5}
            yield Row(f"{title}: times faster", times, None if (dtype, what) == ("fp32", "call 1x16") else bars[dtype])


def kernels(results: Any) -> Iterator[Row]:
    """Matrix products of at least 32 rows against the peak of the same instruction, the least of all shapes."""
    bars = {"linear": 0.85, "linear_q8": 0.85, "linear_q8g": 0.6, "linear_q4": 0.6}
    for op, bar in bars.items():
        shares = [
            row["of_peak"]
            for row in results["rows"]
            if row["op"] == op and row["variant"] == "relaxed" and (rows := re.match(r"(\d+)x", row["case"]))
            if int(rows[1]) >= 32
        ]
        if shares:
            yield Row(f"{op}, 32 rows or more: of the peak, least", min(shares), bar)


def page(results: Any) -> Iterator[Row]:
    """Threads, Python's part and loads in the page."""
    alone = {}
    for result in results["results"]:
        dtype, threads = result["dtype"], result["threads"]
        for row in result["calls"]:
            case = row["case"]
            if threads == 1:
                alone[dtype, case] = row["call_ms"]
                yield Row(f"{dtype} {case}: ms of Python around the cached program", row["program_ms"], 1.0, True)
                yield Row(f"{dtype} {case}: ms of Python in all, without the tokenizer", row["rest_ms"])
            elif (dtype, case) in alone:
                long = int(case.partition("x")[2]) >= 128
                times = alone[dtype, case] / row["call_ms"]
                yield Row(f"{dtype} {case}: {threads} threads / 1", times, 1.7 if long and threads == 2 else None)
        if threads == 1:
            yield Row(f"{dtype}: time of the second load / the first", result["warm_ms"] / result["cold_ms"])
            yield Row(f"{dtype}: bytes read by the first load", result["first_bytes"])
            yield Row(f"{dtype}: bytes read by the second load", result["second_bytes"])


def memory(results: Any) -> Iterator[Row]:
    """Peak of kernel memory."""
    for row in results["rows"]:
        bar = 1.15 + ROOM / row["weights"]
        yield Row(f"{row['model']} {row['dtype']}: peak memory / weights", row["times"], bar, True)


def quality(results: Any) -> Iterator[Row]:
    """Embeddings of quantised weights."""
    bars = {"q8": 0.995, "q8g": 0.999, "q4": 0.97}
    for row in results["rows"]:
        yield Row(f"{row['dtype']}: mean cosine to fp32", row["mean"], bars.get(row["dtype"]))


ROWS = dict(zip(BENCHES, (peers, kernels, page, memory, quality), strict=True))


def measure(name: str, peers_folder: Path | None) -> None:
    """Run a benchmark, which writes its results."""
    command = [sys.executable, str(BENCH / f"{name}.py")]
    if name == "kernels":
        command += ["--variants", "relaxed", "--only", "linear"]
    if name == "against_peers":
        command += ["--peers", str(peers_folder)]
    print(f"-- {name}", flush=True)
    subprocess.run(command, check=True, cwd=ROOT)


def circumstances() -> dict[str, Any]:
    """When, of what and on what the figures are."""
    models = re.findall(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    now = datetime.now(UTC).isoformat(timespec="minutes")
    return {"date": now, "commit": commit.strip(), "processor": models[:1], "cores": os.cpu_count()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder of the harness that drives transformers.js")
    parser.add_argument("--only", nargs="*", choices=BENCHES, default=BENCHES, help="benchmarks to run")
    arguments = parser.parse_args()
    load = os.getloadavg()
    for name in arguments.only:
        if name != "against_peers" or arguments.peers:
            measure(name, arguments.peers)
    found: dict[str, list[dict[str, Any]]] = {}
    print(f"load average {load[0]:.1f} at the start, {os.getloadavg()[0]:.1f} at the end")
    for name, rows in ROWS.items():
        file = RESULTS / f"{name}.json"
        if not file.exists():
            print(f"{name}: not measured")
            continue
        found[name] = []
        for row in rows(json.loads(file.read_text())):
            verdict = {None: "", True: "met", False: "MISSED"}[row.met]
            bar = "" if row.bar is None else f"{'<=' if row.falls else '>='} {row.bar:.3g}"
            shown = f"{row.found:,.0f}" if row.found > 1000 else f"{row.found:.3f}"
            print(f"{name:14}{row.what:58}{shown:>12}  {bar:8}{verdict}")
            found[name].append({**row._asdict(), "met": row.met})
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "table.json").write_text(json.dumps({**circumstances(), "load": load, "found": found}, indent=1))


if __name__ == "__main__":
    main()
