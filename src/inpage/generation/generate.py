"""`generate` for models that predict the next token: what it was given, made ready and run."""

import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from random import Random
from typing import Any

from ..errors import InputError, UnsupportedError
from ..models.outputs import ModelOutput
from ..runtime import result_of
from ..tensor import Tensor
from .assisted import Assistant, AssistedDecoding, DraftModel, PromptLookup
from .cache import check_cache
from .configuration import DEFAULTS, UNSUPPORTED, GenerationConfig, unknown_option
from .constraints import ConstrainedLogitsProcessor, make_constraint
from .decoding import BeamDecoding, Decoding, Request
from .processors import default_processors
from .scores import Ids
from .scoring import transition_scores
from .session import Session, make_cache, unconditional
from .stopping_criteria import MaxTimeCriteria, StoppingCriteriaList, StopStringCriteria
from .streamers import TextStreamer

Steps = Generator[tuple[int, int], None, Any]
_random = Random()


def set_seed(seed: int) -> None:
    """Make what is sampled from now on repeatable, in calls without a `seed` of their own."""
    _random.seed(seed)


class GenerationMixin:
    """Mixin of causal language models: `generate`."""

    config: Any
    jit: Callable[..., Any]
    forward: Callable[..., Any]
    _generation_config: GenerationConfig | None = None
    _functions: dict[str, Callable[..., Any]] | None = None

    @property
    def generation_config(self) -> GenerationConfig:
        """Options that calls do not give: those of the repository."""
        if self._generation_config is None:
            self._generation_config = GenerationConfig.from_model_config(self.config)
        return self._generation_config

    @generation_config.setter
    def generation_config(self, config: GenerationConfig) -> None:
        _check_config(config)
        self._generation_config = config

    async def read_settings(self, repository: Any) -> None:
        """Take the options of `generation_config.json`, or else those in the model's configuration."""
        self._generation_config = await GenerationConfig._from_pretrained(repository, model_config=self.config)

    def function(self, name: str, function: Callable[..., Any]) -> Any:
        """`jit(function)`, made once and kept under a name."""
        if self._functions is None:
            self._functions = {}
        if name not in self._functions:
            self._functions[name] = self.jit(function)
        return self._functions[name]

    def generate(self, inputs: Any = None, generation_config: GenerationConfig | None = None, **options: Any) -> Any:
        """Continue sequences: int32 tokens [batch * num_return_sequences, length], prompts included.

        inputs: token ids [B, L], padded at the left, or what a tokenizer returns; also as input_ids and attention_mask.
        generation_config and further options: see `GenerationConfig`. Options win over generation_config, that over the
        model's own.
        logits_processor, stopping_criteria: lists of further ones. prefix_allowed_tokens_fn(batch index, tokens so far)
        lists the tokens that may come next. streamer: gets tokens as they come.
        json_schema, regex, choices: the form of what is written; needs tokenizer, as stop_strings do.
        past_key_values: a cache that holds the first tokens of the input; the others are added to it.
        negative_prompt_ids, negative_prompt_attention_mask: what guidance_scale leads away from.
        assistant_model: a smaller model with the same vocabulary, which guesses num_assistant_tokens at a time. They,
        or those that prompt_lookup_num_tokens finds in the text so far, are verified together; the result is the same.

        With return_dict_in_generate, a ModelOutput of `sequences`, `past_key_values` and, as asked for, `scores`,
        `logits`, `hidden_states` and `attentions` (a tuple over the layers for each step), `sequences_scores` and
        `beam_indices`. Raises InputError and UnsupportedError for options that are unknown, unfit or without effect.
        """
        return result_of(self.generate_steps(inputs, generation_config, **options))

    def generate_steps(
        self,
        inputs: Any = None,
        generation_config: GenerationConfig | None = None,
        *,
        input_ids: Any = None,
        attention_mask: Any = None,
        logits_processor: Iterable[Any] | None = None,
        stopping_criteria: Iterable[Any] | None = None,
        prefix_allowed_tokens_fn: Callable[[int, list[int]], Iterable[int]] | None = None,
        streamer: Any = None,
        tokenizer: Any = None,
        json_schema: Any = None,
        regex: str | None = None,
        choices: Sequence[str] | None = None,
        past_key_values: Any = None,
        negative_prompt_ids: Any = None,
        negative_prompt_attention_mask: Any = None,
        assistant_model: Any = None,
        **options: Any,
    ) -> Steps:
        """As `generate`, in steps: yields (new tokens, new tokens at most) after every piece of work.

        Closing the generator between two steps ends the work; a cache that was given stays usable.
        """
        for name in options:
            if name not in DEFAULTS and name not in UNSUPPORTED:
                raise unknown_option(name)
        if generation_config is not None:
            _check_config(generation_config)
        if negative_prompt_ids is None and negative_prompt_attention_mask is not None:
            raise InputError("negative_prompt_attention_mask would have no effect.", hint="Give negative_prompt_ids.")
        config = (generation_config or GenerationConfig()).complete(under=self.generation_config, **options)
        self._check_pad_token(config, options)
        ids, padding = _prompts(inputs, input_ids, attention_mask, (config.pad_token_id, config.eos_tokens))
        model: Any = self
        config.set_lengths(len(ids[0]), model.max_positions)
        times = max(config.num_beams, config.num_return_sequences)
        self._check(config, streamer, len(ids) * times, negative_prompt_ids, past_key_values)
        self._check_assistant(config, assistant_model, len(ids) * times, options)

        constraint = make_constraint(tokenizer, json_schema=json_schema, regex=regex, choices=choices)
        prompts = [list(row) for row in ids for _ in range(times)]
        custom = _callables("logits_processor", logits_processor)
        if constraint is not None:
            custom.append(ConstrainedLogitsProcessor(constraint, len(ids[0]), config.eos_tokens, config.max_length))
        guidance = self._guidance(config, prompts, negative_prompt_ids, negative_prompt_attention_mask)
        processors = default_processors(
            config,
            prompts,
            padding=[count for count in padding for _ in range(times)],
            custom=custom,
            prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
            unconditional=guidance,
        )
        cache, owned = past_key_values, False
        if cache is None and config.use_cache:
            cache = make_cache(config.cache_implementation, config.kv_cache_dtype, config.max_length)
            owned = not config.return_dict_in_generate
        random = _random if config.seed is None else Random(config.seed)
        request = Request(
            session=Session(self, cache, padding, config.prefill_chunk_size, random, _details(config)),
            prompts=ids,
            config=config,
            processors=processors,
            criteria=_criteria(config, tokenizer, _callables("stopping_criteria", stopping_criteria)),
            random=random,
            streamer=streamer,
        )
        return _run(request, cache if owned else None, cache, self._assistant(config, assistant_model, padding))

    def compute_transition_scores(
        self, sequences: Any, scores: Any, beam_indices: Any = None, normalize_logits: bool = False
    ) -> Tensor:
        """Scores of the tokens that were generated: float32 [batch, new tokens], 0 behind the end of a beam.

        sequences, scores and, of beam search, beam_indices are those of an output of `generate` with output_scores.
        normalize_logits: make scores logarithms of probabilities, which those of beam search are.
        """
        return transition_scores(sequences, scores, beam_indices, normalize_logits)

    def _assistant(self, config: GenerationConfig, model: Any, padding: list[int]) -> Assistant | None:
        if config.prompt_lookup_num_tokens is not None:
            return PromptLookup(config.prompt_lookup_num_tokens, config.max_matching_ngram_size)
        if model is None:
            return None
        cache = make_cache(None, config.kv_cache_dtype, config.max_length)
        return DraftModel(Session(model, cache, padding, config.prefill_chunk_size), config.num_assistant_tokens)

    def _check_pad_token(self, config: GenerationConfig, options: Mapping[str, Any]) -> None:
        """Take a token that is none for no padding token where a file has it, as files do; raise where a call does."""
        pad, size = config.pad_token_id, self.config.vocab_size
        if pad is not None and not 0 <= pad < size:
            if options.get("pad_token_id") is not None:
                raise InputError(f"pad_token_id is {pad}, and the model has {size} tokens.")
            config.values["pad_token_id"] = None

    def _check(
        self, config: GenerationConfig, streamer: Any, rows: int, negative_prompt_ids: Any, past_key_values: Any
    ) -> None:
        if streamer is not None and not (hasattr(streamer, "put") and hasattr(streamer, "end")):
            raise InputError(f"streamer must have put() and end(), as BaseStreamer, not be {streamer!r:.60}.")
        if streamer is not None and config.num_beams > 1:
            raise UnsupportedError("Beam search cannot be streamed.", hint="Leave streamer or num_beams out.")
        if isinstance(streamer, TextStreamer) and rows > 1:
            raise InputError(
                f"A text streamer takes a single sequence, not {rows} of them.", hint="Generate one at a time."
            )
        if config.guidance_scale not in (None, 1) and config.num_beams > 1:
            raise UnsupportedError("guidance_scale with beam search is not supported.")
        if negative_prompt_ids is not None and config.guidance_scale in (None, 1):
            raise InputError("negative_prompt_ids would have no effect.", hint="Set guidance_scale.")
        check_cache(past_key_values)
        if past_key_values is not None and not config.use_cache:
            raise InputError("past_key_values needs use_cache=True.")
        self._check_positions(config.max_length)
        if rows > 1 and config.pad_token_id is None and not config.eos_tokens:
            config.values["pad_token_id"] = 0

    def _check_assistant(self, config: GenerationConfig, model: Any, rows: int, options: Mapping[str, Any]) -> None:
        """Raise unless assisted decoding, where it is asked for, goes with the other options."""
        if model is None and options.get("num_assistant_tokens") is not None:
            raise InputError("num_assistant_tokens would have no effect.", hint="Give assistant_model.")
        if model is None and config.prompt_lookup_num_tokens is None:
            return
        if model is not None and not isinstance(model, GenerationMixin):
            raise InputError(f"assistant_model must be a model that generates, not {model!r:.60}.")
        if model is not None and config.prompt_lookup_num_tokens is not None:
            raise InputError("Only one of assistant_model and prompt_lookup_num_tokens can be given.")
        unfit = {
            "more than one sequence": rows > 1,
            "use_cache=False": not config.use_cache,
            "guidance_scale": config.guidance_scale not in (None, 1),
            "RoPE that follows the length": self._dynamic_rope,
            "output_hidden_states or output_attentions": bool(_details(config)),
        }
        if found := [name for name, applies in unfit.items() if applies]:
            raise UnsupportedError(f"Assisted decoding does not go with {', '.join(found)}.")
        vocabulary = None if model is None else model.config.vocab_size
        if vocabulary not in (None, self.config.vocab_size):
            raise InputError(
                f"assistant_model has {vocabulary} tokens, the model {self.config.vocab_size}.",
                hint="Use one with the same tokenizer.",
            )

    @property
    def _dynamic_rope(self) -> bool:
        model: Any = self
        return getattr(model.base_model, "dynamic_rope", None) is not None

    def _check_positions(self, max_length: int) -> None:
        """Learned positions end with their table; others go on beyond what the model was trained for."""
        model: Any = self
        learned = getattr(model.base_model, "max_learned_positions", 0)
        if learned and max_length > learned:
            raise InputError(
                f"The model has {learned} positions, and max_length is {max_length}.",
                hint="Shorten the prompt, or set a smaller max_new_tokens.",
            )
        if model.max_positions is not None and max_length > model.max_positions:
            warnings.warn(
                f"max_length is {max_length}; the model was made for {model.max_positions} tokens.", stacklevel=4
            )

    def _guidance(self, config: GenerationConfig, prompts: Ids, negative: Any, negative_mask: Any) -> Any:
        if config.guidance_scale in (None, 1):
            return None
        if negative is None:
            texts, padding = [row[-1:] for row in prompts], [0] * len(prompts)
        else:
            texts, padding = _prompts(negative, None, negative_mask, (None, []))
            if len(prompts) % len(texts):
                raise InputError(f"{len(texts)} negative prompts do not go with a batch of {len(prompts)}.")
            times = len(prompts) // len(texts)
            texts = [row for row in texts for _ in range(times)]
            padding = [count for count in padding for _ in range(times)]
        cache = make_cache(None, config.kv_cache_dtype, config.max_length) if config.use_cache else None
        return unconditional(Session(self, cache, padding, config.prefill_chunk_size), texts)


def _run(request: Request, owned: Any, cache: Any, assistant: Assistant | None) -> Steps:
    """The work; `owned` is the cache to dispose of at the end."""
    config = request.config
    if assistant is not None:
        decoding = AssistedDecoding(request, assistant)
    else:
        decoding = BeamDecoding(request) if config.num_beams > 1 else Decoding(request)
    try:
        yield from decoding.run()
    finally:
        if assistant is not None:
            assistant.dispose()
        if request.streamer is not None:
            request.streamer.end()
        if owned is not None:
            owned.dispose()
    sequences = Tensor.from_values(decoding.sequences(), "int32")
    if not config.return_dict_in_generate:
        return sequences
    return ModelOutput(sequences=sequences, **decoding.extras(), past_key_values=cache)


def _details(config: GenerationConfig) -> list[str]:
    """Outputs of the model that are wanted of every step."""
    wanted = {"hidden_states": config.output_hidden_states, "attentions": config.output_attentions}
    return [name for name, asked in wanted.items() if asked and config.return_dict_in_generate]


def _prompts(
    inputs: Any, input_ids: Any, attention_mask: Any, pads: tuple[int | None, list[int]]
) -> tuple[Ids, list[int]]:
    """Token ids as lists, and how many at the left of each are padding."""
    if isinstance(inputs, Mapping):
        attention_mask = inputs.get("attention_mask") if attention_mask is None else attention_mask
        inputs = inputs.get("input_ids")
    if (inputs is None) == (input_ids is None):
        raise InputError("generate() needs token ids, once: as inputs or as input_ids.")
    ids = _rows("input_ids", input_ids if inputs is None else inputs)
    if not ids or not ids[0]:
        raise InputError("generate() needs at least one token.", hint="Begin with the model's bos_token_id.")
    if attention_mask is None:
        pad, ends = pads
        # A padding token that also ends texts may be one that the caller wrote.
        mask = [[int(pad is None or pad in ends or token != pad) for token in row] for row in ids]
    else:
        mask = _rows("attention_mask", attention_mask)
    if [len(row) for row in mask] != [len(row) for row in ids]:
        raise InputError("attention_mask must have the shape of input_ids.")
    padding = [row.index(1) if 1 in row else len(row) for row in mask]
    if any(0 in row[count:] or count == len(row) for row, count in zip(mask, padding, strict=True)):
        raise InputError(
            "Prompts of a batch must be padded at the left, and none be empty.",
            hint='Use tokenizer(..., padding=True, padding_side="left").',
        )
    return ids, padding


def _check_config(config: Any) -> None:
    if not isinstance(config, GenerationConfig):
        raise InputError(
            f"generation_config must be a GenerationConfig, not {config!r:.60}.", hint="GenerationConfig(**options)."
        )


def _rows(name: str, values: Any) -> Ids:
    """Integers [B, L] as lists; [L] is a batch of one."""
    tensor = Tensor.from_values(values, "int32")
    if len(tensor.shape) not in (1, 2):
        raise InputError(f"{name} must have one or two dimensions, found shape {list(tensor.shape)}.")
    rows = tensor.tolist()
    return rows if len(tensor.shape) == 2 else [rows]


def _callables(name: str, given: Any) -> list[Any]:
    """The caller's processors or criteria."""
    if given is None:
        return []
    found = list(given) if isinstance(given, Iterable) else [given]
    for each in found:
        if not callable(each) or not isinstance(given, Iterable):
            raise InputError(f"{name} must be a list of what can be called, not {given!r:.60}.")
    return found


def _criteria(config: GenerationConfig, tokenizer: Any, custom: Iterable[Any]) -> StoppingCriteriaList:
    """What ends sequences, besides the greatest length and the tokens that end them."""
    criteria = StoppingCriteriaList()
    if config.max_time is not None:
        criteria.append(MaxTimeCriteria(config.max_time))
    if config.stop_strings is not None:
        if tokenizer is None:
            raise InputError("stop_strings need the tokenizer.", hint="Give tokenizer=.")
        criteria.append(StopStringCriteria(tokenizer, config.stop_strings))
    criteria.extend(custom)
    return criteria
