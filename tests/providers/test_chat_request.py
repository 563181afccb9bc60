"""Requests in the Chat Completions format, against recorded bodies and by rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import MESSAGES, Message
from perdure.model_call import ModelRequest, ToolDefinition
from providers import REGISTRY
from providers.chat.provider import ChatCompletions
from providers.chat.request import Quirks

GOLDEN = Path(__file__).parent / "golden" / "chat_completions"

ADD = ToolDefinition(
    name="add",
    description="Sum of two numbers.",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
)
CLOSED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
FREE = {"type": "object", "properties": {"fields": {"type": "object", "additionalProperties": {"type": "string"}}}}


def messages(*items: dict[str, Any]) -> tuple[Message, ...]:
    """Messages from their JSON, where a string stands for one text part."""
    read = [
        {
            **item,
            "parts": [{"type": "text", "text": item["parts"]}] if isinstance(item["parts"], str) else item["parts"],
        }
        for item in items
    ]
    return tuple(MESSAGES.validate_python(read))


def request(*items: dict[str, Any], **fields: Any) -> ModelRequest:
    """A request with these messages."""
    return ModelRequest(**{"model": "m", "instructions": "", "messages": messages(*items), **fields})


def call(call_id: str, **fields: Any) -> dict[str, Any]:
    """A call of `add` as a part."""
    return {"type": "call", "id": call_id, "tool": "add", "arguments": {"a": 1, "b": 2}, **fields}


def user(parts: Any = "U") -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "parts": parts}


def assistant(*parts: Any) -> dict[str, Any]:
    """A reply."""
    return {"role": "assistant", "parts": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}


def result(call_id: str, parts: Any = "3") -> dict[str, Any]:
    """A tool result."""
    return {"role": "tool", "call": call_id, "parts": parts}


IMAGE = {"type": "image", "base64": "aGk=", "media_type": "image/png"}
LINKED = {"type": "image", "url": "https://example.org/a.png"}
TEXT = {"type": "text", "text": "Look:"}

REQUESTS: dict[str, tuple[str, ModelRequest]] = {
    "plain": ("openai-chat", request(user("Hi"), model="gpt-5-mini", instructions="Be kind.", max_tokens=100)),
    "compatible_plain": ("compatible", request(user("Hi"), instructions="Be kind.", max_tokens=100)),
    "tools": (
        "openai-chat",
        request(user("1+2?"), tools=(ADD,), tool_choice="add", parallel_tools=False, output_schema=CLOSED),
    ),
    "tool_turn": (
        "compatible",
        request(
            user("1+2?"),
            assistant("Adding.", call("c1", details={"provider": "compatible", "id": "call_abc"}), call("c2")),
            result("c2", "three"),
            result("c1"),
            assistant("It is 3."),
            user("Thanks"),
            tools=(ADD,),
        ),
    ),
    "images": (
        "openai-chat",
        request(
            user([TEXT, IMAGE, LINKED]),
            assistant(call("c1"), call("c2")),
            result("c1", [TEXT, IMAGE]),
            result("c2", [LINKED]),
        ),
    ),
    "signature": (
        "compatible",
        request(
            user(),
            assistant(
                call(
                    "c1",
                    details={
                        "provider": "compatible",
                        "id": "g1",
                        "extra_content": {"google": {"thought_signature": "c2lnLUE="}},
                    },
                ),
                call("c2", details={"provider": "compatible", "id": "g2"}),
            ),
            result("c1"),
            result("c2"),
        ),
    ),
    "reasoning": (
        "compatible",
        request(
            user(),
            assistant(
                {
                    "type": "thinking",
                    "text": "need the sum",
                    "details": {"provider": "compatible", "reasoning_content": True},
                },
                call("c1"),
            ),
            result("c1"),
            assistant(
                {
                    "type": "thinking",
                    "text": "2+2",
                    "details": {"reasoning_details": [{"type": "reasoning.text", "text": "2+2", "signature": "c2ln"}]},
                },
                "4",
            ),
            user(),
        ),
    ),
    "free_output": ("compatible", request(user(), output_schema=FREE, params={"temperature": 0, "stream": False})),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_golden_requests(case: str) -> None:
    """Each request gives the recorded body."""
    name, asked = REQUESTS[case]
    provider = REGISTRY[name].provider
    assert isinstance(provider, ChatCompletions)
    wire = provider.build(asked)
    assert wire.path == "/chat/completions"
    assert wire.stream is wire.body["stream"]
    assert wire.body == json.loads((GOLDEN / f"{case}.request.json").read_text())


def body(asked: ModelRequest, **quirks: Any) -> dict[str, Any]:
    """The body of a request to a server with these quirks."""
    return dict(ChatCompletions("srv", Quirks(**quirks)).build(asked).body)


@pytest.mark.parametrize(
    ("choice", "wire"),
    [
        ("auto", None),
        ("required", "required"),
        ("none", "none"),
        ("add", {"type": "function", "function": {"name": "add"}}),
    ],
)
def test_tool_choice(choice: str, wire: Any) -> None:
    """`auto` is left out, a name becomes a function."""
    assert body(request(user(), tools=(ADD,), tool_choice=choice)).get("tool_choice") == wire


def test_nothing_of_tools_without_tools() -> None:
    """A request without tools says nothing of choice or parallel calls."""
    sent = body(request(user(), tool_choice="required", parallel_tools=False))
    assert not sent.keys() & {"tools", "tool_choice", "parallel_tool_calls"}


def test_params_win_and_none_removes() -> None:
    """What an author sets replaces what we set; None leaves a field out; the other name of a limit is not added."""
    sent = body(
        request(user(), max_tokens=10, params={"max_completion_tokens": 7, "stream_options": None, "top_p": 0.5})
    )
    assert sent["max_completion_tokens"] == 7
    assert sent["top_p"] == 0.5
    assert not sent.keys() & {"max_tokens", "stream_options", "temperature"}


def test_quirks_of_one_model() -> None:
    """A model can override single quirks, and a quirk that does not exist is named."""
    sent = body(request(user("U"), instructions="I", params={"quirks": {"system": "developer"}}))
    assert sent["messages"][0] == {"role": "developer", "content": "I"}
    assert "quirks" not in sent


@pytest.mark.parametrize(
    ("quirks", "words"),
    [
        ({"sistem": "x"}, "takes an object with max_tokens_field"),
        (["system"], "takes an object with max_tokens_field"),
        ({"system": "assistant"}, "system: Input should be 'system', 'developer' or 'user'"),
    ],
)
def test_quirks_that_do_not_exist(quirks: Any, words: str) -> None:
    """A wrong name or value is named with what is possible."""
    with pytest.raises(ProviderError, match=words) as caught:
        body(request(user(), params={"quirks": quirks}))
    assert caught.value.kind is ErrorKind.CONFIGURATION


def test_foreign_details_stay_at_home() -> None:
    """Ids, signatures and reasoning of another provider are not sent."""
    foreign = {"provider": "gemini", "id": "g1", "extra_content": {"x": 1}}
    thought = {"type": "thinking", "text": "t", "details": {"provider": "deepseek", "reasoning_content": True}}
    turn = body(request(user(), assistant(thought, call("c1", details=foreign)), result("c1")))["messages"][1]
    assert turn.keys() == {"role", "content", "tool_calls"}
    assert turn["tool_calls"][0].keys() == {"id", "type", "function"}
    assert turn["tool_calls"][0]["id"] == "c1"


def test_ids_on_the_wire_are_unique() -> None:
    """A server that uses an id twice, or one of ours, does not make two calls look like one."""
    turns = [
        assistant(call("c1", details={"id": "x"}), call("c2", details={"id": "x"}), call("c3", details={"id": "c4"})),
        assistant(call("c4", details={"id": ""})),
    ]
    sent = body(request(user(), *turns, result("c4")))["messages"]
    ids = [entry["id"] for turn in sent for entry in turn.get("tool_calls", ())]
    assert ids == ["x", "c2", "c4", "c4_2"]
    assert [turn["tool_call_id"] for turn in sent if turn["role"] == "tool"] == ids


def test_empty_messages_are_left_out() -> None:
    """A reply without text and calls, and a user message without parts, are not sent."""
    thought = {"type": "thinking", "text": "t", "details": {"reasoning_content": True}}
    sent = body(request(user(), assistant(), assistant(""), assistant(thought), user([]), user("again")))
    assert [turn["content"] for turn in sent["messages"]] == ["U", "again"]


def test_a_made_up_tool_name_is_sent_in_a_form_that_is_accepted() -> None:
    """A call of a name that the format forbids does not poison the conversation."""
    asked = request(user(), assistant(call("c1", tool="get weather!"), call("c2", tool=""), call("c3", tool="x" * 99)))
    names = [entry["function"]["name"] for entry in body(asked)["messages"][1]["tool_calls"]]
    assert names == ["get_weather_", "unnamed", "x" * 64]


def test_lone_surrogates_are_replaced() -> None:
    """A body can be encoded whatever the conversation holds."""
    asked = request(user("a \ud83d b"), assistant(call("c1", arguments={"a\udc97": "\ud83d"})), result("c1", "\udc97"))
    sent = json.dumps(body(asked), ensure_ascii=False).encode()
    assert sent.count("\ufffd".encode()) == 4


@pytest.mark.parametrize(
    ("reasoning", "sent"),
    [("echo", ["r", None]), ("require", ["r", ""]), ("omit", [None, None])],
)
def test_reasoning_is_a_setting(reasoning: str, sent: list[str | None]) -> None:
    """Servers that demand reasoning back and servers that refuse it are both served."""
    thought = {"type": "thinking", "text": "r", "details": {"reasoning_content": True}}
    asked = request(user(), assistant(thought, call("c1")), assistant(call("c2")), user())
    turns = body(asked, reasoning=reasoning)["messages"]
    assert [turn.get("reasoning_content") for turn in turns if turn["role"] == "assistant"] == sent


@pytest.mark.parametrize(
    ("output", "form"), [("json_schema", "json_schema"), ("json_object", "json_object"), ("instructions", None)]
)
def test_a_schema_is_always_told_in_words_too(output: str, form: str | None) -> None:
    """Servers enforce it without telling the model, ignore it, or refuse it."""
    sent = body(request(user(), instructions="I", output_schema=CLOSED), output=output)
    assert sent.get("response_format", {}).get("type") == form
    assert sent["messages"][0]["content"].startswith("I\n\nAnswer with one JSON object")
    assert json.dumps(CLOSED) in sent["messages"][0]["content"]


BLOB = {"type": "blob", "digest": "sha256:1", "size": 9, "preview": "p"}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (request(user([BLOB])), "blob sha256:1"),
        (request(user([IMAGE, BLOB])), "blob sha256:1"),
        (request(user(), assistant(BLOB)), "blob sha256:1"),
        (request(user(), assistant(call("c1")), result("c1", [BLOB])), "blob sha256:1"),
        (request({"role": "system", "parts": [IMAGE]}), "image cannot stand in a system message"),
        (request(user([{"type": "image", "base64": "aGk="}])), "media_type"),
        (request(user(), tools=(ADD,), tool_choice="sub"), "tool_choice 'sub' is none of the tools add"),
        (request(user(), tools=(ToolDefinition("a.b", "", {}),)), "tool 'a.b' cannot be offered"),
        (request(user(), tools=(ToolDefinition("x" * 65, "", {}),)), "cannot be offered"),
    ],
)
def test_what_the_format_cannot_say(asked: ModelRequest, words: str) -> None:
    """Each is refused before anything is sent, with its name."""
    with pytest.raises(ProviderError, match=words) as caught:
        body(asked)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST


def test_building_changes_nothing() -> None:
    """The same request gives the same body again, and stays as it was."""
    asked = REQUESTS["reasoning"][1]
    before = MESSAGES.dump_json(list(asked.messages))
    assert body(asked, merge_turns=True) == body(asked, merge_turns=True)
    assert MESSAGES.dump_json(list(asked.messages)) == before


DOCUMENT = {"type": "document", "base64": "aGk=", "media_type": "application/pdf", "name": "a.pdf"}
LINKED = {"type": "document", "url": "https://example.org/a.pdf"}


def test_documents_of_a_result_follow_it() -> None:
    """As a file where there are bytes, and in words where the format has no way for them: no result is refused."""
    asked = request(user(), assistant(call("c1")), result("c1", [DOCUMENT, LINKED, IMAGE]))
    answer, shown = body(asked)["messages"][-2:]
    assert (answer["role"], answer["content"]) == ("tool", "(files)")
    label, *files = shown["content"]
    assert label["text"] == "Files from the result of add (c1):"
    assert [part["type"] for part in files] == ["file", "text", "image_url"]
    assert files[1]["text"] == "(this document cannot be shown: https://example.org/a.pdf)"


@pytest.mark.parametrize("media_type", ["text/plain", "text/csv", "application/json"])
def test_a_text_as_document_is_sent_as_text(media_type: str) -> None:
    """Servers take no other file than a PDF."""
    given = {"type": "document", "base64": "aGk=", "media_type": media_type, "name": "a"}
    [message] = body(request(user([given])))["messages"]
    assert message["content"] == [{"type": "text", "text": "a:\nhi"}]
