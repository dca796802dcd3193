"""What the golden data does not show of decoders: families without golden data, styles of configuration, windows."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inpage import AutoModelForCausalLM, AutoModelForSequenceClassification, ops
from inpage.errors import ConfigError, InputError, UnsupportedError
from inpage.generation.cache import DynamicCache, StaticCache
from inpage.models.attention import ATTENTION_FUNCTIONS
from tests.checkpoints import encode
from tests.golden.data import Golden, assert_equal, model_class

GOLDEN = Path(__file__).parent.parent / "golden" / "decoders"
Array = npt.NDArray[Any]
WIDTH, HEADS, KV_HEADS, INNER, WORDS = 24, 4, 2, 40, 60


def changed(name: str, folder: Path, **values: Any) -> Path:
    """A golden checkpoint with other keys in its configuration; those that are None go."""
    shutil.copy(GOLDEN / name / "model.safetensors", folder)
    config = json.loads((GOLDEN / name / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llama", {"rope_type": "default", "rope_theta": 10000.0}),
        ("llama-rope-yarn", {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1,
                             "original_max_position_embeddings": 32}),
        ("gemma3", {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}),
        ("gpt-neox", {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}),
        ("phi", {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    ],
)  # fmt: skip
def test_rope_parameters_of_transformers_5(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    golden = Golden(GOLDEN / name)
    old = (
        "rope_theta",
        "rope_scaling",
        "rope_local_base_freq",
        "partial_rotary_factor",
        "rotary_pct",
        "rotary_emb_base",
    )
    folder = changed(name, tmp_path, **dict.fromkeys(old), rope_parameters=settings)
    with AutoModelForCausalLM.from_pretrained(str(folder)) as model:
        assert_equal(model(**golden.inputs("single"), **golden.cases["single"]["call"]), golden.outputs("single"))


@pytest.mark.parametrize(
    ("scaling", "error", "message"),
    [
        ({"rope_type": "spiral"}, UnsupportedError, "spiral"),
        ({"rope_type": "linear"}, ConfigError, "factor"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, ConfigError, "4 factors, found 1"),
    ],
)
def test_wrong_rope_settings(scaling: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    folder = changed("llama", tmp_path, rope_scaling=scaling)
    with pytest.raises(error, match=message):
        AutoModelForCausalLM.from_pretrained(str(folder))(input_ids=[[1]])


@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_learned_positions_end(name: str) -> None:
    with AutoModelForCausalLM.from_pretrained(str(GOLDEN / name)) as model, DynamicCache() as cache:
        model(input_ids=[[5] * 128], past_key_values=cache)
        with pytest.raises(InputError, match="beyond the"):
            model(input_ids=[[5]], past_key_values=cache)
        assert cache.get_seq_length() == 128


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_windows_keep_memory_bounded(name: str) -> None:
    """Long past the window, with steps and chunks of several sizes, logits are those of the whole text."""
    ids = np.random.default_rng(0).integers(4, 400, (2, 300))
    mask = np.ones_like(ids)
    mask[1, :20] = 0
    with AutoModelForCausalLM.from_pretrained(str(GOLDEN / name)) as model:
        whole = np.asarray(model(input_ids=ids, attention_mask=mask).logits)
        for cache in (DynamicCache(), StaticCache(300)):
            sizes, start = list[int](), 0
            for length in (30, 1, 1, 60, 100, 1, 1, 1, 50, 55):
                stop = start + length
                part = model(input_ids=ids[:, start:stop], attention_mask=mask[:, :stop], past_key_values=cache)
                assert np.abs(np.asarray(part.logits)[0] - whole[0, start:stop]).max() < 1e-4
                seen = max(0, 20 - start)  # padding sees nothing, or itself alone
                assert np.abs(np.asarray(part.logits)[1, seen:] - whole[1, start:stop][seen:]).max() < 1e-4
                start = stop
                sizes.append(cache._groups[0].capacity)
            assert stop == 300
            assert max(sizes) <= 7 + 100
            with pytest.raises(InputError, match="window of 8"):
                cache.crop(10)
            cache.dispose()


def test_a_batch_needs_padding_to_find_the_last_token() -> None:
    folder = str(GOLDEN / "qwen2-seqcls")
    with AutoModelForSequenceClassification.from_pretrained(folder, pad_token_id=None) as model:
        assert model(input_ids=[[5, 6]]).logits.shape == (1, 3)
        with pytest.raises(InputError, match="pad_token_id"):
            model(input_ids=[[5, 6], [7, 8]])


def test_every_causal_class_is_found_by_name() -> None:
    for name in AutoModelForCausalLM.class_names.values():
        assert model_class(name).__name__ == name


# OLMo 2 and StableLM in NumPy, one sequence at a time


def weights(config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {name: rng.normal(size=shape).astype(np.float32) * 0.3 + ("norm" in name) for name, shape in shapes.items()}


def layer_shapes(prefix: str) -> dict[str, tuple[int, ...]]:
    kv = WIDTH // HEADS * KV_HEADS
    attention = {"q": (WIDTH, WIDTH), "k": (kv, WIDTH), "v": (kv, WIDTH), "o": (WIDTH, WIDTH)}
    mlp = {"gate": (INNER, WIDTH), "up": (INNER, WIDTH), "down": (WIDTH, INNER)}
    return {f"{prefix}.self_attn.{name}_proj.weight": shape for name, shape in attention.items()} | {
        f"{prefix}.mlp.{name}_proj.weight": shape for name, shape in mlp.items()
    }


def attended(q: Array, k: Array, v: Array, rotated: int) -> Array:
    length, dim = len(q), WIDTH // HEADS
    angles = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, rotated, 2) / rotated)

    def turned(x: Array) -> Array:
        x = x.reshape(length, -1, dim).copy()
        a, b = x[..., : rotated // 2].copy(), x[..., rotated // 2 : rotated].copy()
        c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
        x[..., : rotated // 2], x[..., rotated // 2 : rotated] = a * c - b * s, b * c + a * s
        return x

    q, k, v = turned(q), turned(k).repeat(HEADS // KV_HEADS, 1), v.reshape(length, -1, dim).repeat(HEADS // KV_HEADS, 1)
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(dim) + np.triu(np.full((length, length), -np.inf), 1)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(length, -1)


def rms(x: Array, w: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w


def norm(x: Array, w: Array, b: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b


def fed(x: Array, w: dict[str, Array], p: str) -> Array:
    gate = x @ w[f"{p}.mlp.gate_proj.weight"].T
    return (gate / (1 + np.exp(-gate)) * (x @ w[f"{p}.mlp.up_proj.weight"].T)) @ w[f"{p}.mlp.down_proj.weight"].T


def olmo2(w: dict[str, Array], ids: Array) -> Array:
    x = w["model.embed_tokens.weight"][ids].astype(np.float64)
    for p in ("model.layers.0", "model.layers.1"):
        q, k, v = (x @ w[f"{p}.self_attn.{n}_proj.weight"].T for n in "qkv")
        q, k = rms(q, w[f"{p}.self_attn.q_norm.weight"]), rms(k, w[f"{p}.self_attn.k_norm.weight"])
        context = attended(q, k, v, WIDTH // HEADS) @ w[f"{p}.self_attn.o_proj.weight"].T
        x = x + rms(context, w[f"{p}.post_attention_layernorm.weight"])
        x = x + rms(fed(x, w, p), w[f"{p}.post_feedforward_layernorm.weight"])
    return rms(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


def stablelm(w: dict[str, Array], ids: Array, parallel: bool) -> Array:
    x = w["model.embed_tokens.weight"][ids].astype(np.float64)
    for p in ("model.layers.0", "model.layers.1"):
        y = norm(x, w[f"{p}.input_layernorm.weight"], w[f"{p}.input_layernorm.bias"])
        q, k, v = (y @ w[f"{p}.self_attn.{n}_proj.weight"].T + w[f"{p}.self_attn.{n}_proj.bias"] for n in "qkv")
        context = x + attended(q, k, v, 2) @ w[f"{p}.self_attn.o_proj.weight"].T
        if not parallel:
            y = norm(context, w[f"{p}.post_attention_layernorm.weight"], w[f"{p}.post_attention_layernorm.bias"])
        x = context + fed(y, w, p)
    return norm(x, w["model.norm.weight"], w["model.norm.bias"]) @ w["lm_head.weight"].T


@pytest.mark.parametrize("kind", ["olmo2", "stablelm", "stablelm-parallel"])
def test_families_without_golden_data(kind: str, tmp_path: Path) -> None:
    parallel, kv = "parallel" in kind, WIDTH // HEADS * KV_HEADS
    config = {
        "model_type": kind.removesuffix("-parallel"), "vocab_size": WORDS, "hidden_size": WIDTH,
        "intermediate_size": INNER, "num_hidden_layers": 2, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "use_qkv_bias": True,
        "partial_rotary_factor": 1.0 if kind == "olmo2" else 2 * HEADS / WIDTH, "use_parallel_residual": parallel,
        "pad_token_id": 0,
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (WORDS, WIDTH))
    shapes["model.norm.weight"] = (WIDTH,)
    for p in ("model.layers.0", "model.layers.1"):
        shapes |= layer_shapes(p)
        if kind == "olmo2":
            shapes |= {f"{p}.self_attn.q_norm.weight": (WIDTH,), f"{p}.self_attn.k_norm.weight": (kv,)}
            shapes |= dict.fromkeys(
                (f"{p}.post_attention_layernorm.weight", f"{p}.post_feedforward_layernorm.weight"), (WIDTH,)
            )
            continue
        norms = ["input_layernorm"] + ["post_attention_layernorm"] * (not parallel)
        shapes |= {f"{p}.{n}.{part}": (WIDTH,) for n in norms for part in ("weight", "bias")}
        shapes |= {f"{p}.self_attn.{n}_proj.bias": (WIDTH if n == "q" else kv,) for n in "qkv"}
    if kind != "olmo2":
        shapes["model.norm.bias"] = (WIDTH,)
    values = weights(config, shapes)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(encode(values))
    ids = np.random.default_rng(2).integers(0, WORDS, 13)
    expected = olmo2(values, ids) if kind == "olmo2" else stablelm(values, ids, parallel)
    model, info = AutoModelForCausalLM.from_pretrained(str(tmp_path), output_loading_info=True)
    assert not any(info.values())
    with model, DynamicCache() as cache:
        assert np.abs(np.asarray(model(input_ids=ids[None]).logits)[0] - expected).max() < 1e-4
        parts = [model(input_ids=ids[None, i : i + 1], past_key_values=cache).logits for i in range(13)]
        assert np.abs(np.concatenate([np.asarray(part)[0] for part in parts]) - expected).max() < 1e-4


def test_registered_attention_with_and_without_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def uniform(q: Any, k: Any, v: Any, mask: Any, bias: Any, **keywords: Any) -> Any:
        return ops.attention(q, k, v, mask, bias, **{**keywords, "scale": 0.0}), None

    monkeypatch.setitem(ATTENTION_FUNCTIONS, "uniform", uniform)
    ids = [[15, 9, 13, 17, 12, 8]]
    with AutoModelForCausalLM.from_pretrained(str(GOLDEN / "llama")) as model:
        plain = np.asarray(model(ids).logits)
    with AutoModelForCausalLM.from_pretrained(str(GOLDEN / "llama"), attn_implementation="uniform") as model:
        whole = np.asarray(model(ids).logits)
        with DynamicCache() as cache:
            parts = [np.asarray(model(part, past_key_values=cache).logits) for part in ([ids[0][:3]], [ids[0][3:]])]
        with pytest.raises(UnsupportedError, match="no attention maps"):
            model(ids, output_attentions=True)
        expected = ids[0]
        for _ in range(4):
            expected = [*expected, int(np.asarray(model([expected]).logits)[0, -1].argmax())]
        assert model.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None).tolist() == [expected]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=1e-5)
    assert np.abs(plain - whole).max() > 1e-3
