"""Key-value caches: growth, cutting, reordering, windows, masks, memory."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inpage.errors import DisposedError, InputError, UnsupportedError
from inpage.generation.cache import Cache, DynamicCache, StaticCache, cache_nbytes
from inpage.models.llama import LlamaForCausalLM
from inpage.tensor import Tensor

FOLDER = str(Path(__file__).parent.parent / "golden" / "decoders" / "llama")
Array = npt.NDArray[Any]


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaForCausalLM]:
    with LlamaForCausalLM.from_pretrained(FOLDER) as model:
        yield model


def tokens(batch: int, length: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(4, 400, (batch, length))


def logits(model: Any, ids: Array, cache: Cache | None = None, **inputs: Any) -> Array:
    return np.asarray(model(input_ids=ids, past_key_values=cache, **inputs).logits)


def close(a: Array, b: Array) -> bool:
    return bool(np.abs(a - b).max() < 1e-4)


def test_a_cache_grows_by_doubling_and_gives_everything_back(model: LlamaForCausalLM) -> None:
    ids = tokens(2, 200)
    whole = logits(model, ids)
    before = model.executor.used_bytes
    cache = DynamicCache()
    assert (cache.get_seq_length(), cache.nbytes, cache.batch_size) == (0, 0, 0)
    capacities = set[int]()
    for start in range(0, 200, 20):
        assert close(logits(model, ids[:, start : start + 20], cache), whole[:, start : start + 20])
        assert cache.get_seq_length() == start + 20
        capacity = cache.nbytes // cache_nbytes(model.backbone.cache_shapes, 2, 1)
        assert cache.nbytes == cache_nbytes(model.backbone.cache_shapes, 2, capacity)
        capacities.add(capacity)
    assert capacities == {64, 128, 256}
    cache.dispose()
    model._run.dispose()  # pyright: ignore[reportOptionalMemberAccess, reportFunctionMemberAccess]
    assert model.executor.used_bytes <= before
    with pytest.raises(DisposedError):
        logits(model, ids, cache)


def test_programs_are_kept_while_the_cache_stays(model: LlamaForCausalLM) -> None:
    run: Any = model.jit(model.forward)
    with StaticCache(64) as cache:
        for _ in range(5):
            run(input_ids=Tensor.from_values([[7]]), past_key_values=cache)
        assert len(run._recorded._programs) == 1
        assert cache.get_seq_length() == 5
    run.dispose()


def test_one_program_serves_caches_at_other_addresses(model: LlamaForCausalLM) -> None:
    run: Any = model.jit(model.forward)
    texts = [tokens(1, 6, seed) for seed in range(3)]
    found: list[list[Array]] = [[] for _ in texts]
    caches = [DynamicCache() for _ in texts]
    for i in range(6):
        for text, cache, outputs in zip(texts, caches, found, strict=True):
            token = Tensor.from_values(text[:, i : i + 1].tolist())
            outputs.append(np.asarray(run(input_ids=token, past_key_values=cache).logits))
    assert len(run._recorded._programs) == 1
    assert len({cache.program_blocks for cache in caches}) == 3
    for text, outputs in zip(texts, found, strict=True):
        assert close(np.concatenate(outputs, 1), logits(model, text))
    run.dispose()


def test_prompts_of_similar_length_share_programs(model: LlamaForCausalLM) -> None:
    steps = [model.generate_steps(tokens(1, 16 + n, n).tolist(), max_new_tokens=8) for n in range(3)]
    expected = [model.generate(tokens(1, 16 + n, n).tolist(), max_new_tokens=8).tolist() for n in range(3)]
    programs: Any = model.function("next_token", lambda: None)
    count = len(programs._recorded._programs)
    results: list[Any] = [None] * 3
    while None in results:  # in turns, all on the same programs
        for n, running in enumerate(steps):
            if results[n] is None:
                try:
                    next(running)
                except StopIteration as stop:
                    results[n] = stop.value.tolist()
    assert results == expected
    assert len(programs._recorded._programs) == count


def test_static_caches_are_limited(model: LlamaForCausalLM) -> None:
    ids = tokens(1, 20)
    with StaticCache(16) as cache:
        logits(model, ids[:, :16], cache)
        nbytes = cache.nbytes
        assert nbytes == cache_nbytes(model.backbone.cache_shapes, 1, 16)
        with pytest.raises(InputError, match="17 tokens do not fit"):
            logits(model, ids[:, 16:17], cache)
        assert cache.get_seq_length() == 16
        cache.crop(10)
        assert close(logits(model, ids[:, 10:16], cache), logits(model, ids[:, :16])[:, 10:])
    with pytest.raises(InputError):
        StaticCache(0)
    with pytest.raises(UnsupportedError, match="q5"):
        DynamicCache(kv_cache_dtype="q5")


def test_crop_and_reset(model: LlamaForCausalLM) -> None:
    ids, other = tokens(1, 30), tokens(1, 10, seed=1)
    with DynamicCache() as cache:
        logits(model, ids, cache)
        cache.crop(40)
        assert cache.get_seq_length() == 30
        cache.crop(-10)
        assert cache.get_seq_length() == 20
        mixed = np.concatenate([ids[:, :20], other], 1)
        assert close(logits(model, other, cache), logits(model, mixed)[:, 20:])
        cache.reset()
        assert close(logits(model, other, cache), logits(model, other))


def test_beams(model: LlamaForCausalLM) -> None:
    prompt, steps = tokens(2, 9), tokens(4, 3, seed=1)
    with DynamicCache() as cache:
        logits(model, prompt, cache)
        cache.batch_repeat_interleave(2)
        assert cache.batch_size == 4
        logits(model, steps[:, :1], cache)
        beams = [1, 0, 3, 3]
        cache.reorder_cache(beams)
        found = logits(model, steps[:, 1:], cache)
        past = np.concatenate([prompt.repeat(2, 0), steps[:, :1]], 1)[beams]
        assert close(found, logits(model, np.concatenate([past, steps[:, 1:]], 1))[:, 10:])
        cache.batch_select_indices([2])
        assert cache.batch_size == 1
        with pytest.raises(InputError, match="no sequence 4"):
            cache.batch_select_indices([4])
        with pytest.raises(InputError, match="1 indices"):
            cache.reorder_cache([0, 0])


def test_left_padding(model: LlamaForCausalLM) -> None:
    """A padded row goes on as it does alone, through growth, reordering and cutting."""
    ids, mask = tokens(2, 90), np.ones((2, 90), np.int64)
    mask[1, :5] = 0
    places = np.maximum(mask.cumsum(1) - 1, 0)
    alone = logits(model, ids[1:, 5:])
    with DynamicCache() as cache:
        logits(model, ids[:, :50], cache, attention_mask=mask[:, :50], position_ids=places[:, :50])
        cache.reorder_cache([1, 0])
        cache.reorder_cache([1, 0])
        cache.crop(40)
        found = logits(model, ids[:, 40:], cache, position_ids=places[:, 40:])
        assert close(found[1], alone[0, 35:])
        assert close(found[0], logits(model, ids[:1])[0, 40:])
        with cache.copy() as other:
            assert other.get_seq_length() == 90
            step = {"position_ids": places[:, -1:] + 1}
            assert close(logits(model, ids[:, :1], other, **step), logits(model, ids[:, :1], cache, **step))


@pytest.mark.parametrize("copied", [Cache.copy, copy.copy, copy.deepcopy])
def test_a_copy_has_its_own_memory(model: LlamaForCausalLM, copied: Callable[[Cache], Cache]) -> None:
    ids = tokens(1, 12)
    with DynamicCache() as cache:
        logits(model, ids[:, :8], cache)
        with copied(cache) as other:
            assert close(logits(model, ids[:, 8:], other), logits(model, ids)[:, 8:])
        assert close(logits(model, ids[:, 8:], cache), logits(model, ids)[:, 8:])


def test_a_mask_may_change_for_tokens_in_the_cache(model: LlamaForCausalLM) -> None:
    ids, mask = tokens(1, 20), np.ones((1, 20), np.int64)
    mask[0, 3:6] = 0
    with DynamicCache() as cache:
        logits(model, ids[:, :10], cache)
        found = logits(model, ids[:, 10:11], cache, attention_mask=mask[:, :11])
        cache.crop(10)
        seen = logits(model, ids[:, 10:11], cache, attention_mask=[[1] * 11])
    assert close(seen, logits(model, ids[:, :11])[:, 10:])
    assert not close(seen, found)


def test_wrong_use(model: LlamaForCausalLM) -> None:
    with DynamicCache() as cache:
        logits(model, tokens(2, 4), cache)
        with pytest.raises(InputError, match="holds 2 sequences, the inputs 1"):
            logits(model, tokens(1, 4), cache)
        with pytest.raises(InputError, match=r"shape \[2, 8\]"):
            logits(model, tokens(2, 4), cache, attention_mask=[[1] * 4] * 2)
        with pytest.raises(InputError, match="use_cache=False"):
            model(input_ids=[[1]], past_key_values=cache, use_cache=False)
        assert cache.get_seq_length() == 4
        with LlamaForCausalLM.from_pretrained(FOLDER, device="reference") as other, pytest.raises(InputError):
            logits(other, tokens(2, 4), cache)
    with pytest.raises(InputError, match="labels"):
        model(input_ids=[[1, 2]], labels=[[1, 2]], logits_to_keep=1)
    with pytest.raises(InputError, match="at least 0"):
        model(input_ids=[[1, 2]], logits_to_keep=-1)
    with pytest.raises(InputError, match="logits_to_keep"):
        model(input_ids=[[1, 2]], logits_to_keep=[0])
    with pytest.raises(InputError, match="must be a cache"):
        model(input_ids=[[1, 2]], past_key_values=())  # pyright: ignore[reportArgumentType]


def test_a_failed_run_leaves_the_cache_as_it_was(model: LlamaForCausalLM) -> None:
    ids, mask = tokens(1, 12), np.ones((1, 12), np.int64)
    mask[0, 0] = 0
    with DynamicCache() as cache:
        logits(model, ids[:, :8], cache, attention_mask=mask[:, :8])
        bad = np.array([[5, 100_000]])
        with pytest.raises(Exception, match="embedding"):
            logits(model, bad, cache, attention_mask=[[0] * 10])
        assert cache.get_seq_length() == 8
        found = logits(model, ids[:, 8:], cache)
    assert close(found, logits(model, ids, attention_mask=mask)[:, 8:])


def test_use_cache_gives_a_cache(model: LlamaForCausalLM) -> None:
    outputs = model(input_ids=[[5, 6]], use_cache=True)
    assert outputs.past_key_values.get_seq_length() == 2
    assert "past_key_values" not in model(input_ids=[[5, 6]])
    outputs.past_key_values.dispose()


def test_attention_maps_over_a_cache(model: LlamaForCausalLM) -> None:
    ids, mask = tokens(2, 12), np.ones((2, 12), np.int64)
    mask[1, :3] = 0
    whole = model(input_ids=ids, attention_mask=mask, output_attentions=True)
    with DynamicCache() as cache:
        logits(model, ids[:, :8], cache, attention_mask=mask[:, :8])
        for start in (8, 10):
            part = model(input_ids=ids[:, start : start + 2], past_key_values=cache, output_attentions=True)
            for found, expected in zip(part.attentions, whole.attentions, strict=True):
                assert close(np.asarray(found), np.asarray(expected)[:, :, start : start + 2, : start + 2])
