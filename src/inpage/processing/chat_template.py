"""Chat templates: messages to the text that a model was trained on, by Jinja in its immutable sandbox.

The package jinja2 is optional. Under Pyodide it is loaded with the first tokenizer that has a template.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from ..errors import ConfigError, InputError, UnsupportedError
from ..runtime import IN_PYODIDE, pause
from .tool_schema import describe

# Around what an assistant says, while it is being tracked: code points that no text has.
_BEGIN, _END = "\ufdd0", "\ufdd1"
_OPEN = "\ufdd2"  # behind the text of a message that is to be continued


async def load_jinja() -> None:
    """Load jinja2 into Pyodide, where it is not there yet and the runtime has it; rendering says if it is missing."""
    if not IN_PYODIDE:
        return
    await pause()  # to import it takes time, as to make the tokenizer did
    try:
        import jinja2  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        import pyodide_js  # pyright: ignore[reportMissingImports]

        if hasattr(pyodide_js.lockfile.packages, "jinja2"):
            await pyodide_js.loadPackage("jinja2", messageCallback=lambda _: None, errorCallback=lambda _: None)


class ChatTemplates:
    """Mixin of tokenizers: `apply_chat_template`."""

    chat_template: str | dict[str, str] | None
    special_tokens_map: dict[str, str]

    def get_chat_template(self, chat_template: str | None = None, tools: Any = None) -> str:
        """The template to use: `chat_template` itself, or the one of that name, or the tokenizer's own.

        Raises InputError where there is none.
        """
        own = self.chat_template
        if isinstance(own, dict):
            if chat_template in own:
                return own[chat_template]
            if chat_template is None:
                name = "tool_use" if tools is not None and "tool_use" in own else "default"
                if name not in own:
                    raise InputError("There is no default chat template.", hint=f"Name one of: {', '.join(own)}.")
                return own[name]
        if chat_template is not None:
            return chat_template
        if not isinstance(own, str):
            raise InputError(
                "The tokenizer has no chat template.", hint="Give chat_template=, or a text in place of messages."
            )
        return own

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        padding: bool | str = False,
        truncation: bool | str = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        return_dict: bool = True,
        return_assistant_tokens_mask: bool = False,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        **variables: Any,
    ) -> Any:
        """Text, or tokens, of a conversation (a list of {"role", "content"}), or of several.

        tools: functions with type hints and docstrings, or JSON schemas of them. documents: {"title", "text"} for
        retrieval.
        add_generation_prompt: add what tells the model to answer. continue_final_message: leave the last message open.
        tokenize: a BatchEncoding (the ids alone with return_dict=False) in place of text; padding, truncation,
        max_length, return_tensors and tokenizer_kwargs as in calling the tokenizer.
        return_assistant_tokens_mask: with "assistant_masks", 1 for the tokens in the template's generation blocks.
        variables: others that the template knows.

        Raises InputError for messages that the template refuses, ConfigError for a broken template.
        """
        chats, batched = _conversations(conversation)
        if add_generation_prompt and continue_final_message:
            raise InputError("Either a new message begins (add_generation_prompt) or the last continues, not both.")
        if return_assistant_tokens_mask and not (tokenize and return_dict):
            raise InputError("return_assistant_tokens_mask needs tokenize=True and return_dict=True.")
        source = self.get_chat_template(chat_template, tools)
        names = {**self.special_tokens_map, **variables}
        names |= {"tools": _descriptions(tools), "documents": None if documents is None else list(documents)}
        rendered = [
            render(source, chat, add_generation_prompt, continue_final_message, return_assistant_tokens_mask, **names)
            for chat in chats
        ]
        texts = [text for text, _ in rendered]
        if not tokenize:
            return texts if batched else texts[0]
        options = {"padding": padding, "truncation": truncation, "max_length": max_length}
        options |= {"return_tensors": return_tensors, "add_special_tokens": False, **(tokenizer_kwargs or {})}
        encoded = self(texts if batched else texts[0], **options)  # pyright: ignore[reportCallIssue]
        if return_assistant_tokens_mask:
            masks = [
                _mask(encoding.offsets, spans) for encoding, (_, spans) in zip(encoded.encodings, rendered, strict=True)
            ]
            encoded["assistant_masks"] = masks if batched or return_tensors else masks[0]
            if return_tensors:
                encoded = encoded.convert_to_tensors(return_tensors)
        return encoded if return_dict else encoded["input_ids"]


def render(
    source: str,
    messages: list[Any],
    add_generation_prompt: bool = False,
    continue_final_message: bool = False,
    track_assistant: bool = False,
    **variables: Any,
) -> tuple[str, list[tuple[int, int]]]:
    """The text of a conversation, and where in it the assistant speaks (if that is tracked)."""
    jinja2, template = _jinja(), _compile(source)
    shown = messages
    if continue_final_message:
        shown = [*messages[:-1], continued(messages[-1], f"{_OPEN} ")]
    try:
        text = template.render(
            messages=shown, add_generation_prompt=add_generation_prompt, track_assistant=track_assistant, **variables
        )
    except InputError:
        raise
    except jinja2.exceptions.SecurityError as error:
        raise ConfigError(f"The chat template does what the sandbox forbids: {error}.") from error
    except jinja2.exceptions.TemplateError as error:
        raise ConfigError(f"The chat template fails: {error}.", hint="Check the messages and variables.") from error
    except (TypeError, LookupError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
        raise InputError(f"The chat template cannot render these messages: {error}.") from error
    if continue_final_message:
        text = _cut_at_mark(text, messages[-1])
    return _spans(text)


def _jinja() -> Any:
    try:
        import jinja2.sandbox
    except ImportError as error:
        raise UnsupportedError(
            "Chat templates need the package jinja2, which cannot be imported here.",
            hint='In Pyodide: await pyodide.loadPackage("jinja2"). Elsewhere: pip install jinja2.',
        ) from error
    return jinja2


@lru_cache(maxsize=16)
def _compile(source: str) -> Any:
    jinja2 = _jinja()
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation_extension()]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except (jinja2.exceptions.TemplateError, SyntaxError, ValueError, MemoryError, RecursionError) as error:
        # The others come of the Python code that Jinja makes of it, and of constants that Jinja computes.
        raise ConfigError(f"The chat template is no valid template: {error}.") from error


@lru_cache(maxsize=1)
def _generation_extension() -> Any:
    """The extension for `{% generation %}...{% endgeneration %}`, which marks what the assistant says."""
    jinja2 = _jinja()
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        @jinja2.pass_context
        def _mark(self, context: Any, caller: Any) -> str:
            text = caller()
            return f"{_BEGIN}{text}{_END}" if context.get("track_assistant") else text

    return Generation


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes what HTML would take for markup.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise InputError(f"The chat template refuses the messages: {message}")


def _conversations(conversation: Any) -> tuple[list[list[Any]], bool]:
    """Conversations, and whether there were several. Keys without a value are left out of messages."""
    if not isinstance(conversation, list | tuple) or not conversation:
        raise InputError(
            "A conversation is a list of messages, not empty.", hint='As in [{"role": "user", "content": "Hello"}].'
        )
    batched = isinstance(conversation[0], list | tuple)
    chats = [list(chat) for chat in conversation] if batched else [list(conversation)]
    for message in (message for chat in chats for message in chat):
        if not isinstance(message, Mapping) or message.get("role") is None:
            raise InputError(f"A message is an object with a role and content, not {message!r:.80}.")
    chats = [[{key: v for key, v in message.items() if v is not None} for message in chat] for chat in chats]
    return chats, batched


def _descriptions(tools: Sequence[Any] | None) -> list[Any] | None:
    if tools is None:
        return None
    for tool in tools:
        if not isinstance(tool, Mapping) and not callable(tool):
            raise InputError(
                f"A tool is a function, or a JSON schema (a dict) of one, not {tool!r:.60}.",
                hint='As in {"type": "function", "function": {"name": ..., "parameters": {...}}}.',
            )
    return [tool if isinstance(tool, Mapping) else describe(tool) for tool in tools]


def _spans(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Text without the marks of the assistant's parts, and where those are."""
    spans: list[tuple[int, int]] = []
    parts = text.split(_BEGIN)
    plain = parts[0]
    for part in parts[1:]:
        said, _, rest = part.partition(_END)
        spans.append((len(plain), len(plain) + len(said)))
        plain += said + rest
    return plain, spans


def continued(message: Mapping[str, Any], text: str) -> dict[str, Any]:
    """A message with more text behind its own, or its last one of several. Raises InputError if it has none."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + text}
    parts = list(content) if isinstance(content, list | tuple) else []
    for i, part in reversed(list(enumerate(parts))):
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            parts[i] = {**part, "text": part["text"] + text}
            return {**message, "content": parts}
    raise InputError("The last message has no text that could be continued.")


def _cut_at_mark(text: str, message: Mapping[str, Any]) -> str:
    """What was rendered before the mark behind the text of the last message, without what closes that."""
    content = message["content"]
    texts = [part.get("text") for part in content if isinstance(part, Mapping)] if not isinstance(content, str) else []
    said = content if isinstance(content, str) else [text for text in texts if isinstance(text, str)][-1]
    before, mark, after = text.rpartition(_OPEN)
    if not mark or not before.rstrip().endswith(said.strip()):
        raise InputError(
            "The last message does not stand in the rendered text as it is, so it cannot be continued.",
            hint="Some templates change messages; render without continue_final_message.",
        )
    # Where the space behind the mark is gone, the template trims, and would do so without the mark.
    trimmed = len(said) - len(said.rstrip()) if said.strip() and not after.startswith(" ") else 0
    return before[: len(before) - trimmed]


def _mask(offsets: Sequence[tuple[int, int]], spans: list[tuple[int, int]]) -> list[int]:
    """1 for tokens that lie in a span at least in part."""
    return [int(any(a < stop and b > start for start, stop in spans)) for a, b in offsets]
