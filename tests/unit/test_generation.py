"""Generation beyond transformers' golden results: options, streams, ends, caches, samples, aborts."""

import json
from collections import Counter
from collections.abc import Iterator
from math import exp, inf
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from inpage import pipeline, program, set_seed, token_log_probabilities
from inpage.errors import DisposedError, InputError, UnsupportedError
from inpage.executors import base
from inpage.generation import session as sessions
from inpage.generation.cache import DynamicCache, StaticCache
from inpage.generation.configuration import GenerationConfig
from inpage.generation.logits_process import LogitsProcessor, SuppressTokensLogitsProcessor
from inpage.generation.session import Session
from inpage.generation.stopping_criteria import StopStringCriteria
from inpage.generation.streamers import CallbackStreamer, IncrementalDecoder, TextIteratorStreamer, TextStreamer
from inpage.models.auto import AutoModelForCausalLM
from inpage.processing.tokenizer import AutoTokenizer

GOLDEN = Path(__file__).parent.parent / "golden" / "decoders"
LLAMA = str(GOLDEN / "llama")
PROMPT = [[1, 341, 299, 321, 381, 341, 328, 323]]
BATCH = [[3, 3, 3, 341, 299, 321, 381, 341], PROMPT[0]]
MASK = [[0, 0, 0, 1, 1, 1, 1, 1], [1] * 8]


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    with AutoModelForCausalLM.from_pretrained(LLAMA, device="reference") as model:
        yield model


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(LLAMA)


@pytest.fixture(scope="module")
def pipe() -> Iterator[Any]:
    template = "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}<a>"
    with pipeline("text-generation", LLAMA, tokenizer=str(GOLDEN / "qwen2"), device="reference") as pipe:
        pipe.tokenizer.chat_template = template
        yield pipe


# Options


def test_options_of_the_call_win_over_the_config_and_that_over_the_model(model: Any) -> None:
    given = GenerationConfig(max_new_tokens=3, num_beams=2)
    complete = given.complete(under=GenerationConfig(top_k=7, num_beams=5), num_beams=4)
    assert (complete.num_beams, complete.max_new_tokens, complete.top_k, complete.top_p) == (4, 3, 7, 1.0)
    assert model.generation_config.to_dict() == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
    assert len(model.generate(PROMPT, given)[0]) == 11
    assert len(model.generate(PROMPT, given, max_new_tokens=2)[0]) == 10
    assert len(model.generate(PROMPT, max_length=12)[0]) == 12
    assert len(model.generate(PROMPT, eos_token_id=[419])[0]) == 8 + 20


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_new_token": 3}, InputError, "max_new_tokens"),
        ({"temperature": 0.5}, InputError, "no effect"),
        ({"length_penalty": 2.0}, InputError, "no effect"),
        ({"output_scores": True}, InputError, "no effect"),
        ({"temperature": 0.0, "do_sample": True}, InputError, "temperature"),
        ({"top_p": 1.5, "do_sample": True}, InputError, "top_p"),
        ({"num_return_sequences": 2}, InputError, "one result"),
        ({"num_return_sequences": 3, "num_beams": 2}, InputError, "more than"),
        ({"penalty_alpha": 0.6}, UnsupportedError, "penalty_alpha"),
        ({"num_beam_groups": 2}, UnsupportedError, "num_beam_groups"),
        ({"watermarking_config": {}}, UnsupportedError, "watermarking"),
        ({"max_length": 8}, InputError, "max_new_tokens"),
        ({"stop_strings": "x"}, InputError, "tokenizer"),
        ({"regex": "x"}, InputError, "tokenizer"),
        ({"cache_implementation": "offloaded"}, UnsupportedError, "offloaded"),
        ({"kv_cache_dtype": "f64"}, UnsupportedError, "f64"),
        ({"early_stopping": "soon", "num_beams": 2}, InputError, "early_stopping"),
        ({"negative_prompt_ids": [[1]]}, InputError, "guidance_scale"),
        ({"bad_words_ids": [1]}, InputError, "bad_words_ids"),
        ({"logits_processor": [3]}, InputError, "called"),
        ({"stopping_criteria": [3]}, InputError, "called"),
        ({"logits_processor": lambda ids, scores: scores}, InputError, "list"),
        ({"stopping_criteria": lambda ids, scores: True}, InputError, "list"),
        ({"logits_processor": [lambda ids, scores: [None]]}, InputError, "return 1 rows"),
        ({"stopping_criteria": [lambda ids, scores: None]}, InputError, "must return"),
        ({"generation_config": {"max_new_tokens": 3}}, InputError, "GenerationConfig"),
        ({"past_key_values": ()}, InputError, "cache"),
        ({"streamer": TextStreamer(None), "do_sample": True, "num_return_sequences": 2}, InputError, "single sequence"),
        ({"streamer": TextStreamer(None), "inputs": PROMPT * 2}, InputError, "single sequence"),
        ({"early_stopping": 1, "num_beams": 2}, InputError, "early_stopping"),
        ({"temperature": 0, "do_sample": True}, InputError, "do_sample=False"),
        ({"inputs": [[1]], "forced_bos_token_id": -1}, InputError, "420 tokens"),
        ({"forced_bos_token_id": [5]}, InputError, "a token id"),
        ({"pad_token_id": 420}, InputError, "420 tokens"),
        ({"pad_token_id": [3]}, InputError, "a token id"),
        ({"prefix_allowed_tokens_fn": lambda row, ids: None}, InputError, "allows no token"),
        ({"exponential_decay_length_penalty": (5, -1.5)}, InputError, "factor"),
        ({"begin_suppress_tokens": [-1]}, InputError, "begin_suppress_tokens"),
        ({"negative_prompt_attention_mask": [[1]]}, InputError, "no effect"),
        ({"decoder_start_token_id": 5}, InputError, "no effect"),
        ({"prefix_allowed_tokens_fn": lambda batch, ids: [-1]}, InputError, "token -1"),
        ({"prefix_allowed_tokens_fn": lambda batch, ids: [420]}, InputError, "token 420"),
        ({"forced_eos_token_id": 420, "max_new_tokens": 1}, InputError, "token 420"),
        ({"exponential_decay_length_penalty": ("1", 2)}, InputError, "pair"),
        ({"suppress_tokens": 0.5}, InputError, "suppress_tokens"),
        ({"streamer": SimpleNamespace(put=print, end=print), "num_beams": 2}, UnsupportedError, "streamed"),
    ],
    ids=str,
)
def test_refused_options(model: Any, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        model.generate(**{"inputs": PROMPT, **options})


@pytest.mark.parametrize(
    "written",
    [
        {"temperature": 0.0, "top_p": 0, "top_k": -1},
        {"do_sample": False, "temperature": 0, "typical_p": 0.0},
        {"cache_implementation": "hybrid"},
        {"suppress_tokens": [], "begin_suppress_tokens": []},
        {"pad_token_id": -1, "eos_token_id": -1},
    ],
    ids=str,
)
def test_files_have_values_without_effect(model: Any, written: dict[str, Any]) -> None:
    expected = model.generate(BATCH, attention_mask=MASK, max_new_tokens=4).tolist()
    given = GenerationConfig.from_dict(written)
    options = {"attention_mask": MASK, "max_new_tokens": 4, "min_new_tokens": 4}
    assert model.generate(BATCH, given, **options).tolist() == expected
    if "temperature" in written:
        with pytest.raises(InputError, match="temperature"):
            model.generate(PROMPT, given, do_sample=True)
        model.generate(PROMPT, given, do_sample=True, temperature=0.5, top_p=1.0, top_k=5, typical_p=1.0)


def test_a_config_is_read_from_a_repository(model: Any, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "generation_config.json").write_text('{"max_new_tokens": 3, "later_option": 1}')
    found = GenerationConfig.from_pretrained(tmp_path, subfolder="a", local_files_only=True, top_k=5)
    assert found.to_dict() == {"max_new_tokens": 3, "top_k": 5}
    with pytest.raises(InputError, match="GenerationConfig"):
        model.generation_config = found.to_dict()


def test_a_length_that_does_not_count_is_told(model: Any) -> None:
    with pytest.warns(UserWarning, match="max_new_tokens is 3"):
        assert len(model.generate(PROMPT, GenerationConfig(max_new_tokens=3), max_length=30)[0]) == 11


def test_a_disposed_cache_is_refused(model: Any) -> None:
    cache = DynamicCache()
    model.generate(PROMPT, past_key_values=cache, max_new_tokens=1)
    cache.dispose()
    with pytest.raises(DisposedError, match="cache"):
        model.generate(PROMPT, past_key_values=cache, max_new_tokens=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "once"),
        ({"inputs": PROMPT, "input_ids": PROMPT}, "once"),
        ({"inputs": [[]]}, "at least one token"),
        ({"inputs": PROMPT, "attention_mask": [[1]]}, "shape"),
        ({"inputs": BATCH, "attention_mask": [[1] * 5 + [0] * 3, [1] * 8]}, "left"),
        ({"inputs": [[5, 6, 3], [5, 6, 7]]}, "left"),
        ({"inputs": 5}, "dimensions"),
        ({"inputs": [[[5]]]}, "dimensions"),
        ({"inputs": {"attention_mask": [[1]]}}, "token ids"),
        ({"inputs": [[5]], "attention_mask": 1}, "dimensions"),
        ({"inputs": [[5]], "attention_mask": []}, "shape"),
    ],
    ids=str,
)
def test_refused_inputs(model: Any, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        model.generate(**arguments)


# Samples


def test_a_seed_repeats_samples(model: Any) -> None:
    options: dict[str, Any] = {"do_sample": True, "max_new_tokens": 8, "top_k": 0}
    first = model.generate(PROMPT, seed=5, **options).tolist()
    assert model.generate(PROMPT, seed=5, **options).tolist() == first
    assert model.generate(PROMPT, seed=6, **options).tolist() != first
    set_seed(1)
    one = model.generate(PROMPT, **options).tolist()
    set_seed(1)
    assert model.generate(PROMPT, **options).tolist() == one


@pytest.mark.parametrize(
    "options", [{"top_k": 4}, {"top_k": 0, "top_p": 0.1}, {"top_k": 0, "min_p": 0.6}, {"typical_p": 0.05}], ids=str
)
def test_kernels_and_processors_draw_alike(model: Any, options: dict[str, Any]) -> None:
    common = {"do_sample": True, "max_new_tokens": 1, "num_return_sequences": 60, **options}
    scores = model.generate(
        PROMPT, seed=1, return_dict_in_generate=True, output_scores=True, **{**common, "num_return_sequences": 1}
    ).scores[0]
    possible = {token for token, score in enumerate(scores.tolist()[0]) if score > -1e30}
    assert 1 < len(possible) < 60
    alone = [model.generate(PROMPT, seed=s, **{**common, "num_return_sequences": 1})[0].tolist()[-1] for s in range(60)]
    together = [row[-1] for row in model.generate(PROMPT, seed=9, **common).tolist()]
    assert set(alone) <= possible and set(together) <= possible
    assert len(set(alone)) > 1 and len(set(together)) > 1


@pytest.mark.parametrize(
    "options", [{"top_k": 0}, {"top_k": 0, "top_p": 0.9}, {"top_k": 9}, {"typical_p": 0.5}], ids=str
)
def test_a_seed_gives_the_same_sample_with_scores(model: Any, options: dict[str, Any]) -> None:
    options = {"do_sample": True, "max_new_tokens": 6, **options}
    for seed in range(8):
        expected = model.generate(PROMPT, seed=seed, **options).tolist()
        wanted = {"return_dict_in_generate": True, "output_scores": True}
        assert model.generate(PROMPT, seed=seed, **options, **wanted).sequences.tolist() == expected


def test_samples_follow_the_probabilities(model: Any) -> None:
    options: dict[str, Any] = {"do_sample": True, "top_k": 2, "max_new_tokens": 1, "temperature": 0.05}
    output = model.generate(PROMPT, seed=1, return_dict_in_generate=True, output_scores=True, **options)
    row = output.scores[0].tolist()[0]
    best = sorted(range(len(row)), key=row.__getitem__)[-2:]
    expected = 1 / (1 + exp(row[best[0]] - row[best[1]]))
    drawn = Counter(r[-1] for r in model.generate(PROMPT, seed=2, num_return_sequences=400, **options).tolist())
    assert drawn[best[1]] / 400 == pytest.approx(expected, abs=0.1)


# Processors in kernels


REPEATING: dict[str, Any] = {"sequence_bias": {(65,): 2.0, (341,): 3.0}, "max_new_tokens": 12}


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.7},
        {"repetition_penalty": 0.8, "encoder_repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 2},
        {"encoder_no_repeat_ngram_size": 1},
        {"bad_words_ids": [[5], [341, 65], [341, 299]]},
        {"sequence_bias": {(7,): 3.0, (7, 8): 9.5, (419,): -1.0}},
        {"min_new_tokens": 9, "eos_token_id": [2, 65, 5]},
        {"suppress_tokens": list(range(1, 400, 2)), "begin_suppress_tokens": [2, 4]},
        {"exponential_decay_length_penalty": (2, 1.5)},
    ],
    ids=str,
)
def test_kernels_process_as_python_does(model: Any, options: dict[str, Any]) -> None:
    in_python = {"return_dict_in_generate": True, "output_scores": True}
    effects = 0
    for inputs in ({"inputs": PROMPT}, {"inputs": BATCH, "attention_mask": MASK}):
        given = inputs | REPEATING | options
        expected = model.generate(**given, **in_python).sequences.tolist()
        assert model.generate(**given).tolist() == expected
        effects += expected != model.generate(**inputs, **REPEATING).tolist()
    assert effects


def test_more_edits_than_a_program_is_recorded_for(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = model.generate(PROMPT, max_new_tokens=12, repetition_penalty=1.7).tolist()
    monkeypatch.setattr("inpage.generation.session.EDITS", 3)
    assert model.generate(PROMPT, max_new_tokens=12, repetition_penalty=1.7).tolist() == expected


def test_ruling_everything_out_raises(model: Any) -> None:
    with pytest.raises(InputError, match="no distribution"):
        model.generate(PROMPT, suppress_tokens=list(range(420)))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A small model of a large vocabulary, that of Qwen2."""
    folder = tmp_path_factory.mktemp("wide")
    config = json.loads(Path(LLAMA, "config.json").read_text()) | {"vocab_size": 151_936, "tie_word_embeddings": True}
    weights = load_file(Path(LLAMA, "model.safetensors"))
    weights.pop("lm_head.weight", None)
    weights["model.embed_tokens.weight"] = np.random.default_rng(1).normal(0, 1, (151_936, 32)).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    with AutoModelForCausalLM.from_pretrained(str(folder)) as wide:
        yield wide


@pytest.mark.parametrize(
    "options",
    [
        {}, {"do_sample": True}, {"do_sample": True, "top_k": 0, "top_p": 0.9}, {"do_sample": True, "typical_p": 0.9},
        {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3}, {"do_sample": True, "suppress_tokens": [5]},
    ],
    ids=str,
)  # fmt: skip
def test_what_comes_to_python_does_not_grow_with_the_vocabulary(
    wide: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    executor = wide.executor
    monkeypatch.setattr(executor, "read", lambda a, n, read_=executor.read: read.append(n) or read_(a, n))
    set_seed(1)
    wide.generate(PROMPT, max_new_tokens=6, eos_token_id=419, **options)
    assert len(read) >= 6
    assert sum(read) <= 6 * 2 * 4 * 50, "of a token no more than the 50 best, each with its score"


# Assistants


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The model with its second layer cut off, whose guesses are right now and then."""
    folder = tmp_path_factory.mktemp("draft")
    config = json.loads(Path(LLAMA, "config.json").read_text()) | {"num_hidden_layers": 1}
    weights = load_file(Path(LLAMA, "model.safetensors"))
    save_file({name: value for name, value in weights.items() if "layers.1" not in name}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    with AutoModelForCausalLM.from_pretrained(str(folder), device="reference") as draft:
        yield draft


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sequence_bias": {(65,): 2.0, (341,): 3.0}},  # a text that repeats itself, for the lookup
        {"repetition_penalty": 0.7, "no_repeat_ngram_size": 4},
        {"repetition_penalty": 0.7, "output_scores": True, "return_dict_in_generate": True},
        {"cache_implementation": "static"},
        {"do_sample": True, "seed": 3, "temperature": 0.3},
        {"do_sample": True, "seed": 3, "temperature": 0.3, "repetition_penalty": 0.7},
        {"do_sample": True, "seed": 4, "temperature": 0.3, "typical_p": 0.5},
        {"eos_token_id": [110]},
    ],
    ids=str,
)
@pytest.mark.parametrize("assistant", ["prompt_lookup_num_tokens", "num_assistant_tokens"])
def test_assisted_decoding_writes_what_the_model_does(
    model: Any, draft: Any, assistant: str, options: dict[str, Any]
) -> None:
    def tokens(output: Any) -> list[list[int]]:
        if not options.get("return_dict_in_generate"):
            return output.tolist()
        assert len(output.scores) == len(output.sequences[0]) - len(PROMPT[0])
        return output.sequences.tolist()

    for count in (1, 3):
        given: dict[str, Any] = {"max_new_tokens": 30, **options}
        helped = {assistant: count, **({} if "prompt" in assistant else {"assistant_model": draft})}
        used = model.executor.used_bytes
        assert tokens(model.generate(PROMPT, **given, **helped)) == tokens(model.generate(PROMPT, **given))
        assert model.executor.used_bytes - used < 1 << 18, "programs may have been recorded, no cache remains"


def test_guesses_save_steps(model: Any) -> None:
    steps: list[tuple[int, int]] = []
    run = model.generate_steps(PROMPT, assistant_model=model, num_assistant_tokens=4, max_new_tokens=21)
    steps += run
    made = sorted({made for made, _ in steps})
    assert made == [0, 1, 6, 11, 16, 21][-len(made) :], "the model agrees with itself: five tokens a step"
    repeating = {"sequence_bias": {(65,): 90.0}, "prompt_lookup_num_tokens": 4, "max_new_tokens": 21}
    assert len(list(model.generate_steps(PROMPT, **repeating))) <= 9


def test_a_cache_is_whole_after_assisted_decoding(model: Any, draft: Any) -> None:
    for stop in (2, 7, 100):
        with DynamicCache() as cache:
            steps = model.generate_steps(PROMPT, past_key_values=cache, assistant_model=draft, max_new_tokens=9)
            for _ in range(stop):
                if next(steps, None) is None:
                    break
            steps.close()
            length = cache.get_seq_length()
            text = model.generate(PROMPT, max_new_tokens=9).tolist()
            assert length <= 8 + 9
            cache.crop(min(length, 15))
            assert model.generate(text[0][:16], past_key_values=cache, max_length=17).tolist() == [text[0]]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"num_assistant_tokens": 3}, InputError, "no effect"),
        ({"max_matching_ngram_size": 3}, InputError, "no effect"),
        ({"prompt_lookup_num_tokens": 3, "num_beams": 2}, UnsupportedError, "more than one"),
        ({"prompt_lookup_num_tokens": 3, "use_cache": False}, UnsupportedError, "use_cache"),
        ({"prompt_lookup_num_tokens": 3, "guidance_scale": 2.0}, UnsupportedError, "guidance_scale"),
        ({"prompt_lookup_num_tokens": 0}, InputError, "at least 1"),
        ({"penalty_alpha": 0.6}, UnsupportedError, "Contrastive search has left transformers"),
    ],
    ids=str,
)
def test_refused_assistants(model: Any, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        model.generate(PROMPT, **options)


@pytest.mark.parametrize("option", ["streamer", "assistant_model"])
def test_what_is_no_streamer_or_model_is_refused(model: Any, option: str) -> None:
    with pytest.raises(InputError, match=f"{option} must"):
        model.generate([[5, 6]], max_new_tokens=2, **{option: 5})


def test_assistants_of_another_vocabulary_are_refused(model: Any, wide: Any) -> None:
    with pytest.raises(InputError, match="151936 tokens"):
        model.generate(PROMPT, assistant_model=wide)
    with pytest.raises(InputError, match="Only one"):
        model.generate(PROMPT, assistant_model=model, prompt_lookup_num_tokens=3)


# Batches, processors and criteria of the caller


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 3},
        {"repetition_penalty": 1.5},
        {"prefill_chunk_size": 2},
        # What pads is the end, too, and none of the prompt's tokens.
        {"encoder_repetition_penalty": 1.5, "pad_token_id": 156, "eos_token_id": 156},
        {"encoder_no_repeat_ngram_size": 1, "pad_token_id": 156, "eos_token_id": 156},
        {"no_repeat_ngram_size": 1, "pad_token_id": 156, "eos_token_id": 156},
    ],
    ids=str,
)
def test_a_padded_batch_equals_single_runs(model: Any, options: dict[str, Any]) -> None:
    batch = [[options.get("pad_token_id", 3)] * 3 + BATCH[0][3:], BATCH[1]]
    together = model.generate(batch, attention_mask=MASK, max_new_tokens=9, **options).tolist()
    for row, start, prompt in zip(together, (3, 0), BATCH, strict=True):
        alone = model.generate([prompt[start:]], max_new_tokens=9, **options).tolist()[0]
        assert row[start:][: len(alone)] == alone


def test_padding_is_found_without_a_mask(model: Any) -> None:
    assert model.generate(BATCH).tolist() == model.generate(BATCH, attention_mask=MASK).tolist()


def test_processors_in_python(model: Any) -> None:
    seen: list[Any] = []

    class Only(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            seen.append([list(row) for row in input_ids])
            for row in scores:
                row[7] = 1e9
            return scores

    def as_lists(input_ids: Any, scores: Any) -> Any:
        return [[0.0] * 7 + [1.0] + [0.0] * 412 for _ in scores]

    assert model.generate(PROMPT, max_new_tokens=2, logits_processor=[Only()]).tolist()[0][-2:] == [7, 7]
    assert seen[1][0] == [*PROMPT[0], 7]
    assert model.generate(PROMPT, max_new_tokens=2, logits_processor=[as_lists]).tolist()[0][-2:] == [7, 7]
    with pytest.raises(InputError, match="1 rows of 420"):
        model.generate(PROMPT, logits_processor=[lambda ids, scores: [[1.0]]])
    forbidden = model.generate(PROMPT, max_new_tokens=3, prefix_allowed_tokens_fn=lambda batch, ids: [5, 9])
    assert set(forbidden.tolist()[0][-3:]) <= {5, 9}


def test_criteria_in_python_and_time(model: Any) -> None:
    assert len(model.generate(PROMPT, stopping_criteria=[lambda ids, scores: len(ids[0]) > 9])[0]) == 10
    with pytest.raises(InputError, match="one a sequence"):
        model.generate(PROMPT, stopping_criteria=[lambda ids, scores: [True, False]])
    assert len(model.generate(PROMPT, max_time=1e-9)[0]) == 9


def test_scores_and_logits(model: Any) -> None:
    output = model.generate(
        PROMPT, max_new_tokens=3, repetition_penalty=2.0, return_dict_in_generate=True, output_scores=True,
        output_logits=True,
    )  # fmt: skip
    assert [s.shape for s in output.scores] == [s.shape for s in output.logits] == [(1, 420)] * 3
    logits, scores = output.logits[0].tolist()[0], output.scores[0].tolist()[0]
    changed = {token for token in range(420) if logits[token] != scores[token]}
    assert changed <= set(PROMPT[0]) and changed
    assert output.sequences.tolist()[0][8] == scores.index(max(scores))
    assert output.past_key_values.get_seq_length() == 10


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
@pytest.mark.parametrize("use_cache", [True, False])
def test_states_and_maps_of_every_step(name: str, use_cache: bool) -> None:
    with AutoModelForCausalLM.from_pretrained(str(GOLDEN / name)) as model:
        wanted = {"output_hidden_states": True, "output_attentions": True}
        given: dict[str, Any] = {"attention_mask": MASK, "max_new_tokens": 4, "eos_token_id": 419}
        output = model.generate(BATCH, **given, use_cache=use_cache, return_dict_in_generate=True, **wanted)
        assert output.sequences.tolist() == model.generate(BATCH, **given).tolist()
        mask = [[*row, 1, 1, 1] for row in MASK]
        positions = [[max(i - row.count(0), 0) for i in range(11)] for row in MASK]
        whole = model(output.sequences.tolist(), attention_mask=[[*r, 1] for r in mask],
                      position_ids=[[*p, p[-1] + 1] for p in positions], **wanted)  # fmt: skip
        for field in ("hidden_states", "attentions"):
            steps = output[field]
            assert len(steps) == 4
            for step, layers in enumerate(steps):
                assert len(layers) == len(whole[field])
                first = 0 if step == 0 or not use_cache else 7 + step
                for found, expected in zip(layers, whole[field], strict=True):
                    part = np.asarray(expected)[..., first : 8 + step, :]
                    if field == "attentions":
                        part = part[..., : 8 + step]
                    found = np.asarray(found)
                    assert found.shape == part.shape
                    seen = [np.abs(found[b] - part[b])[..., max(row.count(0) - first, 0) :, :].max()
                            for b, row in enumerate(MASK)]  # fmt: skip
                    assert max(seen) < 1e-4


@pytest.mark.parametrize(
    "options",
    [{}, {"num_return_sequences": 2}, {"do_sample": True, "top_k": 9, "temperature": 0.8, "seed": 3}],
    ids=str,
)
def test_candidates_of_beams_come_from_the_kernels(
    monkeypatch: pytest.MonkeyPatch, model: Any, options: dict[str, Any]
) -> None:
    options = {"num_beams": 3, "max_new_tokens": 8, "attention_mask": MASK, **options}
    rows: list[Any] = []
    split = sessions._split
    monkeypatch.setattr(sessions, "_split", lambda *values: rows.append(values) or split(*values))
    found = model.generate(BATCH, **options).tolist()
    assert not rows
    assert found == model.generate(BATCH, **options, logits_processor=[lambda ids, scores: scores]).tolist()
    assert rows, "a processor of the caller's gets them"


@pytest.mark.parametrize("early_stopping", [True, False])
def test_beams_of_a_batch_go_on_after_those_of_one_prompt_are_done(model: Any, early_stopping: bool) -> None:
    batch = [[7, 8, 9], [11, 12, 13], [20, 21, 22], [30, 31, 32]]
    options: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 10, "early_stopping": early_stopping}
    options |= {"eos_token_id": list(range(30)), "forced_eos_token_id": 5}
    lengths: list[set[int]] = []
    watch = [lambda ids, scores: lengths.append({len(row) for row in ids})]
    found = model.generate(batch, logits_processor=watch, **options).tolist()
    alone = [model.generate([row], **options).tolist()[0] for row in batch]
    assert len({len(row) for row in alone}) > 1, "else none is done before the others"
    assert found == [row + [3] * (len(found[0]) - len(row)) for row in alone]
    assert {row[-1] for row in alone if len(row) == 13} == {5}
    assert all(len(each) == 1 for each in lengths), "processors get texts of one length"
    assert model.generate(batch, use_cache=False, **options).tolist() == found


def test_beams_go_on_where_others_have_no_next_token(model: Any) -> None:
    following = {(): [8, 9], (8,): [], (9,): [10]}

    def narrow(ids: list[list[int]], scores: Any) -> None:
        for text, row in zip(ids, scores, strict=True):
            allowed = following.get(tuple(text[8:]), [11])
            row[:] = type(row)("f", [row[token] if token in allowed else -inf for token in range(len(row))])

    found = model.generate(PROMPT, num_beams=3, max_new_tokens=4, logits_processor=[narrow]).tolist()
    assert found == [[*PROMPT[0], 9, 10, 11, 11]]


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, *({"do_sample": True, **more} for more in (
        {"typical_p": 0.5}, {"top_k": 0, "eta_cutoff": 0.1}, {"num_beams": 2}, {"num_beams": 2, "top_p": 0.5}
    ))], ids=str,
)  # fmt: skip
def test_no_token_is_no_distribution(model: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="no distribution"):
        model.generate(PROMPT, suppress_tokens=list(range(420)), **options)


def test_states_of_beams_and_samples_are_those_of_all_sequences(model: Any) -> None:
    wanted: dict[str, Any] = {"return_dict_in_generate": True, "output_hidden_states": True, "max_new_tokens": 2}
    for options in ({"num_beams": 3}, {"num_return_sequences": 3, "do_sample": True}):
        output = model.generate(PROMPT, **wanted, **options)
        assert [[layer.shape for layer in step] for step in output.hidden_states] == [
            [(3, 8, 32)] * 3, [(3, 1, 32)] * 3
        ]  # fmt: skip
        first = np.asarray(output.hidden_states[0][1])
        assert (first == first[:1]).all()
    with pytest.raises(UnsupportedError, match="output_hidden_states"):
        model.generate(PROMPT, **wanted, prompt_lookup_num_tokens=3)
    with pytest.raises(InputError, match="no effect"):
        model.generate(PROMPT, output_attentions=True)


def test_processors_that_callers_derive_are_called(model: Any) -> None:
    class Only(SuppressTokensLogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            for row in scores:
                row[7] = 1e9
            return scores

    assert model.generate(PROMPT, max_new_tokens=2, logits_processor=[Only([5])]).tolist()[0][-2:] == [7, 7]


def test_guidance_leads_away_from_the_negative_prompt(model: Any) -> None:
    plain = model.generate(PROMPT, max_new_tokens=6).tolist()
    assert model.generate(PROMPT, max_new_tokens=6, guidance_scale=3.0).tolist() != plain
    same = model.generate(PROMPT, max_new_tokens=6, guidance_scale=3.0, negative_prompt_ids=PROMPT).tolist()
    assert same == plain


def test_stop_strings_over_borders_of_tokens(tokenizer: Any) -> None:
    ids = tokenizer("a night-time end", add_special_tokens=False)["input_ids"]
    text = tokenizer.decode(ids)
    for stop in ("ght-ti", "me e", text[3:]):
        criterion = StopStringCriteria(tokenizer, ["zzz", stop])
        ends = [criterion([ids[:n]], None)[0] for n in range(1, len(ids) + 1)]
        first = next(n for n in range(1, len(ids) + 1) if stop in tokenizer.decode(ids[:n]))
        assert ends.index(True) == first - 1
        assert sum(ends) == 1, "only the token that completes it"


# Streams


@pytest.mark.parametrize("text", ["Hello wörld, 你好 🦙!", " two  spaces\n\nlines "])
def test_pieces_make_up_the_text(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    decoder = IncrementalDecoder(tokenizer)
    pieces = [decoder.put([token]) for token in ids] + [decoder.end()]
    assert "".join(pieces) == tokenizer.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)
    assert sum(map(bool, pieces)) > 3


PARTS = [
    "Hello", " world", "  ", "\n\n", " '", "n't", ".", "—", "ß", "e\u0301", "你好", "한글", "\u202eא", "𝔘", "🦙",
    "👩\u200d🔬", "\ufffd",
]  # fmt: skip


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "llama", "t5"])  # bytes, bytes, bytes of what is rare, pieces
@pytest.mark.parametrize("skip_special_tokens", [False, True])
def test_pieces_make_up_any_text(name: str, skip_special_tokens: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(GOLDEN.parent / "tokenizers" / name))
    random = Random(1)
    texts = ["".join(random.choices(PARTS, k=random.randint(1, 30))) for _ in range(60)]
    samples = [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in texts]
    if name != "llama":  # whose decoder takes back what it has made of bytes, where more follow that are no text
        samples += [random.choices(range(len(tokenizer)), k=random.randint(1, 60)) for _ in range(60)]
    for ids in samples:
        decoder = IncrementalDecoder(tokenizer, skip_special_tokens=skip_special_tokens)
        given = ""
        rest = list(ids)
        while rest:
            size = random.randint(1, 3)
            given += decoder.put(rest[:size])
            del rest[:size]
        given += decoder.end()
        assert given == tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


def test_no_part_of_a_stop_string_is_given(tokenizer: Any) -> None:
    ids = tokenizer("one END two ENDED ENX", add_special_tokens=False)["input_ids"]
    plain = tokenizer.decode(ids)
    for stops, expected in (
        (["END two"], plain[: plain.index("END")]),
        (["ENDS", "EXIT"], plain),
        ("D two", plain[:6]),
    ):
        decoder = IncrementalDecoder(tokenizer, stops)
        given = ""
        for token in ids:
            given += decoder.put([token])
            assert expected.startswith(given)
        assert given + decoder.end() == expected


def test_streamers(model: Any, capsys: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(GOLDEN / "qwen2"))
    whole = tokenizer.decode(model.generate(PROMPT, max_new_tokens=6).tolist()[0])
    model.generate(PROMPT, max_new_tokens=6, streamer=TextStreamer(tokenizer))
    assert capsys.readouterr().out == whole + "\n"
    texts: list[str] = []
    tokens: list[int] = []
    streamer = CallbackStreamer(tokenizer, texts.append, tokens.extend)
    output = model.generate(PROMPT, max_new_tokens=6, streamer=streamer)
    assert tokens == output.tolist()[0][8:]
    assert tokenizer.decode(PROMPT[0]) + "".join(texts) == whole
    queue = TextIteratorStreamer(tokenizer, timeout=1)
    model.generate(PROMPT, max_new_tokens=6, streamer=queue)
    assert "".join(queue) == whole
    with pytest.raises(InputError, match="single sequence"):
        model.generate(BATCH, streamer=TextStreamer(tokenizer))


# Caches and aborts


def test_a_cache_is_gone_on_with(model: Any) -> None:
    with DynamicCache() as cache:
        first = model.generate(PROMPT, max_new_tokens=4, past_key_values=cache).tolist()
        assert cache.get_seq_length() == 11
        second = model.generate([[*first[0], 9, 10]], max_new_tokens=4, past_key_values=cache).tolist()
        assert second == model.generate([[*first[0], 9, 10]], max_new_tokens=4).tolist()
        with pytest.raises(InputError, match="cache has"):
            model.generate(PROMPT, past_key_values=cache)


@pytest.mark.parametrize("stop", [0, 1, 3, 5])
def test_an_abort_leaves_the_cache_usable_and_nothing_behind(model: Any, stop: int) -> None:
    expected = model.generate(PROMPT, max_new_tokens=6).tolist()
    used = model.executor.used_bytes
    with DynamicCache() as cache:
        steps = model.generate_steps(PROMPT, max_new_tokens=6, past_key_values=cache, prefill_chunk_size=3)
        seen = [next(steps) for _ in range(stop)]
        steps.close()
        assert seen == [(0, 6), (0, 6), (1, 6), (2, 6), (3, 6)][:stop]
        cache.crop(min(cache.get_seq_length(), 7))
        assert model.generate(PROMPT, max_new_tokens=6, past_key_values=cache).tolist() == expected
    steps = model.generate_steps(PROMPT, max_new_tokens=6)
    next(steps)
    steps.close()
    assert model.executor.used_bytes - used < 1 << 17, "programs may have been recorded, no cache remains"


def test_prompts_of_any_length_take_few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Any] = []
    record = program.record
    prompts = [[[(7 * i + length) % 400 + 4 for i in range(length)]] for length in range(1, 64)]
    with AutoModelForCausalLM.from_pretrained(LLAMA) as model, StaticCache(64) as cache:
        session = Session(model, cache, [0])
        monkeypatch.setattr(program, "record", lambda *given: recorded.append(given) or record(*given))
        found: list[Any] = []
        for prompt in prompts:
            found += _result(session.prefill(prompt, "logits"))
            assert cache.get_seq_length() == len(prompt[0])
            cache.crop(0)
        # of 1 .. 15 tokens, and of 16, 32 and 48 at the end of a prompt and before it
        assert len(recorded) == 15 + 3 + 3
        for prompt, logits in zip(prompts, found, strict=True):
            exact = model(input_ids=prompt).logits.tolist()[0][-1]
            assert max(abs(a - b) for a, b in zip(logits, exact, strict=True)) < 1e-4


@pytest.mark.parametrize(
    ("sequences", "chunk", "sizes"),
    [(1, None, [128, 128, 32, 11]), (2, None, [64, 64, 64, 64, 32, 11]), (1, 100, [100, 100, 96, 3])],
)
def test_chunks_of_a_prompt(
    monkeypatch: pytest.MonkeyPatch, model: Any, sequences: int, chunk: int | None, sizes: list[int]
) -> None:
    taken = list[int]()
    run = Session._run
    monkeypatch.setattr(Session, "_run", lambda self, ids, *rest: taken.append(len(ids[0])) or run(self, ids, *rest))
    prompt = [[(7 * i + row) % 400 + 4 for i in range(299)] for row in range(sequences)]
    with DynamicCache() as cache:
        steps = Session(model, cache, [0] * sequences, chunk=chunk).prefill(prompt, "logits")
        next(steps)
        nbytes = cache.nbytes
        found = _result(steps)[0]
        assert cache.nbytes == nbytes, "room for the whole prompt is made at once"
    assert taken == sizes
    np.testing.assert_allclose(found, model(input_ids=prompt).logits.tolist()[0][-1], atol=1e-4)


@pytest.mark.parametrize("meanwhile", ["nothing", "run", "free", "close", "dispose"])
def test_a_chunk_pauses(monkeypatch: pytest.MonkeyPatch, model: Any, meanwhile: str) -> None:
    monkeypatch.setattr(base, "PAUSE", 0)
    prompt = [[(7 * i) % 400 + 4 for i in range(20)]]
    expected = model(input_ids=prompt).logits.tolist()[0][-1]
    with DynamicCache() as cache:
        steps = Session(model, cache, [0]).prefill(prompt, "logits")
        next(steps)
        next(steps)
        assert cache.get_seq_length() == 0, "the first chunk is not done"
        if meanwhile == "run":
            model(input_ids=[[5] * 33])
        elif meanwhile == "free":
            model.executor.free(model.executor.allocate(64))
        elif meanwhile == "close":
            steps.close()
            steps = Session(model, cache, [0]).prefill(prompt, "logits")
        elif meanwhile == "dispose":
            cache.dispose()
            with pytest.raises(DisposedError):
                next(steps)
            return
        np.testing.assert_allclose(_result(steps)[0], expected, atol=1e-4)
        assert cache.get_seq_length() == len(prompt[0])


def _result(steps: Any) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


@pytest.mark.parametrize("chunk", [2, 3, None])
def test_padding_longer_than_a_chunk(model: Any, chunk: int | None) -> None:
    prompts = [[341, 299, 321, 381], [*PROMPT[0], 300, 5, 6, 7, 8]]
    padded = [[3] * (13 - len(row)) + row for row in prompts]
    mask = [[int(i >= 13 - len(row)) for i in range(13)] for row in prompts]
    found = model.generate(padded, attention_mask=mask, max_new_tokens=6, prefill_chunk_size=chunk)
    for row, prompt in zip(found, prompts, strict=True):
        assert row[13:].tolist() == model.generate([prompt], max_new_tokens=6)[0][len(prompt) :].tolist()


def test_logarithms_of_probabilities(model: Any) -> None:
    logits = np.asarray(model(PROMPT).logits)[0].astype("float64")
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = [logs[i, token] for i, token in enumerate(PROMPT[0][1:])]
    np.testing.assert_allclose(token_log_probabilities(model, PROMPT), expected, atol=1e-4)
    long = [1, *range(100, 250)]
    assert len(token_log_probabilities(model, long)) == 150
    assert token_log_probabilities(model, {"input_ids": PROMPT}) == token_log_probabilities(model, PROMPT)
    with pytest.raises(InputError, match="two tokens"):
        token_log_probabilities(model, [1])
    with pytest.raises(InputError, match="does not predict"):
        token_log_probabilities(model.base_model, PROMPT)


def test_scores_of_transitions(model: Any) -> None:
    wanted: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 7}
    output = model.generate(PROMPT, temperature=0.5, do_sample=True, top_k=0, seed=1, **wanted)
    scores = np.stack([np.asarray(step)[0] for step in output.scores]).astype("float64")
    chosen = scores[np.arange(7), output.sequences.tolist()[0][8:]]
    found = model.compute_transition_scores(output.sequences, output.scores)
    np.testing.assert_allclose(found, [chosen], atol=1e-5)
    normalized = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    np.testing.assert_allclose(normalized, [chosen - np.log(np.exp(scores).sum(-1))], atol=1e-5)
    with pytest.raises(InputError, match="output_scores"):
        model.compute_transition_scores(output.sequences, ())


def test_transitions_of_beams_add_up_to_their_scores(model: Any) -> None:
    wanted: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 7}
    output = model.generate(
        [[7, 8, 9], [20, 21, 22]],
        num_beams=3,
        num_return_sequences=3,
        early_stopping=True,
        eos_token_id=list(range(99)),
        **wanted,
    )
    found = np.asarray(model.compute_transition_scores(output.sequences, output.scores, output.beam_indices))
    lengths = (np.asarray(output.beam_indices) >= 0).sum(1)
    assert len(set(lengths.tolist())) > 1, "some beams end before others"
    np.testing.assert_allclose(found.sum(1) / lengths, output.sequences_scores, atol=1e-5)


@pytest.mark.parametrize("ids", [[1, 420], [1, 2, -1], [1, -1, 2]], ids=str)
def test_tokens_outside_the_vocabulary_have_no_probability(model: Any, ids: list[int]) -> None:
    with pytest.raises(InputError, match="420 tokens"):
        token_log_probabilities(model, ids)


@pytest.mark.parametrize("name", ["llama-rope-dynamic", "phi3-longrope"])
def test_probabilities_are_those_of_the_whole_text(name: str) -> None:
    with AutoModelForCausalLM.from_pretrained(str(GOLDEN / name), device="reference") as model:
        ids = [7 + 31 * i % 350 for i in range(150)]
        logits = np.asarray(model([ids]).logits)[0].astype("float64")
        logs = logits - logits.max(-1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
        expected = [logs[i, token] for i, token in enumerate(ids[1:])]
        np.testing.assert_allclose(token_log_probabilities(model, ids), expected, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"do_sample": True, "seed": 1}], ids=str)
def test_text_that_outgrows_short_frequencies_is_computed_anew(options: dict[str, Any]) -> None:
    options = {"max_new_tokens": 12, "eos_token_id": -1, **options}  # the short ones are for 24 tokens
    with AutoModelForCausalLM.from_pretrained(str(GOLDEN / "phi3-longrope"), device="reference") as model:
        text = [7 + 31 * i % 350 for i in range(19)]
        padded = {"inputs": [[3] * 4 + text[4:], text], "attention_mask": [[0] * 4 + [1] * 15, [1] * 19]}
        for inputs in ({"inputs": [text]}, padded, {"inputs": [[*text, *text]]}):
            expected = model.generate(**inputs, use_cache=False, **options).tolist()
            assert model.generate(**inputs, **options).tolist() == expected
            assert model.generate(**inputs, prefill_chunk_size=5, **options).tolist() == expected
        if options.get("num_beams"):
            return
        with DynamicCache() as cache:
            model.generate([text[:15]], max_new_tokens=2, past_key_values=cache)
            cache.crop(15)
            found = model.generate([[*text, *range(40, 50)]], past_key_values=cache, **options).tolist()
        assert found == model.generate([[*text, *range(40, 50)]], use_cache=False, **options).tolist()


# The pipeline


CHAT = [{"role": "user", "content": "Hi"}]
FIXED: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False}


def test_turns_of_a_conversation_compute_their_new_tokens_only(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []
    run = Session._run

    def counted(session: Session, ids: list[list[int]], *arguments: Any) -> Any:
        fed.append(len(ids[0]))
        return run(session, ids, *arguments)

    monkeypatch.setattr(Session, "_run", counted)
    chat = pipe(CHAT, **FIXED)[0]["generated_text"]
    chat += [{"role": "user", "content": "More"}]
    fed.clear()
    second = pipe(chat, **FIXED)
    known = sum(fed)
    pipe.clear_cache()
    fed.clear()
    assert pipe(chat, **FIXED) == second
    assert known <= sum(fed) - 8
    pipe(CHAT, **FIXED)
    fed.clear()
    assert pipe("Other", **FIXED) == pipe("Other", **FIXED)


@pytest.mark.parametrize("other", ["the cat sat on", "the dog and a"])
def test_calls_that_take_turns_do_not_share_the_cache(pipe: Any, other: str) -> None:
    texts = ["the cat sat on", other]
    expected = [pipe(text, **FIXED) for text in texts]
    pipe.clear_cache()
    going = [pipe.steps(text, **FIXED) for text in texts]
    found: dict[int, Any] = {}
    while len(found) < len(going):
        for i, steps in enumerate(going):
            try:
                next(steps)
            except StopIteration as stop:
                found.setdefault(i, stop.value)
    assert [found[0], found[1]] == expected


@pytest.mark.parametrize(
    "options", [{"use_cache": False}, {"cache_implementation": "static"}, {"kv_cache_dtype": "f16"}], ids=str
)
def test_a_config_decides_about_the_cache(pipe: Any, options: dict[str, Any]) -> None:
    expected = pipe("the cat", **FIXED)
    assert pipe("the cat", generation_config=GenerationConfig(**FIXED, **options)) == expected
    assert "kv_cache_dtype" not in options or pipe._cache.kv_cache_dtype == "f16"


def test_a_config_has_several_sequences(pipe: Any) -> None:
    config = GenerationConfig(max_new_tokens=3, do_sample=True, num_return_sequences=3, seed=1)
    found = pipe("the cat", generation_config=config)
    assert len(found) == 3
    assert pipe("the cat", **config.to_dict()) == found


def test_steps_give_the_text(pipe: Any) -> None:
    steps = pipe.steps(["Once", "Twice"], **FIXED)
    texts = {0: "", 1: ""}
    while True:
        try:
            done, total, fields = next(steps)
        except StopIteration as stop:
            results = stop.value
            break
        assert 0 <= done <= total == 5
        more = fields()
        texts[more["index"]] += more["text"]
    assert [result[0]["generated_text"] for result in results] == ["Once" + texts[0], "Twice" + texts[1]]


def test_batches_equal_single_runs(pipe: Any) -> None:
    texts = ["Once upon a time", "The", "A dog and a cat"]
    expected = [pipe(text, **FIXED) for text in texts]
    assert pipe(texts, **FIXED) == expected
    assert pipe(texts, batch_size=3, **FIXED) == expected
    assert pipe(iter(texts), **FIXED).__next__() == expected[0]


def test_shapes_of_results(pipe: Any) -> None:
    assert pipe(CHAT, **FIXED)[0]["generated_text"][:1] == CHAT
    assert isinstance(pipe(CHAT, return_full_text=False, **FIXED)[0]["generated_text"], str)
    assert len(pipe([CHAT, CHAT], **FIXED)) == 2
    assert len(pipe("A", num_return_sequences=3, max_new_tokens=2, seed=1)) == 3
    open_end = [*CHAT, {"role": "assistant", "content": "So I"}]
    pipe.tokenizer.chat_template = pipe.tokenizer.chat_template.removesuffix("<a>")
    said = pipe(open_end, **FIXED)[0]["generated_text"]
    pipe.tokenizer.chat_template += "<a>"
    assert len(said) == 2 and said[1]["content"].startswith("So I")


def test_a_last_message_of_parts_goes_on(pipe: Any) -> None:
    template = "{% for p in messages[0].content %}{{ p.text }}{% endfor %}<e>"
    parts = [{"type": "text", "text": "So"}, {"type": "text", "text": " I"}]
    found = pipe([{"role": "assistant", "content": parts}], chat_template=template, **FIXED)[0]["generated_text"]
    (text,) = pipe("So I", **FIXED)
    assert found == [{"role": "assistant", "content": [parts[0], {"type": "text", "text": text["generated_text"][2:]}]}]


@pytest.mark.parametrize(
    ("value", "options", "words"),
    [
        (3, {}, "text"),
        ({"role": "user", "content": "x"}, {}, "list of messages"),
        ("x", {"tools": []}, "conversations"),
        (CHAT, {"prefix": "x"}, "texts"),
        ("x", {"max_new_token": 3}, "no option"),
        ("x", {"handle_long_generation": "cut"}, "hole"),
        ("x", {"temperature": -1.0}, "temperature"),
        ("x", {"return_full_text": "no"}, "return_full_text"),
        ("x", {"continue_final_message": 0}, "continue_final_message"),
        ("x", {"prefix": 5}, "prefix"),
        ("x", {"return_dict_in_generate": True}, "texts"),
        ("x", {"generation_config": {"max_new_tokens": 3}}, "GenerationConfig"),
        ("x", {"stop_sequence": "a", "stop_strings": ["b"]}, "Only one"),
    ],
)
def test_refused_by_the_pipeline(pipe: Any, value: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        pipe(value, **options)
