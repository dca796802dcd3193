"""Classes that choose the architecture by what a repository says. Modules are imported when they are needed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import UnsupportedError
from ..runtime import resolve
from .configuration import PreTrainedConfig, read_config, remote_code_error
from .modeling import PreTrainedModel, as_repository, load, up_to_date

if TYPE_CHECKING:
    from ..hub import Repository

# model_type -> configuration class, in the module of that name.
CONFIGS = {
    "albert": "AlbertConfig",
    "bert": "BertConfig",
    "distilbert": "DistilBertConfig",
    "electra": "ElectraConfig",
    "gemma2": "Gemma2Config",
    "gemma3_text": "Gemma3TextConfig",
    "gpt2": "GPT2Config",
    "gpt_neox": "GPTNeoXConfig",
    "llama": "LlamaConfig",
    "mistral": "MistralConfig",
    "mpnet": "MPNetConfig",
    "olmo2": "Olmo2Config",
    "opt": "OPTConfig",
    "phi": "PhiConfig",
    "phi3": "Phi3Config",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "roberta": "RobertaConfig",
    "smollm3": "SmolLM3Config",
    "stablelm": "StableLmConfig",
}


class AutoConfig:
    """Configuration of the class that the repository's `model_type` names."""

    @classmethod
    def from_pretrained(
        cls,
        name: "str | Repository",
        *,
        revision: str = "main",
        subfolder: str = "",
        token: str | None = None,
        local_files_only: bool = False,
        progress_callback: Any = None,
        trust_remote_code: bool = False,
        **overrides: Any,
    ) -> PreTrainedConfig:
        """Configuration of a repository; other keywords replace its keys.

        Raises UnsupportedError for unknown architectures, RemoteCodeError for those that are code of the repository.
        """
        repository = as_repository(name, revision, subfolder, token, local_files_only, progress_callback)
        return resolve(cls._from_repository(repository, trust_remote_code, overrides))

    @classmethod
    async def _from_repository(
        cls, repository: "Repository", trust_remote_code: bool, overrides: dict[str, Any]
    ) -> PreTrainedConfig:
        if trust_remote_code:
            raise remote_code_error("trust_remote_code=True asks for it")
        values = await read_config(repository)
        config_class: type[PreTrainedConfig] = _member(model_type_of(values, repository.name), CONFIGS)
        config = config_class.from_dict(values, **overrides)
        config.name_or_path = repository.name
        return config


class AutoModel:
    """Base models. Subclasses choose models with a head.

    `class_names` says which class each model type has for the task.
    """

    class_names: ClassVar[dict[str, str]] = {
        "albert": "AlbertModel",
        "bert": "BertModel",
        "distilbert": "DistilBertModel",
        "electra": "ElectraModel",
        "gemma2": "Gemma2Model",
        "gemma3_text": "Gemma3TextModel",
        "gpt2": "GPT2Model",
        "gpt_neox": "GPTNeoXModel",
        "llama": "LlamaModel",
        "mistral": "MistralModel",
        "mpnet": "MPNetModel",
        "olmo2": "Olmo2Model",
        "opt": "OPTModel",
        "phi": "PhiModel",
        "phi3": "Phi3Model",
        "qwen2": "Qwen2Model",
        "qwen3": "Qwen3Model",
        "roberta": "RobertaModel",
        "smollm3": "SmolLM3Model",
        "stablelm": "StableLmModel",
    }

    @classmethod
    def from_pretrained(cls, name: "str | Repository", **options: Any) -> Any:
        """Model of a repository, with the options of `models.modeling.load`.

        Raises UnsupportedError for unknown architectures, RemoteCodeError for those that are code of the repository.
        """
        return resolve(up_to_date(lambda: load(cls.class_for, name, **options)))

    @classmethod
    def class_for(cls, values: dict[str, Any], repository: str) -> type[PreTrainedModel]:
        """Class for the contents of the `config.json` of a repository."""
        model_type = model_type_of(values, repository)
        if model_type not in cls.class_names:
            raise UnsupportedError(
                f"{cls.__name__} has no class for {model_type!r} models.",
                hint=f"It has classes for: {', '.join(cls.class_names)}.",
                model_type=model_type,
            )
        return _member(model_type, cls.class_names)


class AutoModelForPreTraining(AutoModel):
    """Models with the head of their pretraining."""

    class_names: ClassVar[dict[str, str]] = {
        "distilbert": "DistilBertForMaskedLM",
        "electra": "ElectraForPreTraining",
        "mpnet": "MPNetForMaskedLM",
        "roberta": "RobertaForMaskedLM",
    }


class AutoModelForCausalLM(AutoModel):
    """Models that continue a text."""

    class_names: ClassVar[dict[str, str]] = {
        "gemma2": "Gemma2ForCausalLM",
        "gemma3_text": "Gemma3ForCausalLM",
        "gpt2": "GPT2LMHeadModel",
        "gpt_neox": "GPTNeoXForCausalLM",
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "olmo2": "Olmo2ForCausalLM",
        "opt": "OPTForCausalLM",
        "phi": "PhiForCausalLM",
        "phi3": "Phi3ForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
        "smollm3": "SmolLM3ForCausalLM",
        "stablelm": "StableLmForCausalLM",
    }

    @classmethod
    def class_for(cls, values: dict[str, Any], repository: str) -> type[PreTrainedModel]:
        """As in `AutoModel`; of a model of several parts, the class of the one for text."""
        text = values.get("text_config") or {}
        if values.get("model_type") not in cls.class_names and text.get("model_type") in cls.class_names:
            values = text
        return super().class_for(values, repository)


class AutoModelForMaskedLM(AutoModel):
    """Models that fill in masked tokens."""

    class_names: ClassVar[dict[str, str]] = {
        "albert": "AlbertForMaskedLM",
        "bert": "BertForMaskedLM",
        "distilbert": "DistilBertForMaskedLM",
        "electra": "ElectraForMaskedLM",
        "mpnet": "MPNetForMaskedLM",
        "roberta": "RobertaForMaskedLM",
    }


class AutoModelForSequenceClassification(AutoModel):
    """Models that classify or rate a text."""

    class_names: ClassVar[dict[str, str]] = {
        "albert": "AlbertForSequenceClassification",
        "bert": "BertForSequenceClassification",
        "distilbert": "DistilBertForSequenceClassification",
        "electra": "ElectraForSequenceClassification",
        "gemma2": "Gemma2ForSequenceClassification",
        "gpt2": "GPT2ForSequenceClassification",
        "gpt_neox": "GPTNeoXForSequenceClassification",
        "llama": "LlamaForSequenceClassification",
        "mistral": "MistralForSequenceClassification",
        "mpnet": "MPNetForSequenceClassification",
        "olmo2": "Olmo2ForSequenceClassification",
        "opt": "OPTForSequenceClassification",
        "phi": "PhiForSequenceClassification",
        "phi3": "Phi3ForSequenceClassification",
        "qwen2": "Qwen2ForSequenceClassification",
        "qwen3": "Qwen3ForSequenceClassification",
        "roberta": "RobertaForSequenceClassification",
        "smollm3": "SmolLM3ForSequenceClassification",
        "stablelm": "StableLmForSequenceClassification",
    }


class AutoModelForTokenClassification(AutoModel):
    """Models that classify each token."""

    class_names: ClassVar[dict[str, str]] = {
        "albert": "AlbertForTokenClassification",
        "bert": "BertForTokenClassification",
        "distilbert": "DistilBertForTokenClassification",
        "electra": "ElectraForTokenClassification",
        "gemma2": "Gemma2ForTokenClassification",
        "gpt2": "GPT2ForTokenClassification",
        "gpt_neox": "GPTNeoXForTokenClassification",
        "llama": "LlamaForTokenClassification",
        "mistral": "MistralForTokenClassification",
        "mpnet": "MPNetForTokenClassification",
        "phi": "PhiForTokenClassification",
        "phi3": "Phi3ForTokenClassification",
        "qwen2": "Qwen2ForTokenClassification",
        "qwen3": "Qwen3ForTokenClassification",
        "roberta": "RobertaForTokenClassification",
        "smollm3": "SmolLM3ForTokenClassification",
        "stablelm": "StableLmForTokenClassification",
    }


class AutoModelForQuestionAnswering(AutoModel):
    """Models that find an answer in a text."""

    class_names: ClassVar[dict[str, str]] = {
        "albert": "AlbertForQuestionAnswering",
        "bert": "BertForQuestionAnswering",
        "distilbert": "DistilBertForQuestionAnswering",
        "electra": "ElectraForQuestionAnswering",
        "mpnet": "MPNetForQuestionAnswering",
        "roberta": "RobertaForQuestionAnswering",
    }


_AUTO_CLASSES = (
    AutoModel,
    AutoModelForPreTraining,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoModelForQuestionAnswering,
)


def model_type_of(values: dict[str, Any], repository: str) -> str:
    """The model type of a `config.json`: the one it names, or else the one that has its `architectures`.

    Raises RemoteCodeError if the type is unknown and the repository brings code for it, UnsupportedError otherwise.
    """
    model_type = values.get("model_type")
    if model_type in CONFIGS:
        return model_type
    if values.get("auto_map"):
        classes = ", ".join(values["auto_map"])
        raise remote_code_error(f"{repository} brings its own {classes} for model_type {model_type!r}")
    architectures = values.get("architectures") or []
    for auto_class in _AUTO_CLASSES:
        for known, class_name in auto_class.class_names.items():
            if class_name in architectures:
                return known
    raise UnsupportedError(
        f"{repository} has an unknown architecture: model_type {model_type!r}, architectures {architectures}.",
        hint=f"Known model types are: {', '.join(CONFIGS)}.",
        model_type=model_type,
    )


def _member(model_type: str, names: dict[str, str]) -> Any:
    module = import_module(f".{model_type.replace('-', '_')}", __package__)
    return getattr(module, names[model_type])
