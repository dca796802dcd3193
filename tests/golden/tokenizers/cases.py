"""Tokenizer folders that differ from the golden ones in their files or options, and calls to make of tokenizers.

`make_reference.py` writes what transformers returns for them; `tests/unit/test_tokenizer_reference.py` compares.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.corpus.lines import lines

ENCODERS = Path(__file__).parent.parent / "encoders"
TEXTS = [
    "Hello World! It's CAFÉ naïve — Zürich, 東京 🙂.",
    "  two  leading spaces\tand a tab",
    "a[MASK]b <mask> c</s>",
    "[unused] ENT x",
    "",
]
_MASK = {"content": "[MASK]", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
_ENT = {"content": "ENT", "lstrip": False, "rstrip": True, "normalized": False, "single_word": False, "special": True}


def _vocab_txt(tokenizer: Any) -> dict[str, str]:
    vocabulary = tokenizer["model"]["vocab"]
    return {"vocab.txt": "".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.get))}


def _bpe_files(tokenizer: Any) -> dict[str, str]:
    merges = (merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"])
    vocabulary = json.dumps(tokenizer["model"]["vocab"])
    return {"vocab.json": vocabulary, "merges.txt": "\n".join(["#version: 0.2", *merges, ""])}


@dataclass(frozen=True)
class Variant:
    """A golden tokenizer with other files: `config` replaces tokenizer_config.json (None drops it), `files` are written
    beside it; with `legacy`, the older vocabulary files take the place of tokenizer.json. `options` are for loading."""

    base: str
    config: dict[str, Any] | None = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)
    legacy: Callable[[Any], dict[str, str]] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def build(self, folder: Path) -> None:
        base = ENCODERS / self.base
        shutil.copy(base / "config.json", folder)
        files = {name: json.dumps(value) for name, value in self.files.items()}
        if self.legacy is None:
            shutil.copy(base / "tokenizer.json", folder)
        else:
            files |= self.legacy(json.loads((base / "tokenizer.json").read_text()))
        if self.config is not None:
            files["tokenizer_config.json"] = json.dumps(self.config)
        for name, text in files.items():
            (folder / name).write_text(text)


_BERT = {"tokenizer_class": "BertTokenizer", "model_max_length": 32}
_ROBERTA = {"tokenizer_class": "RobertaTokenizer", "model_max_length": 32}

VARIANTS = {
    "bert": Variant("bert-base", _BERT),
    "bert without tokenizer_config.json": Variant("bert-base", None),
    "bert cased": Variant("bert-base", {**_BERT, "do_lower_case": False}),
    "bert cased by option": Variant("bert-base", _BERT, options={"do_lower_case": False}),
    "bert with accents": Variant("bert-base", {**_BERT, "strip_accents": False, "tokenize_chinese_chars": False}),
    "bert generic, options of the class ignored": Variant(
        "bert-base", {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False, "pad_token": "[PAD]"}
    ),
    "bert from vocab.txt": Variant("bert-base", _BERT, legacy=_vocab_txt),
    "bert from vocab.txt alone, cased": Variant(
        "bert-base", None, legacy=_vocab_txt, options={"do_lower_case": False}
    ),
    "bert with special_tokens_map.json": Variant(
        "bert-base", {**_BERT, "mask_token": "[UNK]"},
        files={"special_tokens_map.json": {"mask_token": _MASK, "additional_special_tokens": ["[unused]"]}},
    ),
    "bert with added_tokens_decoder": Variant(
        "bert-base",
        {
            **_BERT,
            "added_tokens_decoder": {"4": {**_MASK, "special": True}, "400": _ENT},
            "extra_special_tokens": {"entity_token": "ENT"},
        },
    ),
    "bert, left": Variant(
        "bert-base", {**_BERT, "padding_side": "left", "truncation_side": "left"}, options={"model_max_length": 16}
    ),
    "distilbert": Variant("distilbert-base", {"tokenizer_class": "DistilBertTokenizerFast"}),
    "electra": Variant("electra-base", {"tokenizer_class": "ElectraTokenizer"}),
    "mpnet": Variant("mpnet-base", {"tokenizer_class": "MPNetTokenizer"}),
    "mpnet from vocab.txt": Variant("mpnet-base", {"tokenizer_class": "MPNetTokenizer"}, legacy=_vocab_txt),
    "roberta": Variant("roberta-base", _ROBERTA),
    "roberta with prefix space": Variant("roberta-base", _ROBERTA, options={"add_prefix_space": True}),
    "roberta with offsets of spaces": Variant("roberta-base", {**_ROBERTA, "trim_offsets": False}),
    "roberta from vocab.json and merges.txt": Variant("roberta-base", _ROBERTA, legacy=_bpe_files),
}  # fmt: skip


def calls(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Random arguments and options of calls that are all valid."""
    corpus = [line for line in lines() if line.strip()]
    for n in range(30):
        rng = random.Random(seed * 1000 + n)
        count = rng.choice([1, 1, 2, 3])
        texts, pairs = ([rng.choice(corpus)[: rng.choice([8, 30, 90])] for _ in range(count)] for _ in range(2))
        words = rng.random() < 0.2
        if words:
            texts, pairs = ([line.split() or ["x"] for line in column] for column in (texts, pairs))
        arguments = [texts, pairs] if rng.random() < 0.5 else [texts]
        if count == 1 and rng.random() < 0.6:
            arguments = [column[0] for column in arguments]
        truncation = rng.choice([None, False, True, "longest_first"])
        yield (
            tuple(arguments),
            {
                "padding": rng.choice([False, True, "longest", "max_length"]),
                "truncation": truncation,
                "max_length": rng.choice([None, 16, 24, 48]),
                "stride": rng.choice([0, 2]) if len(arguments) == 1 else 0,
                "add_special_tokens": rng.random() < 0.85,
                "pad_to_multiple_of": rng.choice([None, 8]),
                "padding_side": rng.choice([None, "left", "right"]),
                "is_split_into_words": words,
                "split_special_tokens": rng.random() < 0.2,
                "return_overflowing_tokens": rng.random() < 0.4,
                "return_special_tokens_mask": rng.random() < 0.3,
                "return_offsets_mapping": rng.random() < 0.5,
                "return_length": rng.random() < 0.3,
                "return_token_type_ids": rng.choice([None, True, False]),
                "return_attention_mask": rng.choice([None, True, False]),
            },
        )


CALLED = {"bert": 1, "bert, left": 2, "roberta": 3, "mpnet": 4}


def describe(tokenizer: Any) -> dict[str, Any]:
    """What a tokenizer of a variant says and does, as JSON."""
    names = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask", "entity")]
    encoded = tokenizer(TEXTS, return_offsets_mapping=True, return_special_tokens_mask=True)
    return {
        "tokens": {name: getattr(tokenizer, name, None) for name in names},
        "ids": {name: getattr(tokenizer, f"{name}_id", None) for name in names},
        "all_special_ids": sorted(tokenizer.all_special_ids),
        "extra_special_tokens": tokenizer.extra_special_tokens,
        "settings": [tokenizer.model_max_length, tokenizer.padding_side, tokenizer.truncation_side],
        "sizes": [tokenizer.vocab_size, len(tokenizer), tokenizer.num_special_tokens_to_add(pair=True)],
        "encoded": dict(encoded),
        "decoded": [tokenizer.decode(ids, skip_special_tokens=True) for ids in encoded["input_ids"]],
    }


def call(tokenizer: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """What a call returns, as JSON."""
    encoded = tokenizer(*arguments, **options)
    rows = range(len(encoded.encodings))
    return {**encoded, "words": [encoded.word_ids(i) for i in rows], "texts": [encoded.sequence_ids(i) for i in rows]}
