"""Constrained samples of SmolLM2 at temperature 1: how many are valid, and what masking costs a token.

    python tests/bench/constrained.py [--count 200]

`valid` is of texts that json.loads, re.fullmatch or a look into the list accepts. Masking is the CPU time of the
constraint's own Python code a sampled token, over all samples, with the walks of the vocabulary, and the longest piece
of that; `step` is the CPU time of a step of a whole batch.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests import environment

if __name__ == "__main__":
    environment.ensure()

from inpage import AutoModelForCausalLM, AutoTokenizer
from inpage.generation.constraints import ConstrainedLogitsProcessor
from tests import models

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
BATCH = 10
PEOPLE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["music", "sport", "books"]}, "maxItems": 3},
        "email": {"type": ["string", "null"], "maxLength": 24},
        "active": {"type": "boolean"},
    },
    "required": ["name", "age", "likes", "active"],
}
PATTERN = r"(?:Mr|Ms|Dr)\. [A-Z][a-zé]{1,12} (?:called|wrote) (?:on|before) [0-3]\d/[01]\d/20\d{2}[.!]"
CHOICES = ["certainly", "certainly not", "it depends", "déjà vu", "no"]


class Form(NamedTuple):
    """What is asked for, and whether a text is of that form."""

    prompt: str
    options: dict[str, Any]
    valid: Callable[[str], bool]


def _is_person(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    properties = PEOPLE["properties"]
    return (
        isinstance(value, dict)
        and set(PEOPLE["required"]) <= set(value) <= set(properties)
        and 1 <= len(value["name"]) <= 20
        and type(value["age"]) is int
        and 0 <= value["age"] <= 120
        and len(value["likes"]) <= 3
        and set(value["likes"]) <= set(properties["likes"]["items"]["enum"])
        and (value.get("email") is None or len(value["email"]) <= 24)
        and isinstance(value["active"], bool)
    )


FORMS = {
    "json_schema": Form("Describe a person as JSON.", {"json_schema": PEOPLE}, _is_person),
    "regex": Form("Who called?", {"regex": PATTERN}, lambda text: re.fullmatch(PATTERN, text) is not None),
    "choices": Form("Will it rain?", {"choices": CHOICES}, lambda text: text in CHOICES),
}


def samples(model: Any, tokenizer: Any, form: Form, count: int) -> list[str]:
    """Texts that the model writes at temperature 1, in batches."""
    chat = [{"role": "user", "content": form.prompt}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    found: list[str] = []
    for seed in range(-(-count // BATCH)):
        rows = model.generate(
            [ids] * BATCH, do_sample=True, temperature=1.0, top_k=0, seed=seed, max_new_tokens=110,
            tokenizer=tokenizer, **form.options,
        ).tolist()  # fmt: skip
        found += [tokenizer.decode(row[len(ids) :], skip_special_tokens=True) for row in rows]
    return found[:count]


class _Clock:
    """CPU time of a constraint's own code, its longest piece, and the steps and sequences of it since `reset`."""

    seconds = longest = 0.0
    steps = tokens = 0

    def __init__(self) -> None:
        masks, prepare = ConstrainedLogitsProcessor.masks, ConstrainedLogitsProcessor.prepare

        def timed_masks(processor: Any, input_ids: Any, size: int) -> Any:
            self.steps += 1
            self.tokens += len(input_ids)
            with self._piece():
                return masks(processor, input_ids, size)

        def timed_prepare(processor: Any, input_ids: Any, size: int) -> Iterator[None]:
            pieces = prepare(processor, input_ids, size)
            while True:
                with self._piece():
                    if next(pieces, pieces) is pieces:
                        return
                yield

        ConstrainedLogitsProcessor.masks = timed_masks  # pyright: ignore[reportAttributeAccessIssue]
        ConstrainedLogitsProcessor.prepare = timed_prepare  # pyright: ignore[reportAttributeAccessIssue]

    @contextmanager
    def _piece(self) -> Iterator[None]:
        start = time.process_time()
        yield
        spent = time.process_time() - start
        self.seconds += spent
        self.longest = max(self.longest, spent)

    def reset(self) -> None:
        vars(self).clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    count = parser.parse_args().count
    folder = str(models.path(SMOLLM2))
    with AutoModelForCausalLM.from_pretrained(folder, dtype="q8g") as model:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        print(f"{SMOLLM2}, q8g, vocabulary of {model.config.vocab_size:,}, temperature 1, batches of {BATCH}")
        clock = _Clock()
        for name, form in FORMS.items():
            clock.reset()
            start = time.process_time()
            texts = samples(model, tokenizer, form, count)
            spent = time.process_time() - start
            invalid = [text for text in texts if not form.valid(text)]
            print(
                f"  {name:12} {len(texts) - len(invalid)} of {count} valid, {len(set(texts))} different;"
                f" masking {1000 * clock.seconds / clock.tokens:.2f} ms a token, at most {1000 * clock.longest:.0f} ms"
                f" a piece; step {1000 * spent / clock.steps:.0f} ms",
                *(f"\n    {text!r}" for text in invalid[:3]),
                flush=True,
            )


if __name__ == "__main__":
    main()
