"""Qwen2 (2024, https://arxiv.org/abs/2407.10671): Llama with biases of queries, keys and values."""

from typing import Any, ClassVar

from .decoder import CausalLanguageModel
from .decoder_heads import LastTokenClassifier, TokenScorer
from .llama import LlamaAttention, LlamaConfig, LlamaDecoderLayer, LlamaModel


class Qwen2Config(LlamaConfig):
    model_type = "qwen2"
    defaults: ClassVar[dict[str, Any]] = LlamaConfig.defaults | {
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "bos_token_id": None,
        "eos_token_id": None,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    }

    def slides(self, layer: int) -> bool:
        return self.use_sliding_window and layer >= self.max_window_layers


class Qwen2Attention(LlamaAttention):
    def has_bias(self, config: Any) -> bool:
        return True

    def has_output_bias(self, config: Any) -> bool:
        return False


class Qwen2DecoderLayer(LlamaDecoderLayer):
    attention_class = Qwen2Attention


class Qwen2Model(LlamaModel):
    config_class = Qwen2Config
    layer_class = Qwen2DecoderLayer


class Qwen2ForCausalLM(CausalLanguageModel):
    base_class = Qwen2Model


class Qwen2ForSequenceClassification(LastTokenClassifier):
    base_class = Qwen2Model


class Qwen2ForTokenClassification(TokenScorer):
    base_class = Qwen2Model
