"""Cases A, the pure part: what goes out to a provider, and what its answers and failures mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import MESSAGES, AssistantMessage, CallPart, ThinkingPart, ToolMessage, UserMessage, text
from perdure.model_call import Finish, ModelReply, ModelRequest, RawCall, RawText, RawThinking
from providers import REGISTRY
from providers.base import WireRequest, WireResponse, adapted
from providers.chat.adaptation import adaptation
from providers.chat.provider import ChatCompletions
from providers.chat.request import Quirks

GOLDEN = Path(__file__).parents[1] / "providers" / "golden" / "chat_completions"
NOW = 1_788_264_000.0
"""Tue, 01 Sep 2026 12:00:00 GMT."""
COMPATIBLE = ChatCompletions("compatible", Quirks(merge_turns=True))


def recorded(case: str) -> bytes:
    """A recorded body."""
    return (GOLDEN / f"{case}.response.json").read_bytes()


def parse(body: bytes, provider: ChatCompletions = COMPATIBLE) -> ModelReply:
    """The reply of a whole body."""
    return provider.parse(WireResponse(200, {"content-type": "application/json"}, body))


def stored(reply: ModelReply) -> AssistantMessage:
    """A reply as a run stores it, with details untouched and calls under ids of its own."""
    parts: list[Any] = []
    for number, part in enumerate(reply.parts, 1):
        details = dict(part.details) if part.details else None
        if isinstance(part, RawThinking):
            parts.append(ThinkingPart(type="thinking", text=part.text, details=details))
        elif isinstance(part, RawText):
            parts += text(part.text)
        else:
            arguments = json.loads(part.arguments) if isinstance(part.arguments, str) else {}
            parts.append(CallPart(type="call", id=f"r{number}", tool=part.tool, arguments=arguments, details=details))
    # Through JSON and back, as history, a restart and continue-as-new take it.
    message = AssistantMessage(role="assistant", parts=tuple(parts))
    return AssistantMessage.model_validate_json(message.model_dump_json())


def sent(messages: tuple[Any, ...], provider: ChatCompletions = COMPATIBLE, **fields: Any) -> list[dict[str, Any]]:
    """The messages of the request."""
    asked = ModelRequest(**{"model": "m", "instructions": "", "messages": messages, **fields})
    wire: list[dict[str, Any]] = provider.build(asked).body["messages"]
    return wire


def user(words: str) -> UserMessage:
    """A user message."""
    return UserMessage(role="user", parts=text(words))


def answers(message: AssistantMessage) -> tuple[ToolMessage, ...]:
    """A result for each call of a reply."""
    return tuple(ToolMessage(role="tool", call=call.id, parts=text("3")) for call in message.calls)


# 2


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7),
        ("0", 0),
        ("2.5", 2.5),
        ("Tue, 01 Sep 2026 12:00:09 GMT", 9),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("Tue, 01 Sep 2026 12:00:09 -0000", 9),
        ("Tuesday, 01-Sep-26 12:00:09 GMT", 9),
        ("Fri, 31 Dec 99999 23:59:59 GMT", None),
        ("soon", None),
        ("", None),
        ("-3", None),
        ("nan", None),
        ("1e309", None),
        ("7_0", None),
        ("86400", 3600),
    ],
)
def test_2_retry_after(value: str, seconds: float | None) -> None:
    """Every form of Retry-After is read, refused or capped, and none crashes."""
    error = COMPATIBLE.failure(WireResponse(429, {"Retry-After": value}, b""), NOW)
    assert error.retry_after == seconds


def test_2_retry_after_in_milliseconds() -> None:
    """The finer header is read too."""
    assert COMPATIBLE.failure(WireResponse(429, {"retry-after-ms": "250"}, b""), NOW).retry_after == 0.25


# 3


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, '{"error":{"type":"invalid_request_error","message":"tools.0: bad schema"}}', "invalid_request"),
        (401, "any", "authentication"),
        (403, "{}", "authentication"),
        (404, '{"error":{"message":"no such model"}}', "not_found"),
        (400, '{"error":{"code":"context_length_exceeded","message":"too long"}}', "context_length"),
        (413, '{"error":{"message":"prompt is too long"}}', "context_length"),
        (408, "", "timeout"),
        (409, "", "server"),
        (425, "", "server"),
        (429, '{"error":{"type":"rate_limit_error"}}', "rate_limit"),
        (
            429,
            '{"error":{"code":"insufficient_quota","message":"You exceeded your quota"}}',
            "quota",
        ),
        (500, "", "server"),
        (502, "<html>bad gateway</html>", "server"),
        (503, "", "overloaded"),
        (504, "", "timeout"),
        *((status, "", "server") for status in (520, 521, 523)),
        *((status, "", "timeout") for status in (522, 524)),
        (529, '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "overloaded"),
        (418, "", "invalid_request"),
    ],
)
def test_3_which_failures_are_worth_another_try(status: int, body: str, kind: str) -> None:
    """One table gives each status and body its kind, and the status and the words are kept."""
    error = COMPATIBLE.failure(WireResponse(status, {}, body.encode()), NOW)
    assert (error.kind, error.status) == (ErrorKind(kind), status)
    assert f"compatible: HTTP {status}" in str(error)


# 5 and 7: opaque parts


def test_5_a_signature_goes_back_to_its_call_and_to_nobody_else() -> None:
    """The signature comes back byte for byte on its call; another provider does not get it."""
    message = stored(parse(recorded("gemini_signature")))
    other = CallPart(type="call", id="r9", tool="add", arguments={"a": 1})
    message = message.model_copy(update={"parts": (*message.parts, other)})
    first, second = sent((user("U"), message, *answers(message)))[1]["tool_calls"]
    assert first["extra_content"] == {"google": {"thought_signature": "c2lnLUE="}}
    assert "extra_content" not in second
    foreign = sent((user("U"), message, *answers(message)), ChatCompletions("openai-chat"))
    assert "c2lnLUE=" not in json.dumps(foreign)


@pytest.mark.parametrize(
    ("provider", "echoed"),
    [
        (ChatCompletions("srv"), "need the sum"),
        (ChatCompletions("srv", Quirks(reasoning="require")), "need the sum"),
        (ChatCompletions("srv", Quirks(reasoning="omit")), None),
    ],
)
def test_7_reasoning_content_is_a_setting(provider: ChatCompletions, echoed: str | None) -> None:
    """A server that demands its reasoning back and one that refuses it are both served."""
    message = stored(parse(recorded("deepseek_reasoning"), provider))
    assert sent((user("U"), message, *answers(message)), provider)[1].get("reasoning_content") == echoed


# 10


def test_10_a_call_without_a_result() -> None:
    """(a) An error result is put in, directly after the calls and in their order."""
    calls = AssistantMessage(
        role="assistant", parts=tuple(CallPart(type="call", id=i, tool="list_tasks") for i in ("t1", "t2"))
    )
    wire = sent((user("U"), calls, ToolMessage(role="tool", call="t2", parts=text("none")), user("go on")))
    assert [(m["role"], m.get("tool_call_id"), m["content"]) for m in wire[2:]] == [
        ("tool", "t1", "interrupted, not executed"),
        ("tool", "t2", "none"),
        ("user", None, "go on"),
    ]


def test_10_a_result_without_a_call() -> None:
    """(b) It is left out of the request, and the conversation keeps it."""
    history = (user("U"), ToolMessage(role="tool", call="t9", parts=text("none")))
    assert [m["role"] for m in sent(history)] == ["user"]
    assert len(history) == 2


def test_10_a_call_without_an_id() -> None:
    """(c) Both halves get the same minted id, and the real output is kept."""
    body = {
        "choices": [
            {
                "message": {"tool_calls": [{"id": "", "function": {"name": "list_tasks", "arguments": "{}"}}]},
                "finish_reason": "tool_calls",
            }
        ]
    }
    message = stored(parse(json.dumps(body).encode()))
    history = (user("U"), message, ToolMessage(role="tool", call=message.calls[0].id, parts=text("none")))
    _, calls, result = sent(history)
    assert calls["tool_calls"][0]["id"] == result["tool_call_id"] != ""
    assert result["content"] == "none"


# 12

MIXED = tuple(
    MESSAGES.validate_python(
        [
            {"role": role, "parts": [{"type": "text", "text": words}]}
            for role, words in [
                ("system", "S1"),
                ("user", "U1"),
                ("user", "U2"),
                ("assistant", "A1"),
                ("system", "S2"),
                ("user", "U3"),
            ]
        ]
    )
)


@pytest.mark.parametrize(
    ("quirks", "turns"),
    [
        (
            Quirks(),
            [
                ("system", "S1\n\nS2"),
                ("user", "U1"),
                ("user", "U2"),
                ("assistant", "A1"),
                ("user", "U3"),
            ],
        ),
        (
            Quirks(merge_turns=True),
            [("system", "S1\n\nS2"), ("user", "U1\n\nU2"), ("assistant", "A1"), ("user", "U3")],
        ),
        (
            Quirks(merge_turns=True, system="user"),
            [("user", "S1\n\nS2\n\nU1\n\nU2"), ("assistant", "A1"), ("user", "U3")],
        ),
    ],
    ids=["system first", "strict alternation", "no system role"],
)
def test_12_where_the_system_prompt_may_stand(quirks: Quirks, turns: list[tuple[str, str]]) -> None:
    """Both system texts arrive, the order of the rest stays, nothing is invented except separators."""
    wire = sent(MIXED, ChatCompletions("srv", quirks))
    assert [(turn["role"], turn["content"]) for turn in wire] == turns


def test_12_no_system_role_and_no_user_yet() -> None:
    """Instructions alone become a user message."""
    provider = ChatCompletions("srv", Quirks(system="user"))
    assert sent((), provider, instructions="I") == [{"role": "user", "content": "I"}]


# 13


@pytest.mark.parametrize(
    ("case", "parts", "announced"),
    [
        (
            "stop_with_calls",
            (RawText("ok"), RawCall("add", '{"a":1,"b":2}', {"provider": "compatible", "id": "c1"})),
            False,
        ),
        ("announced_empty_list", (RawText("I will read the file first."),), True),
        ("announced_null", (), True),
        ("null_finish", (RawText("done"),), False),
    ],
)
def test_13_a_finish_reason_that_contradicts_the_message(case: str, parts: tuple[Any, ...], announced: bool) -> None:
    """Calls are kept whatever the reason; a reason without calls is told to the loop; a missing one is fine."""
    reply = parse(recorded(case))
    assert (reply.parts, reply.finish, reply.announced_calls) == (parts, Finish.STOP, announced)


# 17


def refuses(body: dict[str, Any]) -> WireResponse | None:
    """A server that takes `max_tokens` and a temperature only for gpt-4o."""
    if body["model"] == "gpt-4o":
        return None
    if "max_tokens" in body:
        return WireResponse(400, {}, recorded("unsupported_parameter"))
    if "temperature" in body:
        error = {"message": "no", "param": "temperature", "code": "unsupported_value"}
        return WireResponse(400, {}, json.dumps({"error": error}).encode())
    return None


@pytest.mark.parametrize("model", ["gpt-5-mini", "openai/gpt-5-mini", "cf/openai/o4-mini", "gpt-4o", "my-proxy-model"])
@pytest.mark.parametrize("name", ["openai-chat", "compatible"])
def test_17_parameters_that_some_models_refuse(name: str, model: str) -> None:
    """Every model answers without guessing from its name, after at most one change for each refused parameter."""
    provider = REGISTRY[name].provider
    assert isinstance(provider, ChatCompletions)
    wire: WireRequest = provider.build(ModelRequest(model, "", (user("U"),), max_tokens=50))
    changes: dict[str, str | None] = {}
    if refusal := refuses(dict(wire.body)):
        assert provider.failure(refusal, NOW).kind is ErrorKind.INVALID_REQUEST
        changes = adaptation(wire, refusal)
    remembered = adapted(wire, changes)
    assert refuses(dict(remembered.body)) is None
    assert 50 in (remembered.body.get("max_tokens"), remembered.body.get("max_completion_tokens"))
    assert name == "compatible" or not changes


# 18


def test_18_a_gateways_page() -> None:
    """Two megabytes of HTML become one short line that names the status, and no credentials."""
    page = b" " * 2_000_000 + b"<html><body>error code: 502 at http://user:hunter2@127.0.0.1:9/v1</body></html>"
    for body in (page, page.strip() + b" " * 2_000_000):
        error = COMPATIBLE.failure(WireResponse(502, {"content-type": "text/html"}, body), NOW)
        assert error.kind is ErrorKind.SERVER
        assert len(str(error)) <= 540
        assert "HTTP 502" in str(error)
        assert "error code: 502" in str(error)
        assert "hunter2" not in str(error)
        assert "<" not in str(error)


def test_18_a_page_with_status_200() -> None:
    """A page in place of a reply is an error that names the content type."""
    with pytest.raises(ProviderError, match="text/html") as caught:
        COMPATIBLE.parse(WireResponse(200, {"Content-Type": "text/html"}, b"<html>login</html>"))
    assert caught.value.kind is ErrorKind.MALFORMED
