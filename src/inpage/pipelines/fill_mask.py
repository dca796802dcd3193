"""fill-mask: what may stand in place of a mask token."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import ops
from ..checks import check_count, check_texts
from ..errors import InputError
from ..tensor import Tensor
from .base import BatchPipeline, Row, TextOptions


@dataclass(frozen=True, kw_only=True)
class FillMaskOptions(TextOptions):
    """
    top_k: how many proposals for a mask, best first.
    targets: propose these words alone. One that is not in the vocabulary stands for its first token, with a warning.
    """

    top_k: int = 5
    targets: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("top_k", self.top_k)
        if self.targets is not None and not isinstance(self.targets, str):
            check_texts("targets", self.targets)


class FillMaskPipeline(BatchPipeline):
    """Proposals for the mask tokens of texts.

    For a text with one mask a list of {"score", "token", "token_str", "sequence"}; for one with several, such a list
    for each, the other masks left in place.
    """

    task = "fill-mask"
    head = "AutoModelForMaskedLM"
    options_class = FillMaskOptions

    def __init__(self, model: Any, tokenizer: Any, *, owns_model: bool = False, **defaults: Any) -> None:
        super().__init__(model, tokenizer, owns_model=owns_model, **defaults)
        if tokenizer.mask_token_id is None:
            raise InputError("The tokenizer has no mask token.", hint="Use a model that was trained to fill masks.")

    def encode(self, items: list[Any], options: Any) -> list[Row]:
        rows = super().encode(items, options)
        for row in rows:
            if not self._masks(row):
                raise InputError(
                    f"No mask token ({self.tokenizer.mask_token}) in the text {items[row.item]!r:.80}.",
                    hint=f"Write it in place of a word, within the first {self.max_length} tokens.",
                )
        return rows

    def forward(self, *, positions: Tensor, top_k: int | None, **inputs: Tensor) -> Any:
        hidden = self.model.base_model.forward(**inputs).last_hidden_state
        at_masks = ops.embedding(positions, hidden.reshape(-1, hidden.shape[-1]))  # gathers rows
        probabilities = ops.softmax(self.model.predict(at_masks))
        return ops.topk(probabilities, min(top_k, probabilities.shape[-1])) if top_k else probabilities

    def compute(self, rows: list[Row], options: FillMaskOptions) -> list[list[list[tuple[float, int]]]]:
        inputs = self.inputs(rows)
        length = inputs["input_ids"].shape[1]
        positions, counts = [], []
        for i, row in enumerate(rows):
            shift = length - row.length if self.tokenizer.padding_side == "left" else 0
            masks = self._masks(row)
            positions += [i * length + shift + position for position in masks]
            counts.append(len(masks))
        positions = Tensor.from_values(positions, "int32")
        if options.targets is None:
            scores, tokens = self._run(positions=positions, top_k=options.top_k, **inputs)
            found = [list(zip(s, t, strict=True)) for s, t in zip(scores.tolist(), tokens.tolist(), strict=True)]
        else:
            targets = self._target_ids(options.targets)
            probabilities = self._run(positions=positions, top_k=None, **inputs)
            found = [_best([(p.data[t], t) for t in targets], options.top_k) for p in probabilities]
        proposals = iter(found)
        return [[next(proposals) for _ in range(count)] for count in counts]

    def decode(self, item: str, rows: list[Row], outputs: list[Any], options: FillMaskOptions) -> Any:
        row, by_mask = rows[0], outputs[0]
        alone = len(by_mask) == 1
        filled = [
            [self._proposal(row, position, score, token, skip_special_tokens=alone) for score, token in proposals]
            for position, proposals in zip(self._masks(row), by_mask, strict=True)
        ]
        return filled[0] if alone else filled

    def _proposal(
        self, row: Row, position: int, score: float, token: int, *, skip_special_tokens: bool
    ) -> dict[str, Any]:
        ids = row.encoding.ids
        ids[position] = token
        ids = [i for i in ids if i != self.tokenizer.pad_token_id]
        return {
            "score": score,
            "token": token,
            "token_str": self.tokenizer.decode([token]),
            "sequence": self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens),
        }

    def _masks(self, row: Row) -> list[int]:
        return [i for i, token in enumerate(row.encoding.ids) if token == self.tokenizer.mask_token_id]

    def _target_ids(self, targets: str | Sequence[str]) -> list[int]:
        """Ids of the targets, each once."""
        vocabulary = self.tokenizer.get_vocab()
        found: dict[int, None] = {}
        for target in [targets] if isinstance(targets, str) else targets:
            token = vocabulary.get(target)
            if token is None:
                ids = self.tokenizer(target, add_special_tokens=False)["input_ids"]
                if not ids:
                    warnings.warn(f"The target {target!r} has no token; it is left out.", stacklevel=2)
                    continue
                token = ids[0]
                name = self.tokenizer.convert_ids_to_tokens(token)
                warnings.warn(f"The target {target!r} is not in the vocabulary; {name!r} stands for it.", stacklevel=2)
            found[token] = None
        if not found:
            raise InputError("targets has no word that the vocabulary knows.", hint="Give at least one.")
        return list(found)


def _best(scored: list[tuple[float, int]], count: int) -> list[tuple[float, int]]:
    return sorted(scored, key=lambda pair: -pair[0])[:count]
