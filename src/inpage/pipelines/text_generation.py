"""text-generation: texts and conversations continued."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Any

from ..checks import check_choice
from ..errors import InputError
from ..generation.configuration import DEFAULTS, GenerationConfig
from ..generation.session import make_cache
from ..generation.streamers import BaseStreamer, IncrementalDecoder
from ..processing.chat_template import continued
from .base import Options, Pipeline

_FREE = {"max_new_tokens": 256, "do_sample": True, "temperature": 0.7}  # where neither call nor model says
_NO_CONFIG = (
    "streamer", "json_schema", "regex", "choices", "logits_processor", "stopping_criteria", "assistant_model"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _OwnOptions(Options):
    return_full_text: bool | None = None
    return_text: bool = True
    return_tensors: bool = False
    prefix: str = ""
    stop_sequence: str | None = None
    handle_long_generation: str | None = None
    clean_up_tokenization_spaces: bool | None = None
    skip_special_tokens: bool = True
    add_special_tokens: bool | None = None
    continue_final_message: bool | None = None
    tools: Sequence[Any] | None = None
    documents: Sequence[Any] | None = None
    chat_template: str | None = None
    tokenizer_encode_kwargs: Mapping[str, Any] | None = None
    generation_config: GenerationConfig | None = None
    streamer: Any = None
    logits_processor: Any = None
    stopping_criteria: Any = None
    prefix_allowed_tokens_fn: Any = None
    json_schema: Any = None
    regex: str | None = None
    choices: Sequence[str] | None = None
    assistant_model: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.prefix, str):
            raise InputError(f"prefix must be a text, not {self.prefix!r:.60}.")
        check_choice("handle_long_generation", self.handle_long_generation, (None, "hole"))
        if not isinstance(self.generation_config, GenerationConfig | None):
            raise InputError(f"generation_config must be a GenerationConfig, not {self.generation_config!r:.60}.")
        if self.stop_sequence is not None and getattr(self, "stop_strings", None) is not None:
            raise InputError("Only one of stop_sequence and stop_strings can be given.")
        if GenerationConfig(**self.generation()).return_dict_in_generate:
            raise InputError("A pipeline gives texts, no outputs of steps.", hint="Call model.generate().")

    def generation(self) -> dict[str, Any]:
        """What of the options is about generation."""
        given = {name: getattr(self, name, None) for name in DEFAULTS}
        if self.stop_sequence is not None:
            given["stop_strings"] = self.stop_sequence
        return {name: value for name, value in given.items() if value is not None}


TextGenerationOptions: Any = make_dataclass(
    "TextGenerationOptions",
    [(name, Any, field(default=None)) for name in DEFAULTS],
    bases=(_OwnOptions,),
    frozen=True,
    kw_only=True,
)
TextGenerationOptions.__doc__ = """
    return_full_text: the prompt with what was written (the default), or what was written alone.
    return_tensors: "generated_token_ids" in place of texts, so does return_text=False.
    prefix: put before every prompt, and left out of results.
    stop_sequence: an older name of stop_strings. handle_long_generation: "hole" cuts prompts that are too long at the
        left.
    continue_final_message: go on with the last message of a conversation; by default if it is an assistant's.
    tools, documents, chat_template: for the chat template; tokenizer_encode_kwargs: further variables of it, or options
        of the tokenizer.
    streamer, logits_processor, stopping_criteria, prefix_allowed_tokens_fn, assistant_model, generation_config, and
        every option of generation: as in `generate`.
    json_schema, regex, choices: the form of what is written.
    """


class Prompt:
    """One text or conversation, encoded."""

    def __init__(self, item: Any, ids: list[int], text: str | None) -> None:
        self.item = item
        self.ids = ids
        self.text = text  # without the prefix; None for a conversation


class _Collector(BaseStreamer):
    """Takes the tokens of a batch's first sequence, for the text of the steps and for the cache."""

    def __init__(self, tokenizer: Any, also: Any, stop_strings: Any, **decode_options: Any) -> None:
        self.also = also
        self.ids: list[int] = []
        self.rows = 0
        self._decoder = IncrementalDecoder(tokenizer, stop_strings or (), **decode_options)
        self._taken = 0  # tokens whose text has been taken
        self._ended = False

    def put(self, value: Any) -> None:
        if self.also is not None:
            self.also.put(value)
        if not self.rows:
            self.rows, self.ids = len(value), list(value[0])
            self._taken = len(self.ids)
        else:
            self.ids.append(value[0])

    def end(self) -> None:
        if self.also is not None:
            self.also.end()
        self._ended = True

    def take(self) -> str:
        """The text that came since the last call."""
        new, self._taken = self.ids[self._taken :], len(self.ids)
        text = self._decoder.put(new) if new else ""
        return text + self._decoder.end() if self._ended else text


class TextGenerationPipeline(Pipeline):
    """Continues texts, or conversations (lists of {"role", "content"}).

    For one input a list of {"generated_text"}, one for each of num_return_sequences; for a list of inputs a list of
    those. For a conversation the text is the conversation with the assistant's message. The tokens of the last call
    stay in the cache, so the next turn of a conversation computes its new tokens only; `clear_cache()` frees it.
    """

    task = "text-generation"
    head = "AutoModelForCausalLM"
    options_class = TextGenerationOptions
    arguments = ("text_inputs",)

    def __init__(self, model: Any, tokenizer: Any, *, owns_model: bool = False, **defaults: Any) -> None:
        super().__init__(model, tokenizer, owns_model=owns_model, **defaults)
        self._cache: Any = None
        self._cached: list[int] = []
        self._cache_kind: Any = None

    @classmethod
    def accepts(cls, model: Any) -> bool:
        return hasattr(model, "generate_steps")

    def steps(self, *inputs: Any, **options: Any) -> Generator[Any, None, Any]:
        """The call in steps: yields (tokens done, tokens at most, fields) after every token.

        `fields()` is {"index", "text"}: what is new of the text of input number "index" since `fields` was called last,
        for calls without beams whose batches have one row.
        """
        self._check_usable()
        arguments, options = self._sort_arguments(inputs, options)
        chosen = self.options(**options)
        items, single = self.items(arguments, chosen)
        prompts = [self._prompt(item, chosen) for item in items]
        return self._steps(prompts, single, chosen)

    def _steps(self, prompts: list[Prompt], single: bool, options: Any) -> Generator[Any, None, Any]:
        size = options.batch_size or 1
        results: list[Any] = []
        for start in range(0, len(prompts), size):
            batch = prompts[start : start + size]
            sequences = yield from self._generate(batch, start, options)
            count = len(sequences) // len(batch)
            padded = max(len(prompt.ids) for prompt in batch)
            for i, prompt in enumerate(batch):
                rows = sequences[i * count : (i + 1) * count]
                results.append([self._result(prompt, row[padded:], options) for row in rows])
        return results[0] if single else results

    def clear_cache(self) -> None:
        """Free the keys and values of the last call."""
        cache, self._cache, self._cached = self._cache, None, []
        if cache is not None:
            cache.dispose()

    def dispose(self) -> None:
        self.clear_cache()
        super().dispose()

    def items(self, arguments: dict[str, Any], options: Any) -> tuple[list[Any], bool]:
        inputs = arguments.get("text_inputs")
        if isinstance(inputs, Mapping):
            raise InputError("A conversation is a list of messages.", hint='As in [{"role": "user", "content": "Hi"}].')
        chat = isinstance(inputs, list | tuple) and bool(inputs) and isinstance(inputs[0], Mapping)
        single = isinstance(inputs, str) or chat
        items = [inputs] if single else list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        for item in items:
            self.check_item(item, options)
        return items, single

    def check_item(self, item: Any, options: Any) -> None:
        if not isinstance(item, list | tuple):
            super().check_item(item, options)

    # One batch

    def _generate(self, batch: list[Prompt], start: int, options: Any) -> Generator[Any, None, list[list[int]]]:
        """The sequences of a batch, padded at both sides."""
        longest = max(len(prompt.ids) for prompt in batch)
        pad = self.tokenizer.pad_token_id
        given = self._generation_options(options)
        if pad is not None:
            given.setdefault("pad_token_id", pad)
        ids = [[pad or 0] * (longest - len(prompt.ids)) + prompt.ids for prompt in batch]
        mask = [[0] * (longest - len(prompt.ids)) + [1] * len(prompt.ids) for prompt in batch]
        said = {**self._said_before(options), **given}
        alone = len(batch) == 1 and all(said.get(name, 1) == 1 for name in ("num_beams", "num_return_sequences"))
        collector = None
        if alone:
            decoding = {"skip_special_tokens": options.skip_special_tokens}
            collector = _Collector(self.tokenizer, options.streamer, said.get("stop_strings"), **decoding)
        more = {name: getattr(options, name) for name in _NO_CONFIG if getattr(options, name) is not None}
        more["streamer"] = collector if alone else options.streamer
        cache = self._reusable_cache(ids[0], said) if alone else None
        steps = self.model.generate_steps(
            ids,
            options.generation_config,
            attention_mask=mask,
            tokenizer=self.tokenizer,
            prefix_allowed_tokens_fn=options.prefix_allowed_tokens_fn,
            past_key_values=cache,
            **more,
            **given,
        )
        kind, self._cache = self._cache_kind, None  # this call's alone, until it is over
        done = total = 0

        def fields() -> dict[str, Any]:
            return {"index": start, "text": collector.take() if collector else ""}

        try:
            while True:
                done, total = next(steps)
                yield done, total, fields
        except StopIteration as stop:
            sequences = stop.value
        finally:
            steps.close()
            if cache is not None and collector is not None:
                self.clear_cache()
                if self._disposed:
                    cache.dispose()
                else:
                    self._cache, self._cache_kind = cache, kind
                    self._cached = collector.ids[: cache.get_seq_length()]
        if collector is not None:
            yield done, total, fields
        return sequences.tolist()

    def _generation_options(self, options: Any) -> dict[str, Any]:
        given = options.generation()
        said = {**self._said_before(options), **given}
        free = {name: value for name, value in _FREE.items() if name not in said}
        if "max_length" in said:
            free.pop("max_new_tokens", None)
        if not said.get("do_sample", True):
            free.pop("temperature", None)
        return {**free, **given}

    def _said_before(self, options: Any) -> dict[str, Any]:
        """Options of generation besides those of the call: its generation_config's, and the model's."""
        return (options.generation_config or GenerationConfig()).over(self.model.generation_config).to_dict()

    def _reusable_cache(self, ids: list[int], said: dict[str, Any]) -> Any:
        """The cache, cut to what the last call's tokens and these begin with."""
        if said.get("use_cache") is False or said.get("cache_implementation") == "static":
            return None
        kind = (said.get("cache_implementation"), said.get("kv_cache_dtype"), self.model.adapter_changes)
        common = 0
        for a, b in zip(self._cached, ids[:-1], strict=False):
            if a != b:
                break
            common += 1
        if self._cache is not None and (not common or kind != self._cache_kind or self._cache.batch_size > 1):
            self.clear_cache()
        if self._cache is not None:
            try:
                self._cache.crop(common)
            except InputError:  # a sliding window has gone past
                self.clear_cache()
        if self._cache is None:
            self._cache, self._cache_kind = make_cache(*kind[:2], 0), kind
        return self._cache

    # Texts in and out

    def _prompt(self, item: Any, options: Any) -> Prompt:
        more = dict(options.tokenizer_encode_kwargs or {})
        if isinstance(item, str):
            special = {} if options.add_special_tokens is None else {"add_special_tokens": options.add_special_tokens}
            if options.tools is not None or options.documents is not None or options.chat_template is not None:
                raise InputError("tools, documents and chat_template are for conversations.")
            ids = self.tokenizer(options.prefix + item, verbose=False, **special, **more)["input_ids"]
            prompt = Prompt(item, ids, item)
        else:
            if options.prefix or options.add_special_tokens is not None:
                raise InputError("prefix and add_special_tokens are for texts, not for conversations.")
            go_on = self._continues(item, options)
            ids = self.tokenizer.apply_chat_template(
                item,
                tools=options.tools,
                documents=options.documents,
                chat_template=options.chat_template,
                add_generation_prompt=not go_on,
                continue_final_message=go_on,
                return_dict=False,
                **more,
            )
            prompt = Prompt(item, ids, None)
        prompt.ids = self._fitted(list(prompt.ids), options)
        return prompt

    def _fitted(self, ids: list[int], options: Any) -> list[int]:
        if not ids:
            first = self.tokenizer.bos_token_id
            if first is None:
                raise InputError(
                    "An empty text cannot be continued.", hint="Begin it, or use a model with a bos token."
                )
            ids = [first]
        if options.handle_long_generation == "hole":
            new = self._generation_options(options).get("max_new_tokens") or 0
            room = self.max_length - new
            if room <= 0:
                raise InputError(f"The model takes {self.max_length} tokens, {new} of them new.", hint="Generate less.")
            ids = ids[-room:]
        return ids

    def _continues(self, messages: Sequence[Any], options: Any) -> bool:
        if options.continue_final_message is not None:
            return options.continue_final_message
        return bool(messages) and messages[-1].get("role") == "assistant"

    def _result(self, prompt: Prompt, new: list[int], options: Any) -> dict[str, Any]:
        new = self._without_padding(new, options)
        if options.return_tensors or not options.return_text:
            return {"generated_token_ids": [*prompt.ids, *new]}
        decode = {
            "skip_special_tokens": options.skip_special_tokens,
            "clean_up_tokenization_spaces": options.clean_up_tokenization_spaces,
        }
        before = self.tokenizer.decode(prompt.ids, **decode)
        text = self.tokenizer.decode([*prompt.ids, *new], **decode)[len(before) :]
        if options.return_full_text is False:
            return {"generated_text": text}
        if prompt.text is not None:
            return {"generated_text": prompt.text + text}
        messages = list(prompt.item)
        if self._continues(messages, options):
            return {"generated_text": [*messages[:-1], continued(messages[-1], text)]}
        return {"generated_text": [*messages, {"role": "assistant", "content": text}]}

    def _without_padding(self, new: list[int], options: Any) -> list[int]:
        """New tokens up to the end of the sequence, where it ends before the batch does."""
        config = GenerationConfig.from_dict(self._said_before(options))
        config.update(**{name: v for name, v in options.generation().items() if name.endswith("token_id")})
        pad = self.tokenizer.pad_token_id if config.pad_token_id is None else config.pad_token_id
        for i, token in enumerate(new):
            if token in config.eos_tokens:
                return new[: i + 1]
        while pad is not None and new and new[-1] == pad:
            new = new[:-1]
        return new
