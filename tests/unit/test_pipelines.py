"""Pipelines: shapes of results, options, batching, and errors. Values are those of tests/golden/pipelines."""

import asyncio
import itertools
import json
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inpage import AutoModelForSequenceClassification, AutoTokenizer, pipeline
from inpage.errors import DisposedError, FileNotFoundInRepositoryError, InputError, UnsupportedError
from inpage.pipelines.base import batches, padded_length
from inpage.pipelines.token_classification import _longest_of_overlapping
from inpage.tensor import Tensor

ENCODERS = Path(__file__).parents[1] / "golden" / "encoders"
TEXTS = [
    "It is bad.",
    "Marie Curie was born in Warsaw and Albert Einstein worked in Bern, or so the books of the library say.",
    "The film was wonderful, moving and funny.",
    "Who?",
    "Paris is the capital of France and London is the capital of England.",
]
CONTEXT = "Shakespeare wrote Hamlet, the play, in London. " * 12
MODELS = {
    "feature-extraction": "bert-base",
    "text-classification": "bert-cls",
    "token-classification": "bert-ner",
    "fill-mask": "bert-mlm",
    "question-answering": "bert-qa",
    "zero-shot-classification": "bert-cls",
}
TEXT_TASKS = [task for task in MODELS if task != "question-answering"]  # with options of the tokenizer


@pytest.fixture(scope="module")
def pipes() -> Iterator[dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no NLI model: the labels of bert-cls name no entailment
        loaded = {task: pipeline(task, str(ENCODERS / model)) for task, model in MODELS.items()}
    yield loaded
    for pipe in loaded.values():
        pipe.dispose()


@pytest.fixture
def extract(pipes: dict[str, Any]) -> Any:
    return pipes["feature-extraction"]


@pytest.fixture
def classify(pipes: dict[str, Any]) -> Any:
    return pipes["text-classification"]


@pytest.fixture
def ner(pipes: dict[str, Any]) -> Any:
    return pipes["token-classification"]


@pytest.fixture
def fill(pipes: dict[str, Any]) -> Any:
    return pipes["fill-mask"]


@pytest.fixture
def answer(pipes: dict[str, Any]) -> Any:
    return pipes["question-answering"]


@pytest.fixture
def zero_shot(pipes: dict[str, Any]) -> Any:
    return pipes["zero-shot-classification"]


def close(found: Any, expected: Any, tolerance: float = 2e-5) -> bool:
    """Equal in structure, floats within the tolerance."""
    if isinstance(found, Tensor) or isinstance(expected, Tensor):
        return close(_plain(found), _plain(expected), tolerance)
    if isinstance(expected, float):
        return abs(found - expected) <= tolerance
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(close(found[k], v, tolerance) for k, v in expected.items())
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(close, found, expected, itertools.repeat(tolerance)))
    return found == expected


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


# Batching


@pytest.mark.parametrize("length", [1, 8, 9, 63, 64, 65, 129, 511, 512])
def test_padded_length_is_little_longer_and_one_of_few(length: int) -> None:
    padded = padded_length(length)
    assert length <= padded <= max(8, math.ceil(length / 8) * 8, length * 9 / 8)
    assert padded_length(padded) == padded
    assert len({padded_length(n) for n in range(1, 513)}) <= 32


def test_batches_hold_every_row_once_longest_first() -> None:
    lengths = [5, 200, 7, 33, 512, 8, 8, 40] * 5
    found = list(batches(lengths, None))
    assert sorted(itertools.chain(*found)) == list(range(len(lengths)))
    assert all(padded_length(lengths[b[0]]) * len(b) <= 512 for b in found)
    order = [lengths[i] for batch in found for i in batch]
    assert order == sorted(lengths, reverse=True)


def test_batch_size_is_obeyed() -> None:
    assert [len(b) for b in batches([10] * 7, 3)] == [3, 3, 1]


def calls() -> list[Any]:
    masked = [text.replace(" the ", " [MASK] ").replace("Who", "[MASK]").replace("is bad", "[MASK]") for text in TEXTS]
    masked[2] = "The film was [MASK]."
    return [
        ("feature-extraction", (TEXTS,), {}),
        ("feature-extraction", (TEXTS,), {"pooling": "mean", "normalize": True}),
        ("text-classification", (TEXTS,), {"top_k": None}),
        ("text-classification", ([TEXTS[0], {"text": TEXTS[1], "text_pair": TEXTS[2]}, TEXTS[3]],), {"top_k": None}),
        ("token-classification", (TEXTS,), {"aggregation_strategy": "average"}),
        ("token-classification", ([CONTEXT, *TEXTS],), {"aggregation_strategy": "simple", "stride": 4}),
        ("fill-mask", (masked,), {"top_k": 2}),
        (
            "question-answering",
            ([f"{w} wrote the play?" for w in ("Who", "Where", "When was it and who")], CONTEXT),
            {},
        ),
        ("zero-shot-classification", (TEXTS, ["food", "film about people"]), {}),
    ]


@pytest.mark.parametrize(("task", "inputs", "options"), calls())
def test_results_depend_neither_on_batch_size_nor_on_order(
    pipes: dict[str, Any], task: str, inputs: Any, options: Any
) -> None:
    pipe = pipes[task]
    expected = [pipe(item, *inputs[1:], **options) for item in inputs[0]]
    if task == "feature-extraction" and options:
        expected = [e.tolist()[0] for e in expected]
    if task == "text-classification":
        assert isinstance(expected[0], list)
    for batch_size in (None, 1, 2, 100):
        found = pipe(list(inputs[0]), *inputs[1:], batch_size=batch_size, **options)
        assert close(found, expected), batch_size
    reverse = pipe(list(inputs[0])[::-1], *inputs[1:], **options)
    assert close(_plain(reverse)[::-1], expected)


def test_order_is_kept_over_windows_and_steps_count_items(classify: Any) -> None:
    texts = [f"{'very ' * (i % 7)}good film" for i in range(300)]
    steps = classify.steps(texts)
    seen = []
    while True:
        try:
            seen.append(next(steps))
        except StopIteration as stop:
            found = stop.value
            break
    assert seen[-1] == (300, 300)
    assert seen == sorted(seen)
    by_text = {text: classify(text)[0] for text in texts[:7]}
    assert close(found, [by_text[text] for text in texts])


def test_a_closed_call_leaves_the_pipeline_usable(classify: Any) -> None:
    before = classify(TEXTS)
    steps = classify.steps(TEXTS, batch_size=1)
    next(steps)
    steps.close()
    assert close(classify(TEXTS), before)


def test_a_generator_is_read_as_needed(classify: Any) -> None:
    read = []

    def texts() -> Iterator[str]:
        for text in TEXTS:
            read.append(text)
            yield text

    found = classify(texts(), batch_size=2)
    assert next(found) == classify([TEXTS[0]])[0]
    assert len(read) == 2
    assert close([classify([TEXTS[0]])[0], *found], classify(TEXTS))


def test_an_empty_list_gives_an_empty_list(pipes: dict[str, Any]) -> None:
    assert pipes["text-classification"]([]) == []
    assert pipes["fill-mask"]([]) == []
    assert pipes["feature-extraction"]([], pooling="mean").shape == (0, 32)


# Inputs and options


@pytest.mark.parametrize("value", [None, 3, ["a", None], [["a"]], [3]])
@pytest.mark.parametrize("task", ["feature-extraction", "text-classification", "token-classification", "fill-mask"])
def test_what_is_no_text_is_refused(pipes: dict[str, Any], task: str, value: Any) -> None:
    with pytest.raises(InputError, match="text"):
        pipes[task](value)


@pytest.mark.parametrize("task", MODELS)
def test_unknown_options_are_refused_with_the_known_ones(pipes: dict[str, Any], task: str) -> None:
    with pytest.raises(InputError, match="batch_size") as caught:
        pipes[task]("a", padding="max_length")
    assert "padding" in caught.value.message
    with pytest.raises(InputError, match="batch_size"):
        pipes[task]("a", batch_size=0)
    with pytest.raises(InputError, match="by position"):
        pipes[task]("a", "b", "c")


@pytest.mark.parametrize(
    ("task", "option", "value"),
    [
        *((task, "tokenizer_kwargs", value) for task in MODELS for value in (3, [("max_length", 8)])),
        *((task, "add_special_tokens", value) for task in TEXT_TASKS for value in (None, "false", 0)),
        ("feature-extraction", "normalize", "no"),
        ("feature-extraction", "return_tensors", "pt"),
        *(("token-classification", "ignore_labels", value) for value in (None, 3, "O", [None])),
        ("token-classification", "is_split_into_words", 1),
        ("token-classification", "delimiter", None),
        *(("fill-mask", "targets", value) for value in (3, [["the"]], [None])),
        *(("question-answering", name, "yes") for name in ("align_to_words", "handle_impossible_answer")),
        *(("zero-shot-classification", "candidate_labels", value) for value in (None, 3, [None], [["a"]], {"a": 1})),
        *(
            ("zero-shot-classification", "hypothesis_template", value)
            for value in (3, "{", "{} {}", "{label}", "{0.x}")
        ),
        ("zero-shot-classification", "multi_label", None),
    ],
)
def test_options_of_another_type_are_refused_by_name(pipes: dict[str, Any], task: str, option: str, value: Any) -> None:
    arguments = {"question-answering": ["a?", "b"], "zero-shot-classification": ["a"]}.get(task, ["a [MASK]"])
    options = {"candidate_labels": ["b"]} if task == "zero-shot-classification" else {}
    if option == "delimiter":
        options, arguments = {"is_split_into_words": True}, [["a", "b"]]
    with pytest.raises(InputError, match=option):
        pipes[task](*arguments, **(options | {option: value}))


def test_arguments_come_by_name_too(classify: Any) -> None:
    assert classify(inputs=TEXTS) == classify(TEXTS)
    with pytest.raises(InputError, match="twice"):
        classify(TEXTS, inputs=TEXTS)


def test_long_texts_are_cut_unless_that_is_refused(classify: Any, extract: Any) -> None:
    long = "very " * 100
    assert close(classify(long), classify("very " * 70))
    assert extract(long).shape == (1, 64, 32)
    assert extract(long, max_length=10).shape == (1, 10, 32)
    assert extract(long, tokenize_kwargs={"max_length": 12}).shape == (1, 12, 32)
    with pytest.raises(InputError, match="at most 64"):
        classify(long, truncation=False)
    with pytest.raises(InputError, match="max_length"):
        classify(long, truncation=False, max_length=5)
    with pytest.raises(InputError, match="truncation"):
        classify(long, truncation="some")
    with pytest.raises(InputError, match="twice"):
        extract(long, max_length=10, tokenize_kwargs={"max_length": 12})
    with pytest.raises(UnsupportedError, match="padding"):
        extract(long, tokenize_kwargs={"padding": True})


def test_the_side_of_a_pair_that_is_cut(classify: Any) -> None:
    pair = {"text": "the dog " * 20, "text_pair": "a fox " * 20}
    found = [classify(pair, top_k=None, truncation=side) for side in ("longest_first", "only_first", "only_second")]
    assert not any(close(one, other) for one, other in itertools.combinations(found, 2))
    assert close(classify(pair, top_k=None), found[0])


def test_padding_stays_within_the_positions_of_the_model(classify: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(classify), "max_positions", property(lambda self: 61))
    rows = classify.encode(["very " * 100, "good"], classify.options())
    assert classify.inputs(rows)["input_ids"].shape == (2, 61)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "texts", [TEXTS, [(text, "Why?") for text in TEXTS], TEXTS[:1] * 3], ids=["texts", "pairs", "one"]
)
def test_rows_are_padded_as_the_tokenizer_pads(
    extract: Any, monkeypatch: pytest.MonkeyPatch, side: str, texts: list[Any]
) -> None:
    monkeypatch.setattr(extract.tokenizer, "padding_side", side)
    found = extract.inputs(extract.rows(extract.tokenize(texts, options=extract.options())))
    length = found["input_ids"].shape[1]
    expected = extract.tokenizer(texts, padding="max_length", max_length=length, truncation=True)
    assert {name: tensor.tolist() for name, tensor in found.items()} == dict(expected)


def test_special_tokens_can_be_left_out(extract: Any) -> None:
    assert extract("the dog").shape[1] == extract("the dog", add_special_tokens=False).shape[1] + 2
    with pytest.raises(InputError, match="token"):
        extract("", add_special_tokens=False)


def test_defaults_of_the_pipeline_give_way_to_options_of_the_call() -> None:
    with pipeline("ner", str(ENCODERS / "bert-ner"), aggregation_strategy="simple") as pipe:
        assert "entity_group" in pipe(TEXTS[1])[0]
        assert "entity" in pipe(TEXTS[1], aggregation_strategy="none")[0]
    with pytest.raises(InputError, match="aggregation_strategy"):
        pipeline("ner", str(ENCODERS / "no-such-folder"), aggregation="simple")
    events: list[dict[str, Any]] = []
    with pytest.raises(InputError, match="aggregation_strategy"):
        pipeline(model=str(ENCODERS / "bert-ner"), aggregation="simple", progress_callback=events.append)
    assert not [e for e in events if e.get("file") == "model.safetensors"]


# feature-extraction


def test_features_of_a_list_are_a_tensor_each(extract: Any) -> None:
    found = extract(TEXTS)
    assert [type(f) for f in found] == [Tensor] * len(TEXTS)
    assert len({f.shape for f in found}) > 1
    assert close(found[2], extract(TEXTS[2]))


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", lambda rows: [sum(column) / len(rows) for column in zip(*rows, strict=True)]),
        ("cls", lambda rows: rows[0]),
        ("first_token", lambda rows: rows[0]),
        ("last_token", lambda rows: rows[-1]),
        ("eos", lambda rows: rows[-1]),
    ],
)
def test_pooling_gives_a_vector_a_text(extract: Any, pooling: str, expected: Any) -> None:
    features = [f.tolist()[0] for f in extract(TEXTS)]
    found = extract(TEXTS, pooling=pooling)
    assert found.shape == (len(TEXTS), 32)
    assert close(found.tolist(), [expected(rows) for rows in features])
    assert extract(TEXTS[0], pooling=pooling).shape == (1, 32)


def test_normalised_vectors_have_length_one(extract: Any) -> None:
    plain, unit = extract(TEXTS, pooling="mean"), extract(TEXTS, pooling="mean", normalize=True)
    for row, unit_row in zip(plain.tolist(), unit.tolist(), strict=True):
        norm = math.hypot(*row)
        assert norm != pytest.approx(1, abs=0.1)
        assert close(unit_row, [x / norm for x in row])
    assert math.hypot(*extract("the dog", normalize=True).tolist()[0][1]) == pytest.approx(1, abs=1e-5)


def test_lists_in_place_of_tensors(extract: Any) -> None:
    assert extract("a b", return_tensors=False) == extract("a b").tolist()
    assert extract(["a b"], return_tensors=False) == [extract("a b").tolist()]
    assert extract(["a b"], pooling="cls", return_tensors=False) == extract(["a b"], pooling="cls").tolist()


def test_unknown_pooling(extract: Any) -> None:
    with pytest.raises(InputError, match="'mean'"):
        extract("a", pooling="median")


# text-classification


def test_shapes_of_classifications(classify: Any) -> None:
    label = {"label", "score"}
    assert [r.keys() for r in classify("good")] == [label]
    assert [r.keys() for r in classify("good", top_k=1)] == [label]
    assert [r.keys() for r in classify(["good", "bad"])] == [label] * 2
    assert [len(r) for r in classify(["good", "bad"], top_k=2)] == [2, 2]
    assert classify({"text": "good"}).keys() == label
    assert len(classify("good", top_k=50)) == 3


def test_scores_by_function(classify: Any) -> None:
    logits = {r["label"]: r["score"] for r in classify("good", top_k=None, function_to_apply="none")}
    sigmoid = {r["label"]: r["score"] for r in classify("good", top_k=None, function_to_apply="sigmoid")}
    softmax = {r["label"]: r["score"] for r in classify("good", top_k=None, function_to_apply="softmax")}
    assert close(sigmoid, {k: 1 / (1 + math.exp(-v)) for k, v in logits.items()})
    total = sum(map(math.exp, logits.values()))
    assert close(softmax, {k: math.exp(v) / total for k, v in logits.items()})
    with pytest.raises(InputError, match="softmax"):
        classify("good", function_to_apply="relu")


def test_default_function_is_that_of_the_problem(classify: Any) -> None:
    config = classify.model.config
    for problem, function in [
        ("regression", "none"),
        ("multi_label_classification", "sigmoid"),
        ("single_label_classification", "softmax"),
        (None, "softmax"),
    ]:
        before, config.problem_type = config.problem_type, problem
        try:
            assert classify("good", top_k=None) == classify("good", top_k=None, function_to_apply=function)
        finally:
            config.problem_type = before


def test_a_single_class_is_scored_by_the_sigmoid() -> None:
    with pipeline("text-classification", str(ENCODERS / "bert-reg")) as rate:
        value = rate("good")[0]["score"]
        rate.model.config.problem_type = None
        assert close(rate("good")[0]["score"], 1 / (1 + math.exp(-value)))


@pytest.mark.parametrize("value", [{"text_pair": "a"}, {"text": "a", "pair": "b"}, {"text": 3}, {}])
def test_malformed_pairs(classify: Any, value: Any) -> None:
    with pytest.raises(InputError):
        classify(value)


@pytest.mark.parametrize("top_k", [0, -1, "all", 1.5])
def test_wrong_top_k(classify: Any, fill: Any, answer: Any, top_k: Any) -> None:
    for call in (
        lambda: classify("a", top_k=top_k),
        lambda: fill("[MASK]", top_k=top_k),
        lambda: answer("a", "b", top_k=top_k),
    ):
        with pytest.raises(InputError, match="top_k"):
            call()


# token-classification


def test_entities_are_parts_of_the_text(ner: Any) -> None:
    text = TEXTS[1]
    for strategy in ("simple", "first", "average", "max"):
        found = ner(text, aggregation_strategy=strategy, ignore_labels=[])
        assert all(
            text[e["start"] : e["end"]].lower() == e["word"].replace("##", "") for e in found if " " not in e["word"]
        )
        assert [e["start"] for e in found] == sorted(e["start"] for e in found)


def test_unknown_tokens_are_shown_as_in_the_text(ner: Any) -> None:
    found = ner("Paris \u6771 Curie\u03a9", ignore_labels=[])
    assert "\u6771" in [e["word"] for e in found]
    assert "[UNK]" not in [e["word"] for e in found]


def test_of_overlapping_entities_the_longest_then_the_surest_stays() -> None:
    def entity(start: int, end: int, score: float) -> dict[str, Any]:
        return {"start": start, "end": end, "score": score}

    short, long, sure = entity(0, 4, 0.9), entity(2, 9, 0.1), entity(12, 15, 0.8)
    assert _longest_of_overlapping([sure, short, entity(12, 15, 0.7), long]) == [long, sure]
    assert _longest_of_overlapping([]) == []


def test_words_and_text_give_the_same_entities(ner: Any) -> None:
    words = ["Marie", "Curie", "was", "born", "in", "Warsaw"]
    plain = ner(" ".join(words), aggregation_strategy="first")
    assert close(ner(words, is_split_into_words=True, aggregation_strategy="first"), [plain])
    wide = ner([words], is_split_into_words=True, delimiter="---", aggregation_strategy="first")[0]
    text = "---".join(words)
    assert [text[e["start"] : e["end"]].lower() for e in wide] == [e["word"] for e in plain]
    with pytest.raises(InputError, match="list of words"):
        ner("a text", is_split_into_words=True)


def test_stride_reads_the_whole_text(ner: Any) -> None:
    cut = ner(CONTEXT, aggregation_strategy="simple", ignore_labels=[])
    whole = ner(CONTEXT, aggregation_strategy="simple", ignore_labels=[], stride=8)
    assert cut[-1]["end"] < len(CONTEXT) / 2
    assert whole[-1]["end"] == len(CONTEXT) - 1
    assert not close(whole, ner(CONTEXT, aggregation_strategy="simple", ignore_labels=[], stride=16))
    for stride, options in [(8, {}), (62, {"aggregation_strategy": "simple"}), (0, {"aggregation_strategy": "max"})]:
        with pytest.raises(InputError, match="stride"):
            ner(CONTEXT, stride=stride, **options)


def test_ignored_labels(ner: Any) -> None:
    every = ner(TEXTS[1], ignore_labels=[])
    dropped = every[0]["entity"]
    assert ner(TEXTS[1], ignore_labels=[dropped]) == [e for e in every if e["entity"] != dropped]
    with pytest.raises(InputError, match="ignore_labels"):
        ner(TEXTS[1], ignore_labels="O")
    with pytest.raises(InputError, match="'average'"):
        ner(TEXTS[1], aggregation_strategy="mean")


# fill-mask


def test_targets_limit_the_proposals(fill: Any) -> None:
    text = "Paris is the [MASK] of France."
    every = {p["token_str"]: p for p in fill(text, top_k=420)}
    assert len(every) > 300
    found = fill(text, targets=["the", "capital", "the"])
    assert close(found, sorted((every[t] for t in ("the", "capital")), key=lambda p: -p["score"]))
    assert close(fill(text, targets="capital"), [every["capital"]])
    assert fill(text, targets=["the", "capital"], top_k=1) == found[:1]
    with pytest.warns(UserWarning, match="zzz"):
        assert fill(text, targets="zzz")[0]["token_str"] == "z"
    with pytest.raises(InputError, match="targets"), pytest.warns(UserWarning, match="left out"):
        fill(text, targets=[""])


def test_masks_are_needed(fill: Any) -> None:
    with pytest.raises(InputError, match=r"\[MASK\]"):
        fill("no gap at all")
    with pytest.raises(InputError, match="first 64 tokens"):
        fill("very " * 100 + "[MASK]")
    with pytest.raises(InputError, match="mask token"):
        fill(["A [MASK].", "none"])


def test_tokenizer_options_of_fill_mask(fill: Any) -> None:
    text = "the [MASK] " + "dog " * 60
    assert fill(text, tokenizer_kwargs={"max_length": 20}) == fill(text, max_length=20)
    assert not close(fill(text), fill(text, max_length=20))


# question-answering


def test_ways_to_ask(answer: Any) -> None:
    question, context = "Who wrote the play?", CONTEXT
    one = answer(question, context)
    assert one["answer"] == context[one["start"] : one["end"]]
    assert close(answer(question=question, context=context), one)
    assert close(answer({"question": question, "context": context}), one)
    assert close(answer([question, question], context), [one, one])
    assert close(answer([question], [context]), [one])
    assert close(answer([{"question": question, "context": context}]), [one])


@pytest.mark.parametrize(
    "inputs",
    [
        ("Who?",),
        ("Who?", ""),
        ("", "He."),
        (None, "He."),
        ("Who?", ["He."]),
        (["Who?", "What?"], ["He."]),
        ({"question": "Who?"},),
        (["Who?"],),
        (),
    ],
)
def test_questions_need_contexts(answer: Any, inputs: Any) -> None:
    with pytest.raises(InputError):
        answer(*inputs)


def test_options_of_answers(answer: Any) -> None:
    question = "Who wrote the play?"
    several = answer(question, CONTEXT, top_k=4)
    assert [a["score"] for a in several] == sorted((a["score"] for a in several), reverse=True)
    assert len(several) == 4
    short = answer(question, CONTEXT, max_answer_len=1, top_k=20, align_to_words=False)
    tokens = {tuple(span) for span in answer.tokenizer(CONTEXT, verbose=False).encodings[0].offsets}
    assert len(short) > 2
    assert {(a["start"], a["end"]) for a in short} <= tokens
    assert not close(answer(question, CONTEXT, max_seq_len=30), answer(question, CONTEXT))
    assert not close(answer(question, CONTEXT, doc_stride=4), answer(question, CONTEXT))
    words = answer(question, CONTEXT, top_k=12)
    tokens = answer(question, CONTEXT, top_k=12, align_to_words=False)
    assert not close(words, tokens)
    impossible = answer(question, CONTEXT, top_k=400, handle_impossible_answer=True)
    assert [a for a in impossible if a["answer"] == ""] == [
        {"score": pytest.approx(impossible[-1]["score"], abs=1), "start": 0, "end": 0, "answer": ""}
    ]
    assert not [a for a in answer(question, CONTEXT, top_k=400) if a["answer"] == ""]


def test_no_answer_scores_as_in_the_part_that_likes_it_least(answer: Any) -> None:
    options = answer.options(handle_impossible_answer=True, top_k=500)
    item = ("Who?", CONTEXT)
    rows = answer.encode([item], options)
    assert len(rows) > 2
    outputs = []
    for number, row in enumerate(rows):
        logits = [0.0] * row.length
        logits[0] = 5.0 - (number == 1)
        outputs.append((logits, logits))
    found = answer.decode(item, rows, outputs, options)
    context = sum(sequence == 1 for sequence in rows[1].encoding.sequence_ids)
    expected = (math.exp(4) / (math.exp(4) + context)) ** 2
    assert close([a["score"] for a in found if a["answer"] == ""], [expected])


def test_long_questions(answer: Any) -> None:
    question = "who wrote the play " * 20
    with pytest.raises(InputError, match="max_question_len"):
        answer(question, CONTEXT)
    tokens = len(answer.tokenizer("who wrote the play", add_special_tokens=False)["input_ids"])
    cut = answer(question, CONTEXT, max_question_len=tokens)
    assert close(cut, answer("who wrote the play", CONTEXT))
    assert answer("who wrote the play " * 5, CONTEXT)["answer"]  # little room: the default stride gives way
    with pytest.raises(InputError, match="doc_stride"):
        answer("who wrote the play " * 5, CONTEXT, doc_stride=40)


# zero-shot-classification


def test_zero_shot_scores_are_those_of_entailment(zero_shot: Any, classify: Any) -> None:
    labels, text = ["food", "film", "sport"], TEXTS[2]
    logits = {}
    for label in labels:
        pair = {"text": text, "text_pair": f"This text is about {label}."}
        logits[label] = {r["label"]: r["score"] for r in classify(pair, top_k=None, function_to_apply="none")}
    template = "This text is about {}."
    # The model names no entailment, so its last class ("positive") stands for it, and its first for contradiction.
    total = sum(math.exp(v["positive"]) for v in logits.values())
    expected = {label: math.exp(v["positive"]) / total for label, v in logits.items()}
    found = zero_shot(text, labels, hypothesis_template=template)
    assert found["sequence"] == text
    assert close(dict(zip(found["labels"], found["scores"], strict=True)), expected)
    assert found["scores"] == sorted(found["scores"], reverse=True)
    assert close(zero_shot(text, candidate_labels="food, film,sport,", hypothesis_template=template), found)
    expected = {label: 1 / (1 + math.exp(v["negative"] - v["positive"])) for label, v in logits.items()}
    found = zero_shot(text, labels, hypothesis_template=template, multi_label=True)
    assert close(dict(zip(found["labels"], found["scores"], strict=True)), expected)
    assert close(zero_shot(text, "food", hypothesis_template=template)["scores"], [expected["food"]])


def test_zero_shot_finds_the_entailment_class(zero_shot: Any, classify: Any) -> None:
    plain = zero_shot(TEXTS[2], ["food", "film"])
    zero_shot.labels[0] = "ENTAILMENT"
    try:
        assert not close(zero_shot(TEXTS[2], ["food", "film"]), plain)
        pair = {"text": TEXTS[2], "text_pair": "This example is food."}
        logits = {r["label"]: r["score"] for r in classify(pair, top_k=None, function_to_apply="none")}
        expected = 1 / (1 + math.exp(logits["positive"] - logits["negative"]))
        assert close(zero_shot(TEXTS[2], "food")["scores"], [expected])
    finally:
        zero_shot.labels[0] = "negative"


def test_zero_shot_needs_labels_and_a_template(zero_shot: Any) -> None:
    for labels in ([], "", " , "):
        with pytest.raises(InputError, match="candidate_labels"):
            zero_shot("a", labels)
    with pytest.raises(InputError, match="hypothesis_template"):
        zero_shot("a", "b", hypothesis_template="no place")
    assert close(zero_shot("very " * 100, "food"), {**zero_shot("very " * 90, "food"), "sequence": "very " * 100})


def test_zero_shot_cuts_the_text_and_not_the_label(zero_shot: Any, classify: Any) -> None:
    text, label = "a dog " * 60, "a fox " * 12
    pair = {"text": text, "text_pair": f"This example is {label}."}
    logits = {
        side: {r["label"]: r["score"] for r in classify(pair, top_k=None, function_to_apply="none", truncation=side)}
        for side in ("only_first", "longest_first")
    }
    scores = {side: 1 / (1 + math.exp(v["negative"] - v["positive"])) for side, v in logits.items()}
    assert not close(*scores.values())
    assert close(zero_shot(text, [label])["scores"], [scores["only_first"]])
    assert close(zero_shot(text, [label], truncation="longest_first")["scores"], [scores["longest_first"]])


# pipeline()


def test_unknown_task_and_missing_model() -> None:
    with pytest.raises(UnsupportedError, match="token-classification"):
        pipeline("text-to-video", "some/model")
    with pytest.raises(InputError, match="model"):
        pipeline("ner")
    with pytest.raises(InputError, match="model"):
        pipeline()
    with pytest.raises((FileNotFoundInRepositoryError, InputError)):
        pipeline("ner", str(ENCODERS / "no-such-folder"))


@pytest.mark.parametrize(
    ("model", "task"),
    [
        ("bert-base", "feature-extraction"),
        ("bert-cls", "text-classification"),
        ("bert-ner", "token-classification"),
        ("bert-mlm", "fill-mask"),
        ("bert-qa", "question-answering"),
    ],
)
def test_the_task_is_that_of_the_model(model: str, task: str) -> None:
    with pipeline(model=str(ENCODERS / model)) as pipe:
        assert pipe.task == task


def test_aliases() -> None:
    for alias, model, task in [
        ("sentiment-analysis", "bert-cls", "text-classification"),
        ("ner", "bert-ner", "token-classification"),
        ("embeddings", "bert-base", "feature-extraction"),
    ]:
        with pipeline(alias, str(ENCODERS / model)) as pipe:
            assert pipe.task == task


def test_a_loaded_model_stays_the_callers() -> None:
    folder = str(ENCODERS / "bert-cls")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pipe = pipeline("text-classification", model, tokenizer=tokenizer)
    expected = pipe(TEXTS)
    pipe.dispose()
    with pipeline(model=model, tokenizer=tokenizer) as again:
        assert again(TEXTS) == expected
    last = pipeline(model=model, tokenizer=tokenizer)
    with pytest.raises(InputError, match="tokenizer"):
        pipeline("text-classification", model)
    with pytest.raises(InputError, match="dtype"):
        pipeline("text-classification", model, tokenizer=tokenizer, dtype="fp32")
    model.dispose()
    with pytest.raises(DisposedError):
        last("good")
    last.dispose()


def test_where_the_model_comes_from_and_how_it_computes() -> None:
    expected = {"device": "reference", "attn_implementation": "eager"}
    with pipeline(
        "ner", str(ENCODERS), subfolder="bert-ner", device="reference", model_kwargs={"attn_implementation": "eager"}
    ) as pipe:
        found = {"device": pipe.model.device, "attn_implementation": pipe.model.config.attn_implementation}
        assert found == expected
        assert pipe(TEXTS[1])
    with pytest.raises(FileNotFoundInRepositoryError):
        pipeline("ner", "some-organisation/some-model", local_files_only=True)
    with pytest.raises(FileNotFoundInRepositoryError):
        pipeline("ner", str(ENCODERS / "bert-ner"), tokenizer="some-organisation/other", local_files_only=True)
    with pytest.raises(InputError, match="revision"):
        pipeline("ner", str(ENCODERS / "bert-ner"), revision="v2")
    with pytest.raises((InputError, UnsupportedError), match="fp7"):
        pipeline("ner", str(ENCODERS / "bert-ner"), dtype="fp7")
    for name in ("dtype", "revision", "output_loading_info"):
        with pytest.raises(InputError, match=name):
            pipeline("ner", str(ENCODERS / "bert-ner"), model_kwargs={name: "x"})


def test_the_tokenizer_of_another_repository(classify: Any) -> None:
    other = str(ENCODERS / "distilbert-cls")
    events: list[dict[str, Any]] = []
    with pipeline(
        "text-classification", str(ENCODERS / "bert-cls"), tokenizer=other, progress_callback=events.append
    ) as pipe:
        assert pipe.tokenizer.name_or_path == other
        assert close(pipe(TEXTS), classify(TEXTS))
    assert [e["progress"] for e in events if e["status"] == "progress_total"][-1] == 100


def test_a_model_with_another_head_is_refused(classify: Any, extract: Any) -> None:
    for task in ("ner", "fill-mask", "question-answering"):
        with pytest.raises(InputError, match="AutoModelFor"):
            pipeline(task, classify.model, tokenizer=classify.tokenizer)
    with pipeline("feature-extraction", classify.model, tokenizer=classify.tokenizer) as base:
        assert base("the dog").shape == extract("the dog").shape


def test_a_failed_load_leaves_nothing_behind(fill: Any, tmp_path: Path) -> None:
    executor = fill.model.executor
    used, users = executor.used_bytes, executor.users
    tokenizer = AutoTokenizer.from_pretrained(str(ENCODERS / "bert-mlm"))
    tokenizer.mask_token = None
    with pytest.raises(InputError, match="mask token"):
        pipeline("fill-mask", str(ENCODERS / "bert-mlm"), tokenizer=tokenizer)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((ENCODERS / "bert-mlm" / name).read_bytes())
    with pytest.raises(FileNotFoundInRepositoryError, match="tokenizer"):
        pipeline("fill-mask", str(tmp_path))
    assert (executor.used_bytes, executor.users) == (used, users)


def test_a_disposed_pipeline_refuses_to_work() -> None:
    pipe = pipeline("text-classification", str(ENCODERS / "bert-cls"))
    steps = pipe.steps(TEXTS, batch_size=1)
    next(steps)
    pipe.dispose()
    pipe.dispose()
    for work in (lambda: next(steps), lambda: pipe("good")):
        with pytest.raises(DisposedError, match="text-classification"):
            work()


def test_disposing_gives_all_kernel_memory_back(classify: Any) -> None:
    executor = classify.model.executor
    model = AutoModelForSequenceClassification.from_pretrained(str(ENCODERS / "bert-cls"))
    used = []
    for _ in range(3):  # the first round makes the arena as large as it gets
        with pipeline("text-classification", str(ENCODERS / "bert-cls")) as pipe:
            pipe(TEXTS)
        with pipeline("text-classification", model, tokenizer=classify.tokenizer) as pipe:
            pipe(TEXTS)
            assert executor.used_bytes > min(used, default=0)
        used.append(executor.used_bytes)
    assert used[1] == used[2]
    model.dispose()
    with pytest.raises(DisposedError):
        pipeline("text-classification", model, tokenizer=classify.tokenizer)


def test_events_end_with_ready_and_totals_cover_all_files() -> None:
    events: list[dict[str, Any]] = []
    folder = str(ENCODERS / "bert-cls")
    with pipeline("sentiment-analysis", folder, progress_callback=events.append):
        pass
    assert events[-1] == {"status": "ready", "task": "text-classification", "model": folder}
    assert [e["status"] for e in events].count("ready") == 1
    totals = [e for e in events if e["status"] == "progress_total"]
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= totals[-1]["files"].keys()
    assert totals[-1]["loaded"] == totals[-1]["total"] == totals[0]["total"]
    assert totals[-1]["progress"] == 100


def test_a_pipeline_can_be_awaited() -> None:
    async def main() -> Any:
        pipe = await pipeline("text-classification", str(ENCODERS / "bert-cls"))
        with pipe:
            return pipe("good")

    assert asyncio.run(main())[0]["label"]


def test_numpy_is_not_imported() -> None:
    import subprocess
    import sys

    script = (
        "import sys\nfrom inpage import pipeline\n"
        f"for task, model in {json.dumps(MODELS)}.items():\n"
        f"    pipe = pipeline(task, {str(ENCODERS)!r} + '/' + model)\n"
        "    more = {'question-answering': ['He is [MASK].'], 'zero-shot-classification': ['a,b']}.get(task, [])\n"
        "    pipe('The [MASK] is good.', *more)\n"
        "    pipe.dispose()\n"
        "assert 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)
