"""Peak of WebAssembly memory against the bytes of the weights, in Chromium, loading and running included.

    python tests/bench/memory.py [--models MiniLM SmolLM2] [--dtypes fp32 q8]

Kernel memory never shrinks, so what it is after a run is its peak. Prints a table and writes
tests/bench/results/memory.json.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests import environment

if __name__ == "__main__":
    environment.ensure()

from tests.browser.pages import open_browser, open_page

RESULTS = ROOT / "tests" / "bench" / "results" / "memory.json"
# Task, repository, and a call: the arena counts, too.
MODELS = {
    "MiniLM": (
        "feature-extraction",
        "sentence-transformers/all-MiniLM-L6-v2",
        "Array(32).fill('a text of some length '.repeat(6)), { pooling: 'mean', batch_size: 32 }",
    ),
    "SmolLM2": ("text-generation", "HuggingFaceTB/SmolLM2-135M-Instruct", "'Once upon a time', { max_new_tokens: 8 }"),
}
BYTES = """
import gc
from inpage.models.modeling import PreTrainedModel
(model,) = [o for o in gc.get_objects() if isinstance(o, PreTrainedModel) and o._executor is not None]
f"{model.executor.size} {model.get_memory_footprint()}"
"""


def measure(browser: Any, url: str, name: str, dtype: str) -> dict[str, Any]:
    """One model in a page of its own."""
    task, repository, call = MODELS[name]
    with open_page(browser, url) as page:
        page.run(
            f"inpage.env.wasm.numThreads = 1;\nconst run = await inpage.pipeline(task, repository, {{ dtype }});\n"
            f"await run({call});",
            task=task,
            repository=repository,
            dtype=dtype,
        )
        peak, weights = map(int, page.python(BYTES).split())
    return {"model": name, "dtype": dtype, "peak": peak, "weights": weights, "times": peak / weights}


def run(names: list[str], dtypes: list[str]) -> list[dict[str, Any]]:
    with open_browser(*(MODELS[name][1] for name in names)) as (browser, url):
        return [measure(browser, url, name, dtype) for name in names for dtype in dtypes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "q8"])
    arguments = parser.parse_args()
    rows = run(arguments.models, arguments.dtypes)
    print(f"{'model':10}{'dtype':7}{'peak bytes':>14}{'weight bytes':>14}{'times':>7}{'MB over 1.15 x':>16}")
    for row in rows:
        over = (row["peak"] - 1.15 * row["weights"]) / 2**20
        print(f"{row['model']:10}{row['dtype']:7}{row['peak']:14,}{row['weights']:14,}{row['times']:7.2f}{over:16.1f}")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
