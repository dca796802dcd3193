"""Configurations, the choice of classes, the options of loading, and the life of a model."""

import asyncio
import gc
import json
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inpage import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, ops, pipeline
from inpage.checkpoint import layouts
from inpage.errors import (
    ConfigError,
    CorruptFileError,
    DisposedError,
    FileNotFoundInRepositoryError,
    InputError,
    RemoteCodeError,
    UnsupportedError,
)
from inpage.executors import acquire, release
from inpage.hub import Repository
from inpage.models import auto
from inpage.models.albert import AlbertConfig, AlbertModel
from inpage.models.attention import ATTENTION_FUNCTIONS
from inpage.models.bert import BertConfig, BertForMaskedLM, BertModel
from inpage.models.configuration import PreTrainedConfig
from inpage.models.distilbert import DistilBertConfig
from inpage.models.electra import ElectraConfig, ElectraModel
from inpage.models.gemma2 import Gemma2Config
from inpage.models.modeling import PreTrainedModel
from inpage.models.mpnet import relative_bucket
from inpage.models.outputs import ModelOutput
from inpage.models.roberta import RobertaConfig

ENCODERS = Path(__file__).parent.parent / "golden" / "encoders"
BERT = str(ENCODERS / "bert-base")
GPT2 = str(ENCODERS.parent / "decoders" / "gpt2")
IDS = [[2, 10, 11, 12, 3]]
AUTO_CLASSES = [value for name, value in vars(auto).items() if name.startswith("AutoModel")]


def repository(folder: Path, source: str = "bert-base", **changes: Any) -> str:
    """A copy of a checkpoint with changes to its configuration."""
    config = json.loads((ENCODERS / source / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    shutil.copy(ENCODERS / source / "model.safetensors", folder)
    return str(folder)


# Configurations


def test_defaults_and_values() -> None:
    config = BertConfig(hidden_size=32, num_attention_heads=4, custom="kept")
    assert (config.hidden_size, config.num_hidden_layers, config.layer_norm_eps) == (32, 12, 1e-12)
    assert config.custom == "kept"
    assert config.to_dict()["model_type"] == "bert"
    assert not hasattr(config, "nothing")
    with pytest.raises(AttributeError, match="no key 'nothing'"):
        _ = config.nothing


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_dtype_of_both_styles(key: str) -> None:
    assert BertConfig(**{key: "float16"}).dtype == "float16"


def test_common_names_of_keys() -> None:
    config = DistilBertConfig(dim=64, n_heads=4)
    assert (config.hidden_size, config.num_attention_heads, config.num_hidden_layers) == (64, 4, 6)
    assert DistilBertConfig.from_dict({"n_layers": 2}, hidden_size=48).dim == 48


def test_labels() -> None:
    assert BertConfig().id2label == {0: "LABEL_0", 1: "LABEL_1"}
    config = BertConfig(id2label={"0": "no", "1": "yes", "2": "maybe"})
    assert config.id2label == {0: "no", 1: "yes", 2: "maybe"}
    assert config.label2id == {"no": 0, "yes": 1, "maybe": 2}
    assert config.num_labels == 3
    assert BertConfig(num_labels=4).id2label[3] == "LABEL_3"
    three = {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
    assert BertConfig.from_dict(three, num_labels=3).id2label[0] == "a"
    assert BertConfig.from_dict(three, num_labels=5).label2id["LABEL_4"] == 4
    renamed = BertConfig.from_dict(three, id2label={0: "x", 1: "y"})
    assert (renamed.num_labels, renamed.label2id) == (2, {"x": 0, "y": 1})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": "768"}, "hidden_size"),
        ({"hidden_size": 3.5}, "hidden_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"hidden_act": 3}, "hidden_act"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"hidden_size": 30, "num_attention_heads": 4}, "multiple of the 4"),
        ({"num_attention_heads": 0}, "multiple of the 0"),
        ({"problem_type": "clustering"}, "problem_type"),
        ({"problem_type": "single_label_classification", "num_labels": 1}, "num_labels"),
        ({"id2label": ["a", "b"]}, "id2label"),
        ({"id2label": {"a": 1}}, "id2label"),
        ({"id2label": {"0": "a"}, "num_labels": 2}, "num_labels"),
        ({"num_labels": "2"}, "num_labels"),
        *(({"num_hidden_layers": count}, "num_hidden_layers must be 1 to 10,000") for count in (-1, 0, 10**12)),
        ({"pad_token_id": 0.5}, "pad_token_id"),
        *(
            ({key: value}, key)
            for key in ("head_dim", "num_key_value_heads", "sliding_window")
            for value in ("8", -1, [8])
        ),
        ({"eos_token_id": [1, "2"]}, "eos_token_id"),
        *(({key: None}, key) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "layer_norm_eps")),
    ],
)
def test_wrong_configurations(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BertConfig(**values)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": []},
        {"model_type": 3},
        {"model_type": "new", "architectures": 3},
        {"model_type": "new", "architectures": [3]},
        {"model_type": "new", "auto_map": 3},
        {"id2label": 3},
        {"quantization_config": 3},
        {"id2label": "ab"},
        {"num_hidden_layers": None},
    ],
)
def test_wrong_configuration_files(changes: dict[str, Any], tmp_path: Path) -> None:
    name = repository(tmp_path, **changes)
    shutil.copy(ENCODERS / "bert-base" / "tokenizer.json", tmp_path)
    for load in (AutoModel.from_pretrained, AutoConfig.from_pretrained):
        with pytest.raises(ConfigError, match=list(changes)[-1]):
            load(name)
    with pytest.raises(ConfigError, match=list(changes)[-1]):
        pipeline(None, name)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": "linear"},
        {"rope_scaling": {"rope_type": "linear", "factor": 0}},
        {"rope_scaling": {"rope_type": ["linear"]}},
        {"layer_types": {}},
    ],
    ids=str,
)
def test_configurations_of_which_no_model_can_be_built(changes: dict[str, Any], tmp_path: Path) -> None:
    decoder = ENCODERS.parent / "decoders" / "llama"
    config = json.loads((decoder / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(decoder / "model.safetensors", tmp_path)
    with pytest.raises(ConfigError, match=r"config.json of .* is no LlamaForCausalLM's"):
        AutoModelForCausalLM.from_pretrained(str(tmp_path))


def test_frequencies_need_a_positive_base(tmp_path: Path) -> None:
    config = json.loads((ENCODERS.parent / "decoders" / "phi3" / "config.json").read_text()) | {"rope_theta": -1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="rope_theta must be"):
        AutoModelForCausalLM.from_pretrained(str(tmp_path))


@pytest.mark.parametrize("changes", [{"head_dim": 10**12}, {"hidden_size": 10**12, "head_dim": None}], ids=str)
def test_sizes_beyond_any_model(changes: dict[str, Any], tmp_path: Path) -> None:
    config = json.loads((ENCODERS.parent / "decoders" / "llama" / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="65,536 features"):
        AutoModelForCausalLM.from_pretrained(str(tmp_path))


@pytest.mark.parametrize("text", [{"model_type": []}, {"model_type": "x", "architectures": 3}, {"auto_map": 3}])
def test_wrong_configurations_of_a_part(text: dict[str, Any], tmp_path: Path) -> None:
    name = repository(tmp_path, model_type="new", architectures=[], text_config=text)
    with pytest.raises(ConfigError, match=f"text_config.{list(text)[-1]} must be"):
        AutoModelForCausalLM.from_pretrained(name)


def test_roberta_needs_a_padding_token() -> None:
    with pytest.raises(ConfigError, match="pad_token_id"):
        RobertaConfig(pad_token_id=None)


def test_keys_that_decoders_may_leave_empty() -> None:
    assert Gemma2Config(attn_logit_softcapping=None, sliding_window=None).attn_logit_softcapping is None
    with pytest.raises(ConfigError, match="n_layers"):
        DistilBertConfig(num_hidden_layers=None)


def test_defaults_are_those_of_transformers() -> None:
    """Key by key, for the keys that decide the shape of a model (transformers 5.24.0)."""
    expected = {
        "albert": (30000, 4096, 12, 64, 16384, 512, "gelu_new", 1e-12),
        "bert": (30522, 768, 12, 12, 3072, 512, "gelu", 1e-12),
        "electra": (30522, 256, 12, 4, 1024, 512, "gelu", 1e-12),
        "mpnet": (30527, 768, 12, 12, 3072, 512, "gelu", 1e-12),
        "roberta": (50265, 768, 12, 12, 3072, 512, "gelu", 1e-12),
    }
    keys = (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
        "max_position_embeddings", "hidden_act", "layer_norm_eps",
    )  # fmt: skip
    for model_type, values in expected.items():
        config = auto._member(model_type, auto.CONFIGS)()
        assert tuple(getattr(config, key) for key in keys) == values


# Choice of classes


@pytest.mark.parametrize("auto_class", AUTO_CLASSES, ids=lambda c: c.__name__)
def test_tables_name_classes_that_exist(auto_class: Any) -> None:
    for model_type in auto_class.class_names:
        chosen = auto_class.class_for({"model_type": model_type}, "r")
        assert issubclass(chosen, PreTrainedModel)
        assert chosen.config_class.model_type == model_type
        assert chosen.__module__ == f"inpage.models.{model_type}"


def test_modules_are_imported_when_needed() -> None:
    code = "import sys, inpage.models.auto; print([m for m in sys.modules if m.startswith('inpage.models.')])"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "inpage.models.auto" in names
    assert "bert" not in names
    assert "numpy" not in names


def test_auto_config(tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(BERT, hidden_act="relu")
    assert isinstance(config, BertConfig)
    assert config.hidden_act == "relu"
    assert config.name_or_path == BERT
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="not a JSON object"):
        AutoConfig.from_pretrained(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CorruptFileError):
        AutoConfig.from_pretrained(str(tmp_path))
    with pytest.raises(FileNotFoundInRepositoryError):
        AutoConfig.from_pretrained(str(ENCODERS))


def test_architectures_stand_in_for_an_unknown_type(tmp_path: Path) -> None:
    with AutoModel.from_pretrained(repository(tmp_path, model_type="my-bert"), device="reference") as model:
        assert type(model) is BertModel
        assert isinstance(model.config, BertConfig)
    with AutoModel.from_pretrained(repository(tmp_path, model_type=...), device="reference") as model:
        assert type(model) is BertModel


def test_unknown_architecture(tmp_path: Path) -> None:
    name = repository(tmp_path, model_type="perceptron", architectures=["PerceptronModel"])
    with pytest.raises(UnsupportedError, match="'perceptron'") as caught:
        AutoModel.from_pretrained(name)
    for model_type in auto.CONFIGS:
        assert model_type in caught.value.hint


def test_head_that_a_type_lacks() -> None:
    with pytest.raises(UnsupportedError, match="AutoModelForPreTraining has no class for 'bert'") as caught:
        auto.AutoModelForPreTraining.from_pretrained(BERT)
    assert "electra" in caught.value.hint


def test_remote_code_is_refused(tmp_path: Path) -> None:
    own = repository(tmp_path, model_type="own", auto_map={"AutoModel": "modeling.Own"}, architectures=["BertModel"])
    for load in (AutoModel.from_pretrained, AutoConfig.from_pretrained):
        with pytest.raises(RemoteCodeError, match="AutoModel") as caught:
            load(own)
        assert caught.value.code == "remote_code"
        with pytest.raises(RemoteCodeError):
            load(BERT, trust_remote_code=True)


def test_built_in_code_takes_the_place_of_remote_code(tmp_path: Path) -> None:
    name = repository(tmp_path, auto_map={"AutoModel": "modeling.BertModel"})
    AutoModel.from_pretrained(name, device="reference").dispose()


def test_class_of_another_type() -> None:
    with pytest.raises(UnsupportedError, match=r"holds a 'roberta' model; BertModel loads 'bert'"):
        BertModel.from_pretrained(str(ENCODERS / "roberta-base"))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"is_decoder": True}, "is_decoder"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
    ],
)
def test_configurations_that_are_not_implemented(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    with pytest.raises(UnsupportedError, match=key):
        AutoModel.from_pretrained(repository(tmp_path, **change))


def test_unknown_activation(tmp_path: Path) -> None:
    with (
        AutoModel.from_pretrained(repository(tmp_path, hidden_act="mish"), device="reference") as model,
        pytest.raises(UnsupportedError, match="'mish'"),
    ):
        model(IDS)


# Options of loading


def test_overrides_change_the_result(tmp_path: Path) -> None:
    with AutoModel.from_pretrained(BERT, device="reference") as model:
        plain = np.asarray(model(IDS)[0])
    with AutoModel.from_pretrained(BERT, device="reference", hidden_act="gelu_pytorch_tanh") as model:
        approximate = np.asarray(model(IDS)[0])
    with AutoModel.from_pretrained(BERT, device="reference", hidden_act="relu") as model:
        other = np.asarray(model(IDS)[0])
    assert 0 < np.abs(plain - approximate).max() < 1e-2
    assert np.abs(plain - other).max() > 1e-2


def test_given_configuration() -> None:
    config = AutoConfig.from_pretrained(BERT, output_hidden_states=True)
    with AutoModel.from_pretrained(BERT, config=config, device="reference") as model:
        assert model.config.to_dict() == config.to_dict() | {"name_or_path": BERT}
        assert len(model(IDS).hidden_states) == 3
        assert "hidden_states" not in model(IDS, output_hidden_states=False)
        assert config.attn_implementation == "sdpa"
    with AutoModel.from_pretrained(BERT, config=config, device="reference", attn_implementation="eager") as model:
        assert config.attn_implementation == "sdpa"
        assert model.config.attn_implementation == "eager"
    with pytest.raises(InputError, match="config="):
        AutoModel.from_pretrained(BERT, config=config, hidden_act="relu")


def test_configured_outputs() -> None:
    with AutoModel.from_pretrained(BERT, device="reference", return_dict=False, output_attentions=True) as model:
        outputs = model(IDS)
        assert isinstance(outputs, tuple)
        assert len(outputs) == 3
        assert isinstance(model(IDS, return_dict=True), ModelOutput)


@pytest.mark.parametrize("name", ["output_hidden_states", "output_attentions", "return_dict"])
def test_flags_are_true_or_false(name: str) -> None:
    with (
        AutoModel.from_pretrained(BERT, device="reference") as model,
        pytest.raises(InputError, match=f"{name} must be True or False"),
    ):
        model(IDS, **{name: "x"})


def test_unknown_options() -> None:
    with pytest.raises(ConfigError, match="'quantisation'"):
        AutoModel.from_pretrained(BERT, quantisation="int3")
    for fixed in ("torch_dtype", "model_type"):
        with pytest.raises(ConfigError, match=fixed):
            AutoModel.from_pretrained(BERT, **{fixed: "float16"})
    with pytest.raises(UnsupportedError, match="'int3'"):
        AutoModel.from_pretrained(BERT, dtype="int3")
    with pytest.raises(UnsupportedError, match="'abacus'"):
        AutoModel.from_pretrained(BERT, device="abacus")
    with pytest.raises(UnsupportedError, match=r"'flash'.*sdpa, eager"):
        AutoModel.from_pretrained(BERT, attn_implementation="flash")


@pytest.mark.parametrize("auto_class", [AutoConfig, AutoModel, AutoTokenizer])
def test_places_and_options_of_another_form(auto_class: Any) -> None:
    for name in (None, 3, b"x", [BERT], object()):
        with pytest.raises(InputError, match="A repository is named"):
            auto_class.from_pretrained(name)
    wrong = {"revision": 3, "subfolder": 3, "token": 3, "local_files_only": "no", "progress_callback": "print"}
    for option, value in wrong.items():
        with pytest.raises(InputError, match=option):
            auto_class.from_pretrained(BERT, **{option: value})


def test_a_path_and_options_left_open() -> None:
    options: dict[str, Any] = {"revision": None, "subfolder": None, "token": None}
    AutoModel.from_pretrained(Path(BERT), device="reference", **options).dispose()
    assert AutoTokenizer.from_pretrained(Path(BERT), **options).cls_token == "[CLS]"
    with pipeline("feature-extraction", Path(BERT), tokenizer=Path(BERT), device="reference", **options) as extract:
        assert extract("a", pooling="mean").shape == (1, 32)


@pytest.mark.parametrize(
    ("dtype", "head", "attention"),
    [
        ("q4", "q8g", "q4"),
        ({"lm_head*": "fp32", "*": "q4"}, "panels", "q4"),
        ({"*wte*": "fp32", "*": "q4"}, "panels", "q4"),
        ({"lm_head": "q8", "transformer.h.0": "fp16"}, "q8", "f16"),
        ({"transformer": "q8"}, "q8", "q8"),
    ],
    ids=str,
)
def test_dtypes_by_names_of_modules_and_of_tied_weights(
    monkeypatch: pytest.MonkeyPatch, dtype: Any, head: str, attention: str
) -> None:
    monkeypatch.setattr(layouts, "SMALLEST_TABLE", 1)
    with AutoModelForCausalLM.from_pretrained(GPT2, dtype=dtype, device="reference") as model:
        found = {name: parameter.layout for name, parameter in model.named_parameters()}
    assert found["lm_head.weight"] == found["transformer.wte.weight"] == head
    assert found["transformer.h.0.attn.c_attn.weight"] == attention


def test_dtypes_that_fit_nothing() -> None:
    for dtype in ({"head": "q8"}, {"*": "q4", "lm_head": "q8"}):
        with pytest.raises(UnsupportedError, match="head'"):
            AutoModelForCausalLM.from_pretrained(GPT2, dtype=dtype, device="reference")


def test_options_of_loading_that_are_no_names() -> None:
    for option in ("device", "attn_implementation"):
        with pytest.raises(UnsupportedError, match=option.partition("_")[0]):
            AutoModel.from_pretrained(BERT, **{option: [option]})
    with pytest.raises(UnsupportedError, match="dtype"):
        AutoModel.from_pretrained(BERT, dtype=["fp32"])
    with pytest.raises(InputError, match="dtype"):
        AutoModel.from_pretrained(BERT, dtype={3: "fp32"})
    for config in (3, {}):
        with pytest.raises(InputError, match="config="):
            AutoModel.from_pretrained(BERT, config=config)
    with pytest.raises(UnsupportedError, match="task"):
        pipeline(["fill-mask"], BERT)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="model_kwargs"):
        pipeline("feature-extraction", BERT, model_kwargs=3)  # pyright: ignore[reportArgumentType]


def test_given_repository() -> None:
    repository = Repository(BERT)
    AutoModel.from_pretrained(repository, device="reference").dispose()
    with pytest.raises(InputError, match="together with a Repository"):
        AutoModel.from_pretrained(repository, revision="v2")


def test_registered_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def uniform(q: Any, k: Any, v: Any, mask: Any, bias: Any, *, heads: int) -> Any:
        calls.append(heads)
        return ops.attention(q, k, v, mask, bias, heads=heads, scale=0.0), None

    monkeypatch.setitem(ATTENTION_FUNCTIONS, "uniform", uniform)
    with AutoModel.from_pretrained(BERT, device="reference") as model:
        plain = np.asarray(model(IDS)[0])
    with AutoModel.from_pretrained(BERT, device="reference", attn_implementation="uniform") as model:
        other = np.asarray(model(IDS)[0])
        assert calls == [4, 4]
        with pytest.raises(UnsupportedError, match="no attention maps"):
            model(IDS, output_attentions=True)
    assert np.abs(plain - other).max() > 1e-3


def test_awaiting_what_was_loaded() -> None:
    async def load() -> None:
        config = await AutoConfig.from_pretrained(BERT)
        assert isinstance(config, BertConfig)
        model = await AutoModel.from_pretrained(BERT, device="reference")
        model.dispose()
        model, info = await AutoModel.from_pretrained(BERT, device="reference", output_loading_info=True)
        assert info["missing_keys"] == []
        model.dispose()

    asyncio.run(load())


def test_progress_counts_configuration_and_weights() -> None:
    events: list[dict[str, Any]] = []
    AutoModel.from_pretrained(BERT, device="reference", progress_callback=events.append).dispose()
    totals = {event["total"] for event in events if event["status"] == "progress_total"}
    sizes = [(Path(BERT) / name).stat().st_size for name in ("config.json", "model.safetensors")]
    assert totals == {sum(sizes)}
    assert {event["file"] for event in events if event["status"] == "done"} == {"config.json", "model.safetensors"}


# Architectures beyond the golden data


@pytest.mark.parametrize(
    ("class_name", "missing", "unexpected"),
    [
        ("AlbertForQuestionAnswering", ["qa_outputs"], ["pooler"]),
        ("DistilBertForTokenClassification", ["classifier"], []),
        ("ElectraForTokenClassification", ["classifier"], []),
        ("MPNetForSequenceClassification", ["classifier.dense", "classifier.out_proj"], ["pooler.dense"]),
        ("RobertaForQuestionAnswering", ["qa_outputs"], ["pooler.dense"]),
    ],
)
def test_heads_on_a_base_model(class_name: str, missing: list[str], unexpected: list[str]) -> None:
    """The parameters that a head adds, and those of the base model that it does not use, as in transformers."""
    model_type, head = next((t, a) for a in AUTO_CLASSES for t, n in a.class_names.items() if n == class_name)
    with pytest.warns(UserWarning):
        model, info = head.from_pretrained(str(ENCODERS / f"{model_type}-base"), output_loading_info=True)
    assert info["missing_keys"] == [f"{name}.{part}" for name in missing for part in ("bias", "weight")]
    assert info["unexpected_keys"] == [f"{name}.{part}" for name in unexpected for part in ("bias", "weight")]
    with model:
        assert all(np.isfinite(np.asarray(value)).all() for value in model(IDS).values())


def test_groups_of_shared_layers() -> None:
    config = AlbertConfig(
        hidden_size=32, num_attention_heads=4, num_hidden_layers=7, num_hidden_groups=3, inner_group_num=2
    )
    model = AlbertModel(config)
    order = [layer for i in range(7) for layer in model.encoder.albert_layer_groups[int(i / (7 / 3))].albert_layers]
    assert list(model.layers()) == order
    assert len({id(layer) for layer in order}) == 6


@pytest.mark.parametrize(("width", "projected"), [(16, True), (32, False)])
def test_embeddings_as_wide_as_the_layers_need_no_projection(width: int, projected: bool) -> None:
    config = ElectraConfig(embedding_size=width, hidden_size=32, num_attention_heads=4, num_hidden_layers=1)
    names = [name for name, _ in ElectraModel(config).named_parameters()]
    assert ("embeddings_project.weight" in names) == projected


# Life of a model


def test_sizes() -> None:
    with BertForMaskedLM.from_pretrained(str(ENCODERS / "bert-mlm")) as model:
        assert model.device == "wasm"
        assert model.num_parameters() == sum(parameter.size for parameter in model.parameters())
        padded = 4 * (424 * 32 + 420 + 64 * 32 + 2 * 32 + 2 * 32)  # 420 rows of the tied table, in panels of 8
        layers = 4 * (4 * 33 * 32 + 64 * 33 + 32 * 65 + 4 * 32)
        assert model.get_memory_footprint() == padded + 2 * layers + 4 * (33 * 32 + 2 * 32)
        assert isinstance(model.base_model, BertModel)
        assert model.base_model.base_model is model.base_model


def test_disposed_model() -> None:
    model = AutoModel.from_pretrained(BERT, device="reference")
    run = model.jit(lambda **inputs: model.forward(**inputs).pooler_output)
    inputs = model.prepare_inputs({"input_ids": IDS})
    assert run(**inputs).shape == (1, 32)
    model.dispose()
    model.dispose()
    for use in (lambda: model(IDS), lambda: run(**inputs), lambda: model.device, lambda: model.jit(model.forward)):
        with pytest.raises(DisposedError, match="BertModel was disposed of"):
            use()
    with pytest.raises(DisposedError):
        _ = model.parameters()[0].data


def test_skeleton_has_no_weights() -> None:
    model = BertModel(BertConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1))
    with pytest.raises(DisposedError, match="has no weights"):
        model(IDS)


@pytest.mark.parametrize("device", ["reference", "wasm"])
def test_models_share_an_executor(device: str) -> None:
    keeper = acquire(device)
    try:
        used = keeper.used_bytes
        first = AutoModel.from_pretrained(BERT, device=device)
        with AutoModel.from_pretrained(str(ENCODERS / "roberta-base"), device=device) as second:
            assert first.executor is second.executor is keeper
            before = np.asarray(first(IDS)[0])
            second(IDS)
        assert (np.asarray(first(IDS)[0]) == before).all()
        first.dispose()
        assert keeper.used_bytes - used <= keeper._arena[1]  # which stays
    finally:
        release(keeper)


def test_failed_load_releases_the_executor(tmp_path: Path) -> None:
    keeper = acquire("reference")
    try:
        users, used = keeper.users, keeper.used_bytes
        name = repository(tmp_path)
        (tmp_path / "model.safetensors").write_bytes(b"\x05")
        for _ in range(3):
            with pytest.raises(Exception, match="too short"):
                AutoModel.from_pretrained(name, device="reference")
        assert (keeper.users, keeper.used_bytes) == (users, used)
    finally:
        release(keeper)


@pytest.mark.parametrize("device", ["reference", "wasm"])
def test_memory_is_flat_over_loads_and_calls(device: str) -> None:
    keeper = acquire(device)
    try:
        with AutoModel.from_pretrained(BERT, device=device) as model:
            model(IDS)
        used, size = keeper.used_bytes, keeper.size
        gc.collect()
        tracemalloc.start()
        start, _ = tracemalloc.get_traced_memory()
        for _ in range(20):
            with AutoModel.from_pretrained(BERT, device=device) as model:
                for _ in range(5):
                    model(IDS)
        del model
        gc.collect()
        end, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (keeper.used_bytes, keeper.size) == (used, size)
        assert end - start < 100_000
    finally:
        release(keeper)


# Small parts


def test_model_output() -> None:
    output = ModelOutput(loss=None, logits="a", hidden_states=("b", "c"))
    assert list(output) == ["logits", "hidden_states"]
    assert output.logits == output["logits"] == output[0] == "a"
    assert output[:2] == output.to_tuple() == ("a", ("b", "c"))
    with pytest.raises(AttributeError, match="no 'loss'; it has logits, hidden_states"):
        _ = output.loss
    assert ModelOutput(output.items()) == output
    assert ModelOutput(pairs="value").pairs == "value"


def test_relative_buckets_equal_the_float32_computation() -> None:
    """What MPNet was trained with rounds in float32; no distance may land in another bucket."""
    for offset in range(-600, 601):
        n = np.float32(abs(offset))
        large = 15 if n == 0 else min(15, 8 + int(np.log(n / np.float32(8)) / np.float32(np.log(16)) * np.float32(8)))
        bucket = (16 if offset > 0 else 0) + (abs(offset) if n < 8 else large)
        assert relative_bucket(offset) == bucket, offset


def test_configuration_is_printable() -> None:
    assert "custom=3" in repr(PreTrainedConfig(custom=3))
