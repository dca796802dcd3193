"""The processors that the options of a call ask for, in transformers' order."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import logits_process as dense
from . import warpers
from .configuration import GenerationConfig
from .logits_process import LogitsProcessorList
from .scores import Ids, Rows


def default_processors(
    config: GenerationConfig,
    input_ids: Ids,
    *,
    padding: Sequence[int] | None = None,
    custom: Iterable[Any] = (),
    prefix_allowed_tokens_fn: Callable[[int, list[int]], Iterable[int]] | None = None,
    unconditional: Callable[[Ids], Rows] | None = None,
) -> LogitsProcessorList:
    """Processors of a complete `config` for prompts of one length, and the caller's `custom` ones.

    `padding` says how many tokens of each prompt are padding; `unconditional` is what guidance needs. A custom
    processor replaces one of its class.
    """
    chain = _row_processors(config, input_ids, padding, prefix_allowed_tokens_fn, unconditional)
    custom = list(custom)
    replaced = {type(processor) for processor in custom if isinstance(processor, dense.LogitsProcessor)}
    chain = [processor for processor in chain if type(processor) not in replaced] + custom
    if config.do_sample:
        chain += _warpers(config)
    if config.renormalize_logits:
        chain.append(warpers.LogitNormalization())
    return LogitsProcessorList(chain)


def _row_processors(
    config: GenerationConfig,
    input_ids: Ids,
    padding: Sequence[int] | None,
    prefix_allowed_tokens_fn: Callable[[int, list[int]], Iterable[int]] | None,
    unconditional: Callable[[Ids], Rows] | None,
) -> list[Any]:
    length, ends = len(input_ids[0]), config.eos_tokens
    texts = [ids[count:] for ids, count in zip(input_ids, padding or [0] * len(input_ids), strict=True)]
    chain: list[Any] = []
    if config.guidance_scale not in (None, 1) and unconditional is not None:
        chain.append(dense.UnbatchedClassifierFreeGuidanceLogitsProcessor(config.guidance_scale, unconditional))
    if config.sequence_bias is not None:
        chain.append(dense.SequenceBiasLogitsProcessor(config.sequence_bias))
    if config.encoder_repetition_penalty != 1.0:
        chain.append(dense.EncoderRepetitionPenaltyLogitsProcessor(config.encoder_repetition_penalty, texts))
    if config.repetition_penalty != 1.0:
        chain.append(dense.RepetitionPenaltyLogitsProcessor(config.repetition_penalty, padding))
    if config.no_repeat_ngram_size:
        chain.append(dense.NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size, padding))
    if config.encoder_no_repeat_ngram_size:
        chain.append(dense.EncoderNoRepeatNGramLogitsProcessor(config.encoder_no_repeat_ngram_size, texts))
    if config.bad_words_ids is not None:
        chain.append(dense.NoBadWordsLogitsProcessor(config.bad_words_ids, ends))
    if config.min_length > length and ends:
        chain.append(dense.MinLengthLogitsProcessor(config.min_length, ends))
    if prefix_allowed_tokens_fn is not None:
        width = max(config.num_beams, config.num_return_sequences)
        chain.append(dense.PrefixConstrainedLogitsProcessor(prefix_allowed_tokens_fn, width))
    if config.forced_bos_token_id is not None:
        chain.append(dense.ForcedBOSTokenLogitsProcessor(config.forced_bos_token_id))
    if config.forced_eos_token_id is not None:
        chain.append(dense.ForcedEOSTokenLogitsProcessor(config.max_length, config.forced_eos_token_id))
    if config.remove_invalid_values:
        chain.append(dense.InfNanRemoveLogitsProcessor())
    if config.exponential_decay_length_penalty is not None:
        chain.append(dense.ExponentialDecayLengthPenalty(config.exponential_decay_length_penalty, ends, length))
    if config.suppress_tokens not in (None, [], ()):
        chain.append(dense.SuppressTokensLogitsProcessor(config.suppress_tokens))
    if config.begin_suppress_tokens not in (None, [], ()):
        begin = length if length > 1 or config.forced_bos_token_id is None else length + 1
        chain.append(dense.SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, begin))
    return chain


def _warpers(config: GenerationConfig) -> list[dense.LogitsWarper]:
    # A beam needs a token beside those that end it.
    least = len(config.eos_tokens or [0]) + 1 if config.num_beams > 1 else 1
    chain: list[dense.LogitsWarper] = []
    if config.temperature != 1.0:
        chain.append(warpers.TemperatureLogitsWarper(config.temperature))
    if config.top_h is not None:
        chain.append(warpers.TopHLogitsWarper(config.top_h))
    if config.top_k:
        chain.append(warpers.TopKLogitsWarper(config.top_k, least))
    if config.top_p < 1.0:
        chain.append(warpers.TopPLogitsWarper(config.top_p, least))
    if config.min_p is not None:
        chain.append(warpers.MinPLogitsWarper(config.min_p, least))
    if config.typical_p < 1.0:
        chain.append(warpers.TypicalLogitsWarper(config.typical_p, least))
    if config.epsilon_cutoff:
        chain.append(warpers.EpsilonLogitsWarper(config.epsilon_cutoff, least))
    if config.eta_cutoff:
        chain.append(warpers.EtaLogitsWarper(config.eta_cutoff, least))
    return chain
