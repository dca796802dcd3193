"""Generation beyond transformers' golden results: options, streams, ends, caches, samples, aborts."""

from collections import Counter
from collections.abc import Iterator
from math import exp
from pathlib import Path
from typing import Any

import pytest

from inpage import pipeline, program, set_seed, token_log_probabilities
from inpage.errors import InputError, UnsupportedError
from inpage.generation.cache import DynamicCache, StaticCache
from inpage.generation.configuration import GenerationConfig
from inpage.generation.logits_process import LogitsProcessor
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
        ({"streamer": object(), "num_beams": 2}, UnsupportedError, "streamed"),
    ],
    ids=str,
)
def test_refused_options(model: Any, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        model.generate(PROMPT, **options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "once"),
        ({"inputs": PROMPT, "input_ids": PROMPT}, "once"),
        ({"inputs": [[]]}, "at least one token"),
        ({"inputs": PROMPT, "attention_mask": [[1]]}, "shape"),
        ({"inputs": BATCH, "attention_mask": [[1] * 5 + [0] * 3, [1] * 8]}, "left"),
        ({"inputs": [[5, 6, 3], [5, 6, 7]]}, "left"),
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


def test_samples_follow_the_probabilities(model: Any) -> None:
    options: dict[str, Any] = {"do_sample": True, "top_k": 2, "max_new_tokens": 1, "temperature": 0.05}
    output = model.generate(PROMPT, seed=1, return_dict_in_generate=True, output_scores=True, **options)
    row = output.scores[0].tolist()[0]
    best = sorted(range(len(row)), key=row.__getitem__)[-2:]
    expected = 1 / (1 + exp(row[best[0]] - row[best[1]]))
    drawn = Counter(r[-1] for r in model.generate(PROMPT, seed=2, num_return_sequences=400, **options).tolist())
    assert drawn[best[1]] / 400 == pytest.approx(expected, abs=0.1)


# Batches, processors and criteria of the caller


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"repetition_penalty": 1.5}], ids=str)
def test_a_padded_batch_equals_single_runs(model: Any, options: dict[str, Any]) -> None:
    together = model.generate(BATCH, attention_mask=MASK, max_new_tokens=9, **options).tolist()
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
    with pytest.raises(InputError, match="batch"):
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
        # of 1, 2, 4, .. 32 tokens, at the end of a prompt and before it
        assert len(recorded) <= 12
        for prompt, logits in zip(prompts, found, strict=True):
            exact = model(input_ids=prompt).logits.tolist()[0][-1]
            assert max(abs(a - b) for a, b in zip(logits, exact, strict=True)) < 1e-4


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
    import numpy as np

    logits = np.asarray(model(PROMPT).logits)[0].astype("float64")
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = [logs[i, token] for i, token in enumerate(PROMPT[0][1:])]
    np.testing.assert_allclose(token_log_probabilities(model, PROMPT), expected, atol=1e-4)
    long = [1, *range(100, 250)]
    assert len(token_log_probabilities(model, long)) == 150
    with pytest.raises(InputError, match="two tokens"):
        token_log_probabilities(model, [1])


# The pipeline


CHAT = [{"role": "user", "content": "Hi"}]
FIXED: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False}


def test_turns_of_a_conversation_compute_their_new_tokens_only(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []
    run = pipe.model.next_token

    def counted(**arguments: Any) -> Any:
        fed.append(arguments["input_ids"].shape[1])
        return run(**arguments)

    monkeypatch.setattr(pipe.model, "next_token", counted)
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


def test_steps_give_the_text(pipe: Any) -> None:
    steps = pipe.steps(["Once", "Twice"], **FIXED)
    texts = {0: "", 1: ""}
    while True:
        try:
            done, total, more = next(steps)
        except StopIteration as stop:
            results = stop.value
            break
        assert 0 <= done <= total == 5
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
    ],
)
def test_refused_by_the_pipeline(pipe: Any, value: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        pipe(value, **options)
