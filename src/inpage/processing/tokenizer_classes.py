"""What transformers' tokenizer classes take for granted where a repository's files are silent.

Written as the part of `tokenizer_config.json` that such a repository leaves out. Classes that are not listed, and the
generic ones, take nothing for granted.
"""

from typing import Any

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

# Options that change the backend rather than this library's handling of it.
WORDPIECE_OPTIONS = ("do_lower_case", "tokenize_chinese_chars", "strip_accents")
BYTE_LEVEL_OPTIONS = ("add_prefix_space", "trim_offsets")

Config = dict[str, Any]

_WITH_SEGMENTS = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}


def _tokens(**tokens: str) -> Config:
    return {f"{name}_token": token for name, token in tokens.items()}


_BERT_TOKENS = _tokens(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
_ROBERTA_TOKENS = _tokens(bos="<s>", eos="</s>", sep="</s>", cls="<s>", unk="<unk>", pad="<pad>", mask="<mask>")
_WORDPIECE: Config = {"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None}

_BERT = {**_BERT_TOKENS, **_WORDPIECE, **_WITH_SEGMENTS}
_DISTILBERT = {**_BERT_TOKENS, **_WORDPIECE}
_MPNET = {**_ROBERTA_TOKENS, "unk_token": "[UNK]", **_WORDPIECE}
_ROBERTA = {**_ROBERTA_TOKENS, "add_prefix_space": False, "trim_offsets": True}
_ALBERT = _tokens(bos="[CLS]", eos="[SEP]", unk="<unk>", sep="[SEP]", pad="<pad>", cls="[CLS]", mask="[MASK]")
_DEBERTA = {**_BERT_TOKENS, **_tokens(bos="[CLS]", eos="[SEP]"), **_WITH_SEGMENTS}
_GPT2 = {**_tokens(unk="<|endoftext|>", bos="<|endoftext|>", eos="<|endoftext|>"), "add_prefix_space": False}
_LLAMA = {**_tokens(unk="<unk>", bos="<s>", eos="</s>"), "padding_side": "left"}
_GEMMA = {**_tokens(unk="<unk>", bos="<bos>", eos="<eos>", pad="<pad>", mask="<mask>"), "padding_side": "left"}

CLASS_DEFAULTS: dict[str, Config] = {
    "BertTokenizer": _BERT,
    "ElectraTokenizer": _BERT,
    "MobileBertTokenizer": _BERT,
    "DistilBertTokenizer": _DISTILBERT,
    "MPNetTokenizer": _MPNET,
    "RobertaTokenizer": _ROBERTA,
    "BartTokenizer": _ROBERTA,
    "XLMRobertaTokenizer": _ROBERTA_TOKENS,
    "CamembertTokenizer": _ROBERTA_TOKENS,
    "AlbertTokenizer": _ALBERT,
    "DebertaTokenizer": _DEBERTA,
    "DebertaV2Tokenizer": _DEBERTA,
    "GPT2Tokenizer": _GPT2,
    "WhisperTokenizer": _GPT2,
    "GPTNeoXTokenizer": _GPT2,
    "Qwen2Tokenizer": _tokens(eos="<|endoftext|>", pad="<|endoftext|>"),
    "LlamaTokenizer": _LLAMA,
    "GemmaTokenizer": _GEMMA,
    "T5Tokenizer": _tokens(eos="</s>", unk="<unk>", pad="<pad>"),
    "MarianTokenizer": _tokens(eos="</s>", unk="<unk>", pad="<pad>"),
    "CLIPTokenizer": _tokens(unk="<|endoftext|>", bos="<|startoftext|>", eos="<|endoftext|>", pad="<|endoftext|>"),
    "PreTrainedTokenizer": {},
    "TokenizersBackend": {},
}

# Used where neither tokenizer_config.json nor config.json names a class.
MODEL_TYPE_CLASSES = {
    "bert": "BertTokenizer",
    "electra": "ElectraTokenizer",
    "mobilebert": "MobileBertTokenizer",
    "distilbert": "DistilBertTokenizer",
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
    "bart": "BartTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "albert": "AlbertTokenizer",
    "deberta": "DebertaTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "gpt2": "GPT2Tokenizer",
    "opt": "GPT2Tokenizer",
    "phi": "GPT2Tokenizer",
    "whisper": "WhisperTokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "llama": "LlamaTokenizer",
    "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer",
    "gemma3_text": "GemmaTokenizer",
    "t5": "T5Tokenizer",
    "mt5": "T5Tokenizer",
    "marian": "MarianTokenizer",
    "clip": "CLIPTokenizer",
}
