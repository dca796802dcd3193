"""Calls of tokenizers: lengths, errors, state, tensors, special tokens, decoding, mappings."""

import subprocess
import sys
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from inpage import AutoTokenizer, Tensor
from inpage.errors import ConfigError, InputError, UnsupportedError
from inpage.processing.batch_encoding import BatchEncoding
from inpage.processing.tokenizer import PreTrainedTokenizer
from tests.golden.tokenizers.cases import ENCODERS

TEXTS = ["hello world", "the quick brown fox jumps over the lazy dog"]


def load(name: str = "bert-base", **options: Any) -> PreTrainedTokenizer:
    return AutoTokenizer.from_pretrained(str(ENCODERS / name), **options)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizer:
    return load()


@pytest.mark.parametrize(
    "options",
    [
        {"padding": "max_length", "truncation": True, "max_length": 12, "stride": 2, "pad_to_multiple_of": 4},
        {"padding": True, "padding_side": "left", "split_special_tokens": True},
        {"truncation": "only_second", "max_length": 6},  # fails: there is no second text
    ],
)
def test_a_call_leaves_no_state_behind(tokenizer: PreTrainedTokenizer, options: dict[str, Any]) -> None:
    before = tokenizer(["[MASK] a", *TEXTS])
    try:
        tokenizer(TEXTS, **options)
    except InputError:
        assert options["truncation"] == "only_second"
    else:
        assert "padding" in options
    assert tokenizer(["[MASK] a", *TEXTS]) == before
    assert tokenizer.backend_tokenizer.truncation is None
    assert tokenizer.backend_tokenizer.padding is None


def test_truncation_and_padding_kept_in_tokenizer_json_are_off(tokenizer: PreTrainedTokenizer) -> None:
    backend = tokenizer.backend_tokenizer
    expected = tokenizer(TEXTS)
    backend.enable_truncation(4, direction="left")
    backend.enable_padding(length=50)
    assert PreTrainedTokenizer(Tokenizer.from_str(backend.to_str()))(TEXTS)["input_ids"] == expected["input_ids"]


def test_padding(tokenizer: PreTrainedTokenizer) -> None:
    ids = tokenizer(TEXTS)["input_ids"]
    short, long = map(len, ids)
    assert [len(row) for row in tokenizer(TEXTS, padding="do_not_pad")["input_ids"]] == [short, long]
    assert tokenizer(TEXTS, padding=True)["input_ids"] == [ids[0] + [0] * (long - short), ids[1]]
    assert tokenizer(TEXTS, padding="longest", padding_side="left")["input_ids"][0] == [0] * (long - short) + ids[0]
    limit = tokenizer.model_max_length
    assert [len(row) for row in tokenizer(TEXTS, padding="max_length")["input_ids"]] == [limit, limit]
    assert [len(row) for row in tokenizer(TEXTS, padding="max_length", max_length=40)["input_ids"]] == [40, 40]
    assert {len(row) % 16 for row in tokenizer(TEXTS, padding=True, pad_to_multiple_of=16)["input_ids"]} == {0}
    tokenizer.padding_side = "left"
    assert tokenizer(TEXTS, padding=True)["attention_mask"][0] == [0] * (long - short) + [1] * short


def test_truncation(tokenizer: PreTrainedTokenizer) -> None:
    first, second = (row[1:-1] for row in tokenizer(TEXTS)["input_ids"])
    cls, sep = [tokenizer.cls_token_id], [tokenizer.sep_token_id]

    def ids(truncation: Any, max_length: int) -> Any:
        return tokenizer(TEXTS[0], TEXTS[1], truncation=truncation, max_length=max_length)["input_ids"]

    room = len(first) + len(second)
    assert ids(False, 5) == ids("do_not_truncate", 5) == cls + first + sep + second + sep
    assert ids(True, room) == ids("longest_first", room) == ids(None, room) == cls + first + sep + second[:-3] + sep
    assert ids("only_first", room) == cls + first[:-3] + sep + second + sep
    assert ids("only_second", 12) == cls + first + sep + second[: 9 - len(first)] + sep
    tokenizer.truncation_side = "left"
    assert ids("only_second", room) == cls + first + sep + second[3:] + sep
    tokenizer.model_max_length = 5
    assert tokenizer(TEXTS[1], truncation=True)["input_ids"] == cls + second[-3:] + sep


def test_overflow(tokenizer: PreTrainedTokenizer) -> None:
    options = {"truncation": True, "max_length": 8, "stride": 2}
    found = tokenizer(TEXTS, return_overflowing_tokens=True, return_length=True, **options)
    texts = found["overflow_to_sample_mapping"]
    assert texts == sorted(texts)
    assert set(texts) == {0, 1}
    assert found["length"] == [len(row) for row in found["input_ids"]]
    for i, text in enumerate(TEXTS):
        pieces = [row[1:-1] for row, sample in zip(found["input_ids"], texts, strict=True) if sample == i]
        assert all(before[-2:] == after[:2] for before, after in pairwise(pieces))
        joined = pieces[0] + [token for piece in pieces[1:] for token in piece[2:]]
        assert joined == tokenizer.encode(text, add_special_tokens=False)
    assert len(tokenizer(TEXTS, **options)["input_ids"]) == 2


FLAGS = (
    "add_special_tokens",
    "is_split_into_words",
    "return_token_type_ids",
    "return_attention_mask",
    "return_overflowing_tokens",
    "return_special_tokens_mask",
    "return_offsets_mapping",
    "return_length",
    "split_special_tokens",
    "verbose",
)


@pytest.mark.parametrize(
    ("arguments", "options", "part"),
    [
        ((3,), {}, "int"),
        ((None,), {}, "NoneType"),
        (([],), {}, "empty"),
        ((["a", 3],), {}, "text 1"),
        (([["a", "b", "c"]],), {}, "is_split_into_words"),
        ((["a", "b"], ["c"]), {}, "same length"),
        ((["a", "b"], "c"), {}, "same length"),
        (("a",), {"is_split_into_words": True}, "list of words"),
        (("a",), {"padding": "longer"}, "padding is one of"),
        (("a",), {"padding": 1}, "padding is one of"),
        (("a",), {"truncation": "last"}, "truncation is one of"),
        (("a",), {"padding": True, "padding_side": "top"}, "padding_side"),
        (("a",), {"truncation": True, "max_length": 1}, "too short for the 2 special tokens"),
        (("a", "b"), {"truncation": True, "max_length": 2}, "too short for the 3 special tokens"),
        (("a",), {"truncation": True, "max_length": 6, "stride": 4}, "at most 3"),
        (("hello world " * 5, "hello " * 9), {"truncation": True, "max_length": 9, "stride": 4}, "stride"),
        (("a b c",), {"truncation": "only_second", "max_length": 4}, "Second sequence not provided"),
        (("a",), {"padding": True, "truncation": True, "max_length": 12, "pad_to_multiple_of": 8}, "multiple"),
        (("a",), {"truncation": True, "max_length": 4, "stride": 2, "add_special_tokens": False}, "at most 1"),
        (("a",), {"max_length": -1}, "max_length is an integer from 0"),
        (("a",), {"max_length": 8.5}, "max_length is an integer from 0"),
        (("a",), {"max_length": True}, "max_length is an integer from 0"),
        (("a",), {"max_length": 10**30}, "max_length is an integer from 0"),
        (("a",), {"padding": True, "pad_to_multiple_of": 10**30}, "pad_to_multiple_of is an integer from 1"),
        (("a",), {"padding": True, "padding_side": ""}, "padding_side"),
        ((["a"], 3), {}, "same length"),
        *(((TEXTS,), {name: value}, name) for name in FLAGS for value in ("no", 1)),
        (("a",), {"truncation": True, "stride": -1}, "stride is an integer from 0"),
        (("a",), {"padding": True, "pad_to_multiple_of": 0}, "pad_to_multiple_of is an integer from 1"),
        (("bad \ud800 surrogate",), {}, "Unicode"),
        ((TEXTS,), {"return_tensors": "ip"}, "padding=True"),
        ((TEXTS,), {"return_tensors": "np"}, "padding=True"),
        (("a",), {"return_tensors": "numpy"}, "return_tensors"),
    ],
)
def test_wrong_inputs(tokenizer: PreTrainedTokenizer, arguments: Any, options: dict[str, Any], part: str) -> None:
    with pytest.raises(InputError, match=part):
        tokenizer(*arguments, **options)


def test_unsupported_and_unknown_options(tokenizer: PreTrainedTokenizer) -> None:
    for tensors in ("pt", "tf", "jax", "mlx"):
        with pytest.raises(UnsupportedError, match=tensors):
            tokenizer("a", return_tensors=tensors)
    with pytest.raises(UnsupportedError, match="text_target"):
        tokenizer("a", text_target="b")
    unknown: dict[str, Any] = {"pad_to_max_length": True}
    with pytest.raises(TypeError, match="pad_to_max_length"):
        tokenizer("a", **unknown)
    with pytest.raises(TypeError, match="pad_to_max_length"):
        tokenizer.decode([5], **unknown)


def test_optional_values(tokenizer: PreTrainedTokenizer) -> None:
    names = ("input_ids", "token_type_ids", "attention_mask")
    assert tuple(tokenizer("a")) == names
    assert tuple(tokenizer("a", return_token_type_ids=False, return_attention_mask=False)) == ("input_ids",)
    every = tokenizer("a", return_special_tokens_mask=True, return_offsets_mapping=True, return_length=True)
    assert tuple(every) == (*names, "special_tokens_mask", "offset_mapping", "length")
    assert every["length"] == [3]
    assert "token_type_ids" not in load("distilbert-base")("a")
    assert tokenizer("[MASK]")["input_ids"] == [2, 4, 3]
    assert len(tokenizer("[MASK]", split_special_tokens=True)["input_ids"]) > 3
    assert tokenizer("a", add_special_tokens=False)["input_ids"] == tokenizer("a")["input_ids"][1:-1]


def test_inputs_of_all_forms(tokenizer: PreTrainedTokenizer) -> None:
    pair = tokenizer("a b", "c d")
    assert tokenizer(["a b"], ["c d"])["input_ids"] == [pair["input_ids"]]
    assert tokenizer([("a b", "c d")])["input_ids"] == [pair["input_ids"]]
    assert tokenizer(("a b", "a b"))["input_ids"] == [tokenizer("a b")["input_ids"]] * 2
    words = tokenizer(["hello", "world"], is_split_into_words=True)
    assert words["input_ids"] == tokenizer("hello world")["input_ids"]
    assert words.word_ids()[1:-1] == [0] * 4 + [1] * 2
    assert tokenizer([["a", "b"]], [["c", "d"]], is_split_into_words=True)["input_ids"] == [pair["input_ids"]]
    assert tokenizer([], is_split_into_words=True)["input_ids"] == [2, 3]


def test_tensors(tokenizer: PreTrainedTokenizer) -> None:
    lists = tokenizer(TEXTS, padding=True, return_offsets_mapping=True)
    tensors = tokenizer(TEXTS, padding=True, return_offsets_mapping=True, return_tensors="ip")
    arrays = tokenizer(TEXTS, padding=True, return_offsets_mapping=True, return_tensors="np")
    for name, value in lists.items():
        assert isinstance(tensors[name], Tensor)
        assert tensors[name].dtype == "int32"
        assert arrays[name].dtype == np.int64
        assert tensors[name].tolist() == arrays[name].tolist() == np.asarray(value).tolist()
    assert tokenizer("a", return_tensors="ip").input_ids.shape == (1, 3)
    converted = tokenizer("a").convert_to_tensors("ip", prepend_batch_axis=True)
    assert converted.input_ids.shape == (1, 3)


def test_warnings_come_once(tokenizer: PreTrainedTokenizer) -> None:
    long = "hello " * 60
    with pytest.warns(UserWarning, match="more than the 64"):
        tokenizer(long)
    unlimited = PreTrainedTokenizer(tokenizer.backend_tokenizer, pad_token="[PAD]")
    with pytest.warns(UserWarning, match="no maximum length"):
        assert len(unlimited(long, truncation=True)["input_ids"]) > 64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer(long)
        unlimited("a", padding="max_length")
        load()(long, verbose=False)
        load()(long, truncation=True)
        load()(long, max_length=100)
    with pytest.warns(UserWarning, match="max_length has no effect"):
        tokenizer(TEXTS, padding=True, max_length=5)


def test_special_tokens(tokenizer: PreTrainedTokenizer) -> None:
    assert (tokenizer.cls_token, tokenizer.cls_token_id) == ("[CLS]", 2)
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == (None, None)
    assert tokenizer.all_special_tokens == ["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"]
    assert tokenizer.all_special_ids == [1, 3, 0, 2, 4]
    assert [tokenizer.num_special_tokens_to_add(), tokenizer.num_special_tokens_to_add(pair=True)] == [2, 3]
    assert (tokenizer.max_len_single_sentence, tokenizer.max_len_sentences_pair) == (62, 61)
    tokenizer.pad_token = tokenizer.mask_token
    assert tokenizer(TEXTS, padding=True)["input_ids"][0][-1] == tokenizer.mask_token_id
    tokenizer.pad_token_id = 1
    assert tokenizer.pad_token == "[UNK]"
    tokenizer.pad_token = None
    with pytest.raises(InputError, match="no padding token"):
        tokenizer(TEXTS, padding=True)
    with pytest.raises(AttributeError, match="image_token"):
        _ = tokenizer.image_token


def test_adding_tokens(tokenizer: PreTrainedTokenizer) -> None:
    size = len(tokenizer)
    assert tokenizer.add_tokens(["qwertz", AddedToken("uiop")]) == 2
    assert tokenizer.add_tokens("qwertz") == 0
    assert (len(tokenizer), tokenizer.vocab_size) == (size + 2, size)
    assert tokenizer.tokenize("a qwertz") == ["a", "qwertz"]
    assert tokenizer.add_special_tokens({"bos_token": "<start>", "additional_special_tokens": ["<x>"]}) == 2
    assert tokenizer.bos_token_id == size + 2
    assert (tokenizer.extra_special_tokens, tokenizer.extra_special_tokens_ids) == (["<x>"], [size + 3])
    assert tokenizer.additional_special_tokens == ["<x>"]
    assert tokenizer.decode(tokenizer.encode("<start> a <x>"), skip_special_tokens=True) == "a"
    tokenizer.add_special_tokens({"extra_special_tokens": ["<y>"]}, replace_extra_special_tokens=False)
    assert tokenizer.extra_special_tokens == ["<x>", "<y>"]
    assert tokenizer.get_added_vocab()["<y>"] == tokenizer.get_vocab()["<y>"] == tokenizer.vocab["<y>"]
    with pytest.raises(InputError, match="start_token"):
        tokenizer.add_special_tokens({"start_token": "<s>"})


def test_a_tokenizer_of_ones_own(tokenizer: PreTrainedTokenizer) -> None:
    own = PreTrainedTokenizer(
        Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()), pad_token="[PAD]", image_token="<image>"
    )
    assert own.image_token == "<image>"
    assert own.image_token_id == len(own) - 1
    assert own("a <image>")["input_ids"][-2] == own.image_token_id
    with pytest.raises(InputError, match="max_size"):
        PreTrainedTokenizer(tokenizer.backend_tokenizer, max_size=3)
    with pytest.raises(InputError, match="padding_side"):
        PreTrainedTokenizer(tokenizer.backend_tokenizer, padding_side="up")


def test_ids_and_tokens(tokenizer: PreTrainedTokenizer) -> None:
    tokens = tokenizer.tokenize("hello", add_special_tokens=True)
    ids = tokenizer.encode("hello")
    assert tokens == tokenizer("hello").tokens()
    assert tokenizer.convert_ids_to_tokens(ids) == tokens
    assert tokenizer.convert_ids_to_tokens(Tensor.from_values(ids), skip_special_tokens=True) == tokens[1:-1]
    assert tokenizer.convert_ids_to_tokens(2) == "[CLS]"
    assert tokenizer.convert_tokens_to_ids(tokens) == ids
    assert tokenizer.convert_tokens_to_ids(["[CLS]", "no such token"]) == [2, tokenizer.unk_token_id]
    assert tokenizer.convert_tokens_to_string(tokens[1:-1]) == "hello"


def test_decoding(tokenizer: PreTrainedTokenizer) -> None:
    rows = tokenizer(TEXTS, padding=True)["input_ids"]
    for batch in (rows, Tensor.from_values(rows), np.asarray(rows)):
        assert tokenizer.batch_decode(batch, skip_special_tokens=True) == TEXTS
        assert tokenizer.decode(batch, skip_special_tokens=True) == TEXTS
    assert tokenizer.batch_decode([Tensor.from_values(rows[0])])[0].startswith("[CLS] hello world [SEP]")
    assert tokenizer.decode(Tensor.from_values(rows[1]), skip_special_tokens=True) == TEXTS[1]
    assert tokenizer.decode(2) == "[CLS]"
    assert tokenizer.decode([]) == ""
    assert tokenizer.batch_decode([]) == []
    with pytest.raises(InputError, match="token ids"):
        tokenizer.decode([-100])


def test_what_is_no_id_or_token_is_refused(tokenizer: Any) -> None:
    for ids in ("x", None, [None], ["a"], [1.5], -1, [-1], [10**30], [[1], 2], [1, [2]], {"a": 1}, object()):
        for call in (tokenizer.decode, tokenizer.convert_ids_to_tokens):
            with pytest.raises(InputError, match="token ids"):
                call(ids)
    for sequences in (1, None, "x", [None], [[-1]], object()):
        with pytest.raises(InputError, match="token ids"):
            tokenizer.batch_decode(sequences)
    for tokens in (1, None, [1], [None], [["a"]]):
        with pytest.raises(InputError, match="tokens"):
            tokenizer.convert_tokens_to_ids(tokens)
        with pytest.raises(InputError, match="tokens"):
            tokenizer.convert_tokens_to_string(tokens)
        with pytest.raises(InputError, match="tokens"):
            tokenizer.add_tokens(tokens)
    for special in ([], None, {"pad_token": 3}, {"extra_special_tokens": "abc"}):
        with pytest.raises((InputError, ConfigError)):
            tokenizer.add_special_tokens(special)
    assert tokenizer.batch_decode([2, 3]) == ["[CLS]", "[SEP]"]
    for name in ("skip_special_tokens", "clean_up_tokenization_spaces"):
        with pytest.raises(InputError, match=name):
            tokenizer.decode([2], **{name: "no"})


def test_clean_up_of_spaces() -> None:
    tokenizer = load("albert-base")
    ids = tokenizer.encode("a , b . it 's", add_special_tokens=False)
    plain = tokenizer.decode(ids)
    assert " ," in plain
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=True) == "a, b. it's"
    tokenizer.clean_up_tokenization_spaces = True
    assert tokenizer.decode(ids) == "a, b. it's"
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == plain
    bpe = load("roberta-base", clean_up_tokenization_spaces=True)
    ids = bpe.encode("a , b", add_special_tokens=False)
    with pytest.warns(UserWarning, match="BPE"):
        assert bpe.decode(ids) == "a , b"
    force = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    assert load("roberta-base", clean_up_tokenization_spaces=True, **{force: True}).decode(ids) == "a, b"


@pytest.mark.parametrize("kind", ["lists", "arrays", "rows"])
def test_pad(tokenizer: PreTrainedTokenizer, kind: str) -> None:
    encoded = tokenizer(TEXTS, return_special_tokens_mask=True)
    inputs: Any = {
        "lists": encoded,
        "arrays": {name: [np.asarray(row) for row in rows] for name, rows in encoded.items()},
        "rows": [tokenizer(text, return_special_tokens_mask=True) for text in TEXTS],
    }[kind]
    options: dict[str, Any] = {"padding": "longest", "padding_side": "left", "pad_to_multiple_of": 8}
    expected = tokenizer(TEXTS, return_special_tokens_mask=True, **options)
    found = tokenizer.pad(inputs, **options)
    assert found == expected
    assert tokenizer.pad(inputs, return_tensors="ip").input_ids.shape == (2, max(map(len, encoded["input_ids"])))
    with pytest.raises(InputError, match="no encodings"):
        found.word_ids()


def test_pad_of_one_text_and_of_ids_alone(tokenizer: PreTrainedTokenizer) -> None:
    assert tokenizer.pad({"input_ids": [2, 3]}, padding="max_length", max_length=4) == {
        "input_ids": [2, 3, 0, 0],
        "attention_mask": [1, 1, 0, 0],
    }
    assert tokenizer.pad({"input_ids": [[2], [2, 3]]}, return_attention_mask=False) == {"input_ids": [[2, 0], [2, 3]]}
    assert tokenizer.pad({"input_ids": [[2], [2, 3]]}, padding=False)["input_ids"] == [[2], [2, 3]]
    ids = (1, "x", None, {"a": 1}, [[1], 2], [None], ["a"], [[[1]]])
    for wrong in ({}, [], {"attention_mask": [1]}, [{"input_ids": [1]}, {}], [{"input_ids": [1]}, 3],
                  *({"input_ids": value} for value in ids)):  # fmt: skip
        with pytest.raises(InputError, match="input_ids"):
            tokenizer.pad(wrong)
    with pytest.raises(InputError, match="1 rows"):
        tokenizer.pad({"input_ids": [[2], [3]], "attention_mask": [[1]]})


def test_batch_encoding(tokenizer: PreTrainedTokenizer) -> None:
    batch = tokenizer(["hello world", "a"], ["fox", "b"])
    text, span = "hello world", batch.word_to_tokens(0, 0)
    assert span is not None
    assert (span.start, span.end) == (1, 5)
    assert batch.word_to_chars(0, 1) == (6, 11)
    assert batch.token_to_chars(0, 1) == (0, 2)
    assert batch.token_to_chars(0, 0) is None
    assert batch.token_to_word(0, 5) == 1
    assert batch.char_to_token(0, text.index("w")) == 5
    assert batch.char_to_token(0, 0, sequence_index=1) == batch.sequence_ids(0).index(1)
    assert batch.char_to_token(0, 5) is None
    assert batch.char_to_word(0, 7) == 1
    assert [batch.token_to_sequence(0, i) for i in (0, 1, -2, -1)] == [None, 0, 1, None]
    single = tokenizer("hello world")
    assert single.token_to_chars(1) == (0, 2)
    assert single.word_to_tokens(1) == (5, 7)
    assert batch.n_sequences == 2
    assert single.n_sequences == 1
    assert batch[0].ids == batch.input_ids[0] == batch["input_ids"][0]
    assert batch[:1] == {name: value[:1] for name, value in batch.items()}
    assert isinstance(batch, dict)
    assert dict(**batch) == batch
    assert batch.is_fast
    for method in (batch.word_to_tokens, batch.word_to_chars, batch.char_to_token, batch.char_to_word):
        for index in (-1, 2**40):
            with pytest.raises(InputError, match=f"no index {index}"):
                method(0, index)
    with pytest.raises(InputError, match="no index -99"):
        batch.token_to_chars(0, -99)
    assert not BatchEncoding({"input_ids": [1]}).is_fast
    with pytest.raises(AttributeError, match="pixels"):
        _ = batch.pixels


def test_numpy_is_not_imported() -> None:
    code = (
        "import sys; from inpage import AutoTokenizer; "
        f"t = AutoTokenizer.from_pretrained({str(ENCODERS / 'bert-base')!r}); "
        "t.decode(t(['a', 'b c'], padding=True, return_tensors='ip').input_ids); print('numpy' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
