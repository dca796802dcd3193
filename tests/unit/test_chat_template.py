"""Chat templates: rendering, sandbox, tools, masks, continued messages."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from inpage.errors import ConfigError, InputError
from inpage.processing.tokenizer import PreTrainedTokenizer

TEMPLATE = """{% for m in messages %}
{%- if m.role == 'assistant' %}<a>{% generation %}{{ m.content }}<e>{% endgeneration %}
{%- else %}<{{ m.role[0] }}>{{ m.content }}<e>{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<a>{% endif %}"""
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " Yes. "}]


def tokenizer(template: Any = TEMPLATE, **settings: Any) -> PreTrainedTokenizer:
    alphabet = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    backend.decoder = decoders.ByteLevel()  # pyright: ignore
    return PreTrainedTokenizer(backend, chat_template=template, **settings)


def render(template: Any = TEMPLATE, chat: Any = None, **options: Any) -> Any:
    return tokenizer(template).apply_chat_template(chat or CHAT, tokenize=False, **options)


@pytest.mark.parametrize("name", ["qwen2", "llama-rope-llama3"])
def test_golden(name: str) -> None:
    folder = Path(__file__).parent.parent / "golden" / "tokenizers" / "chat" / name
    expected = json.loads((folder / "golden_tokenizer.json").read_text())["chat"]
    found = PreTrainedTokenizer.from_pretrained(str(folder))
    text = found.apply_chat_template(expected["messages"], tokenize=False, add_generation_prompt=True)
    assert text == expected["text"]
    assert found.apply_chat_template(expected["messages"], add_generation_prompt=True)["input_ids"] == expected["ids"]


def test_generation_prompt_and_batches() -> None:
    assert render(add_generation_prompt=True) == "<u>Hi<e><a> Yes. <e><a>"
    assert render(chat=[CHAT, CHAT[:1]]) == ["<u>Hi<e><a> Yes. <e>", "<u>Hi<e>"]


@pytest.mark.parametrize("content", ["Yes", " Yes. ", "", "\n", "e", "<e>", "Hi"])
def test_continue_final_message(content: str) -> None:
    chat = [CHAT[0], {"role": "assistant", "content": content}]
    assert render(chat=chat, continue_final_message=True) == f"<u>Hi<e><a>{content}"
    trimming = TEMPLATE.replace("<a>{%", "<a>\n{{ '' }}{%").replace("m.content", "m.content | trim")
    assert render(trimming, chat=chat, continue_final_message=True) == f"<u>Hi<e><a>\n{content.strip()}"


def test_continuing_a_message_of_parts() -> None:
    template = "{% for p in messages[-1].content %}{{ p.text if p.text else '<image>' }}{% endfor %}t"
    parts = [{"type": "text", "text": "t"}, {"type": "image"}]
    chat = [{"role": "assistant", "content": parts}]
    assert render(template, chat=chat, continue_final_message=True) == "t"
    assert parts[0]["text"] == "t"
    with pytest.raises(InputError, match="no text"):
        render(template, chat=[{"role": "assistant", "content": parts[1:]}], continue_final_message=True)


def test_the_mask_ends_where_a_message_is_continued() -> None:
    options: dict[str, Any] = {"return_assistant_tokens_mask": True, "continue_final_message": True}
    found = tokenizer().apply_chat_template([CHAT[0], {"role": "assistant", "content": "e"}], **options)
    assert found["assistant_masks"] == [0] * len("<u>Hi<e><a>") + [1]


def test_continuing_what_was_changed_is_refused() -> None:
    with pytest.raises(InputError, match="no text"):
        render("x", [{"role": "assistant", "content": ["x"]}], continue_final_message=True)
    with pytest.raises(InputError, match="does not stand"):
        render("{{ messages[-1].content | upper }}", continue_final_message=True)
    with pytest.raises(InputError, match="not both"):
        render(continue_final_message=True, add_generation_prompt=True)


def test_assistant_mask() -> None:
    found = tokenizer().apply_chat_template(CHAT, return_assistant_tokens_mask=True)
    text = "<u>Hi<e><a> Yes. <e>"
    assert found["assistant_masks"] == [int(i >= text.index(" Yes")) for i in range(len(text))]
    with pytest.raises(InputError, match="return_dict"):
        tokenizer().apply_chat_template(CHAT, return_assistant_tokens_mask=True, return_dict=False)


def test_environment() -> None:
    assert render("{{ {'b': '<ä>', 'a': [1]} | tojson }}") == '{"b": "<ä>", "a": [1]}'
    assert render("{{ messages | tojson(indent=1) }}").startswith('[\n {\n  "role"')
    assert render("{{ strftime_now('%Y') }}").isdigit()
    assert render("{% for m in messages %}{% break %}{% endfor %}x") == "x"
    assert render("{{ bos_token }}{{ colour }}", colour="red") == "red"
    with pytest.raises(InputError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ strftime_now.__globals__.sys }}",
        "{% for %}",
        "{% for m in messages %}" * 25 + "{% endfor %}" * 25,  # more than Python's compiler nests
        "{{ " + "(" * 1000 + ")" * 1000 + " }}",
        "{{ 10 ** 10000 }}",
    ],
    ids=lambda template: template[:30],
)
def test_unsafe_and_broken_templates_fail(template: str) -> None:
    with pytest.raises(ConfigError, match=r"sandbox|valid template"):
        render(template)


def test_keys_without_a_value_are_left_out() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}{% if m.content is defined %}={{ m.content }}{% endif %};{% endfor %}"
    )
    calls = [{"function": {"name": "f", "arguments": {"city": None}}}]
    chat = [{"role": "user", "content": ""}, {"role": "assistant", "content": None, "tool_calls": calls}]
    assert tokenizer("chat").apply_chat_template(chat, chat_template=template, tokenize=False) == "user=;assistant;"
    assert "content" in chat[1], "the caller's own stays as it is"


def test_tools_choose_their_template() -> None:
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | tojson }}"}]
    tool = {"type": "function", "function": {"name": "now", "parameters": {}}}
    assert render(templates) == "plain"
    assert json.loads(render(templates, tools=[tool])) == [tool]
    assert render(templates, chat_template="default", tools=[tool]) == "plain"
    assert render("{{ documents[0].title }}", documents=[{"title": "T", "text": ""}]) == "T"
    with pytest.raises(InputError, match="JSON schema"):
        render(templates, tools=["now"])


def test_a_function_is_a_tool() -> None:
    def now(zone: str) -> str:
        """Tell the time.

        Args:
            zone: Where.
        """
        raise NotImplementedError

    (found,) = json.loads(render("{{ tools | tojson }}", tools=[now]))
    assert found["function"]["name"] == "now"
    assert found["function"]["parameters"]["properties"] == {"zone": {"type": "string", "description": "Where."}}


@pytest.mark.parametrize("chat", [[], "Hello", [{"content": "x"}], ["x"]])
def test_refused_conversations(chat: Any) -> None:
    with pytest.raises(InputError, match=r"conversation|message"):
        tokenizer().apply_chat_template(chat)


def test_no_template() -> None:
    with pytest.raises(InputError, match="no chat template"):
        render(None)
