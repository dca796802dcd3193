"""Mistral (Jiang et al., 2023, https://arxiv.org/abs/2310.06825): Llama with a sliding window in every layer."""

from typing import Any, ClassVar

from .decoder import CausalLanguageModel
from .decoder_heads import LastTokenClassifier, TokenScorer
from .llama import LlamaConfig, LlamaModel


class MistralConfig(LlamaConfig):
    model_type = "mistral"
    defaults: ClassVar[dict[str, Any]] = LlamaConfig.defaults | {
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096 * 32,
        "sliding_window": 4096,
    }

    def slides(self, layer: int) -> bool:
        return True


class MistralModel(LlamaModel):
    config_class = MistralConfig


class MistralForCausalLM(CausalLanguageModel):
    base_class = MistralModel


class MistralForSequenceClassification(LastTokenClassifier):
    base_class = MistralModel


class MistralForTokenClassification(TokenScorer):
    base_class = MistralModel
