"""SmolLM3 (2025, https://huggingface.co/blog/smollm3): Llama with every fourth layer free of positions."""

from typing import Any, ClassVar

from .decoder import CausalLanguageModel
from .decoder_heads import LastTokenClassifier, TokenScorer
from .llama import LlamaAttention, LlamaConfig, LlamaDecoderLayer, LlamaModel


class SmolLM3Config(LlamaConfig):
    model_type = "smollm3"
    defaults: ClassVar[dict[str, Any]] = LlamaConfig.defaults | {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "pad_token_id": 128004,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "rope_theta": 2_000_000.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "no_rope_layers": None,
        "no_rope_layer_interval": 4,
    }

    def slides(self, layer: int) -> bool:
        return self.use_sliding_window and not self.rotates(layer)

    def rotates(self, layer: int) -> bool:
        """Whether a layer has rotary positions."""
        if self.no_rope_layers is not None:
            return bool(self.no_rope_layers[layer])
        return (layer + 1) % self.no_rope_layer_interval != 0


class SmolLM3Attention(LlamaAttention):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, layer)
        if not config.rotates(layer):
            self.kind = "none"


class SmolLM3DecoderLayer(LlamaDecoderLayer):
    attention_class = SmolLM3Attention


class SmolLM3Model(LlamaModel):
    config_class = SmolLM3Config
    layer_class = SmolLM3DecoderLayer


class SmolLM3ForCausalLM(CausalLanguageModel):
    base_class = SmolLM3Model


class SmolLM3ForSequenceClassification(LastTokenClassifier):
    base_class = SmolLM3Model


class SmolLM3ForTokenClassification(TokenScorer):
    base_class = SmolLM3Model
