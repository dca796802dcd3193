"""Run Hugging Face transformer models inside the web page, in Python.

The public names are imported on first use, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import Any

from .env import env as env  # not lazily: importing the module `inpage.env` would put it in the place of the object

__version__ = "0.1.0"

_MODULES = {
    ".executors.wasm": ("show_config",),
    ".errors": ("AbortError", "InpageError"),
    ".generation.cache": ("DynamicCache", "StaticCache"),
    ".generation.configuration": ("GenerationConfig",),
    ".generation.generate": ("set_seed",),
    ".generation.logits_process": (
        "EncoderNoRepeatNGramLogitsProcessor",
        "EncoderRepetitionPenaltyLogitsProcessor",
        "ExponentialDecayLengthPenalty",
        "ForcedBOSTokenLogitsProcessor",
        "ForcedEOSTokenLogitsProcessor",
        "InfNanRemoveLogitsProcessor",
        "LogitsProcessor",
        "LogitsProcessorList",
        "MinLengthLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "NoBadWordsLogitsProcessor",
        "NoRepeatNGramLogitsProcessor",
        "PrefixConstrainedLogitsProcessor",
        "RepetitionPenaltyLogitsProcessor",
        "SequenceBiasLogitsProcessor",
        "SuppressTokensAtBeginLogitsProcessor",
        "SuppressTokensLogitsProcessor",
        "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    ),
    ".generation.scoring": ("perplexity", "token_log_probabilities"),
    ".generation.stopping_criteria": (
        "MaxTimeCriteria",
        "StopStringCriteria",
        "StoppingCriteria",
        "StoppingCriteriaList",
    ),
    ".generation.streamers": ("BaseStreamer", "CallbackStreamer", "TextIteratorStreamer", "TextStreamer"),
    ".generation.warpers": (
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "LogitNormalization",
        "MinPLogitsWarper",
        "TemperatureLogitsWarper",
        "TopHLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "TypicalLogitsWarper",
    ),
    ".models.auto": (
        "AutoConfig",
        "AutoModel",
        "AutoModelForCausalLM",
        "AutoModelForMaskedLM",
        "AutoModelForPreTraining",
        "AutoModelForQuestionAnswering",
        "AutoModelForSequenceClassification",
        "AutoModelForTokenClassification",
    ),
    ".pipelines": ("pipeline",),
    ".processing.tokenizer": ("AutoTokenizer",),
    ".program": ("jit",),
    ".tensor": ("Tensor",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted([*_HOME, "env"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'inpage' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
