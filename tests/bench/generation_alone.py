"""Of a generation of SmolLM2 in CPython, as JSON: Python's CPU time per token, bytes, a second turn.

Bytes of the cache as computed and as measured, those of recorded programs, and how many more were in use at the end
than after the second token.

python tests/bench/generation_alone.py q4 2000
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from inpage import AutoModelForCausalLM
from inpage.generation.cache import StaticCache, cache_nbytes
from inpage.generation.session import Session
from tests import models

PROMPT = list(range(1000, 1128))


def main() -> None:
    dtype, tokens = sys.argv[1], int(sys.argv[2])
    with AutoModelForCausalLM.from_pretrained(
        str(models.path("HuggingFaceTB/SmolLM2-135M-Instruct")), dtype=dtype
    ) as model:
        print(json.dumps({"dtype": dtype, "tokens": tokens, **measured(model, tokens)}))


def measured(model: Any, tokens: int) -> dict[str, Any]:
    executor = model.executor
    kernels = 0.0
    execute, computed_tokens = executor.execute, list[int]()

    def timed(*arguments: Any) -> int:
        nonlocal kernels
        started = time.thread_time()
        try:
            return execute(*arguments)
        finally:
            kernels += time.thread_time() - started

    model.generate([PROMPT], max_new_tokens=4, eos_token_id=[])  # records, and grows what stays
    before = executor.used_bytes
    length = len(PROMPT) + tokens
    with StaticCache(length) as cache:
        executor.execute = timed
        steps = model.generate_steps([PROMPT], max_new_tokens=tokens, eos_token_id=[], past_key_values=cache)
        done, started, first, ids = 0, 0.0, 0, list[int]()
        while done < tokens:
            done, _ = next(steps)
            if done == 2:
                started, kernels, first = time.thread_time(), 0.0, executor.used_bytes
        elapsed, used, cached = time.thread_time() - started, executor.used_bytes, cache.nbytes
        try:
            next(steps)
        except StopIteration as stop:
            ids = stop.value[0].tolist()
        del executor.execute
        run = Session._run  # pyright: ignore[reportPrivateUsage]
        Session._run = lambda self, rows, *rest: computed_tokens.append(len(rows[0])) or run(self, rows, *rest)  # pyright: ignore
        cache.crop(length - 40)
        model.generate([[*ids[: length - 40], *PROMPT[:20]]], max_new_tokens=1, past_key_values=cache)
        Session._run = run  # pyright: ignore[reportPrivateUsage]
    return {
        "python_ms": (elapsed - kernels) / (tokens - 2) * 1e3,
        "computed": cache_nbytes(model.backbone.cache_shapes, 1, length),
        "measured": cached,
        "programs": first - before - cached,
        "growth": used - first,
        "turn": sum(computed_tokens),
    }


if __name__ == "__main__":
    main()
