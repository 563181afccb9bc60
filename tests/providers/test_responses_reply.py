"""Replies in the Responses format: recorded bodies and streams, judged by the vendor's own types as well."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

import genai_prices
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseError

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import Usage
from perdure.model_call import Finish, ModelReply, ModelRequest, RawCall, RawText, RawThinking
from providers.base import WireResponse
from providers.responses.provider import Responses
from tests.providers.conversations import stored

GOLDEN = Path(__file__).parent / "golden" / "responses"
OPENAI = Responses("openai")
OWN = {"provider": "openai"}


def parsed(body: bytes) -> ModelReply:
    """The reply of a whole body."""
    return OPENAI.parse(WireResponse(200, {"content-type": "application/json"}, body))


def whole(output: list[Any], **fields: Any) -> ModelReply:
    """The reply of a whole body with these items."""
    return parsed(json.dumps({"status": "completed", "output": output, **fields}).encode())


def call(tool: str, arguments: Any, call_id: str, **details: Any) -> RawCall:
    """A call of the server."""
    return RawCall(tool, arguments, {**OWN, "id": call_id, **details})


def thought(number: int, following: str, encrypted: str = "ZW5j", *summary: str) -> RawThinking:
    """Reasoning that goes back."""
    told = [{"type": "summary_text", "text": text} for text in summary]
    item = {"type": "reasoning", "id": f"rs_{number}", "summary": told, "encrypted_content": encrypted}
    return RawThinking("\n\n".join(summary), {**OWN, "item": item, "next": following})


def searched(number: int) -> RawThinking:
    """A web search that goes back."""
    action = {"type": "search", "query": "oslo weather", "queries": ["oslo weather"]}
    item = {"id": f"ws_{number}", "type": "web_search_call", "status": "completed", "action": action}
    return RawThinking("", {**OWN, "item": item, "after_reasoning": True})


def reply(*parts: Any, finish: Finish = Finish.STOP, model: str = "gpt-5-mini-2026-03-01", **usage: int) -> ModelReply:
    """A reply with its usage."""
    return ModelReply(parts, finish, Usage(**{"input_tokens": 12, "output_tokens": 3, **usage}), model=model)


COMMENTARY = {"type": "message", "role": "assistant", "content": "Let me see.", "phase": "commentary"}
BODIES = {
    "plain": reply(RawText("Hello"), cached_tokens=4, reasoning_tokens=1),
    "reasoning_call": reply(
        thought(1, "call_1", "ZW5j", "**Adding**\n\nNeed the sum.", "Call the tool."),
        call("add", '{"a":1,"b":1}', "call_1"),
        input_tokens=50,
        output_tokens=27,
        reasoning_tokens=20,
    ),
    "parallel_calls": reply(
        RawText("Both at once."),
        call("get_weather", '{"city":"Oslo"}', "call_1"),
        call("add", '{"a":1,"b":2}', "call_2"),
    ),
    "refusal": reply(RawText("I cannot help with that."), finish=Finish.REFUSED, input_tokens=9, output_tokens=6),
    "cut_by_length": reply(RawText("Once upon"), finish=Finish.LENGTH),
    "cut_call": reply(
        thought(1, "call_1"),
        call("write_file", '{"path":"a.py","content":"line1\\nli', "call_1"),
        finish=Finish.LENGTH,
    ),
    "cut_in_reasoning": reply(RawThinking("", OWN), finish=Finish.LENGTH, output_tokens=64, reasoning_tokens=64),
    "filtered": reply(RawText("Blue"), finish=Finish.FILTERED),
    "web_search": reply(
        thought(1, "web_search_call", "ZW5jMQ=="),
        searched(1),
        thought(2, "web_search_call", "ZW5jMg==", "Compare."),
        searched(2),
        RawText("9 C in Oslo."),
        input_tokens=1100,
        cached_tokens=1000,
        output_tokens=80,
        reasoning_tokens=40,
    ),
    "commentary": reply(
        RawThinking("Let me see.", {**OWN, "item": COMMENTARY}),
        thought(1, "message"),
        RawText('{"n":4}', {**OWN, "phase": "final_answer"}),
    ),
    "commentary_call": reply(
        thought(1, "message"),
        RawText("I add them.", {**OWN, "phase": "commentary"}),
        call("add", '{"a":1,"b":2}', "call_1", caller={"type": "direct"}),
    ),
    "open_weights": reply(
        RawThinking(
            "2+2",
            {
                **OWN,
                "item": {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": "2+2"}],
                },
                "next": "message",
            },
        ),
        RawText("4"),
        model="gpt-oss",
    ),
}


def judged(response: Response, got: ModelReply) -> None:
    """Raise where the vendor's own reading of a response is another than ours."""
    calls = [(item.name, item.arguments, item.call_id) for item in response.output if item.type == "function_call"]
    assert [(c.tool, c.arguments, c.details and c.details["id"]) for c in got.parts if isinstance(c, RawCall)] == calls
    final = [item for item in response.output if item.type == "message"][-1:]
    texts = [c.text if c.type == "output_text" else c.refusal for item in final for c in item.content]
    assert "".join(texts) == "".join(part.text for part in got.parts if isinstance(part, RawText))
    cut = {"max_output_tokens": Finish.LENGTH, "content_filter": Finish.FILTERED}
    reason = response.incomplete_details and response.incomplete_details.reason
    refused = any(c.type == "refusal" for item in final for c in item.content)
    assert got.finish is (Finish.REFUSED if refused else cut[reason] if reason else Finish.STOP)
    assert response.usage
    assert got.usage == Usage(
        input_tokens=response.usage.input_tokens,
        cached_tokens=response.usage.input_tokens_details.cached_tokens,
        output_tokens=response.usage.output_tokens,
        reasoning_tokens=response.usage.output_tokens_details.reasoning_tokens,
    )
    priced = genai_prices.extract_usage(
        {"model": "gpt-5-mini", "usage": response.usage.model_dump()}, provider_id="openai", api_flavor="responses"
    ).usage
    assert (got.usage.input_tokens, got.usage.cached_tokens) == (priced.input_tokens, priced.cache_read_tokens or 0)
    assert (got.usage.output_tokens, got.usage.reasoning_tokens) == (
        priced.output_tokens,
        priced.output_reasoning_tokens or 0,
    )


@pytest.mark.parametrize("case", BODIES)
def test_golden_bodies(case: str) -> None:
    """Each recorded body gives its reply, and the vendor reads the same in it."""
    body = (GOLDEN / f"{case}.response.json").read_bytes()
    got = parsed(body)
    assert got == BODIES[case]
    judged(Response.model_validate_json(body), got)


def test_every_golden_body_is_read() -> None:
    """No recorded body lies unused."""
    assert {path.name.removesuffix(".response.json") for path in GOLDEN.glob("*.response.json")} == set(BODIES)


FAILED: dict[str, Any] = {"status": "failed", "output": []}


TRANSIENT = {
    "server_error": ErrorKind.SERVER,
    "rate_limit_exceeded": ErrorKind.RATE_LIMIT,
    "vector_store_timeout": ErrorKind.TIMEOUT,
}


@pytest.mark.parametrize("code", typing.get_args(ResponseError.model_fields["code"].annotation))
def test_a_failed_response_is_worth_another_try_or_not(code: str) -> None:
    """Every code that the vendor's types know has its kind, and the words are kept."""
    body = json.dumps({**FAILED, "error": {"code": code, "message": "the words"}}).encode()
    with pytest.raises(ProviderError, match="openai: the words") as caught:
        parsed(body)
    assert caught.value.kind is TRANSIENT.get(code, ErrorKind.INVALID_REQUEST)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"error":{"message":"m","code":503}}', ErrorKind.OVERLOADED),
        (b'{"error":{"message":"m","code":"invalid_api_key"},"output":[]}', ErrorKind.AUTHENTICATION),
        (b"{}", ErrorKind.MALFORMED),
        (b"[]", ErrorKind.MALFORMED),
        (b'{"choices":[{"message":{"content":"another format"}}]}', ErrorKind.MALFORMED),
        (b'{"status":"completed","output":[]}', ErrorKind.MALFORMED),
        (b'{"status":"completed","output":null}', ErrorKind.MALFORMED),
        (
            b'{"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":""}]}]}',
            ErrorKind.MALFORMED,
        ),
        (b'{"status":"completed","output":[{"type":"mess', ErrorKind.MALFORMED),
        (b"[" * 100_000, ErrorKind.MALFORMED),
        (b'{"status":"cancelled","output":[]}', ErrorKind.SERVER),
        (b'{"status":"queued","output":[],"background":true}', ErrorKind.CONFIGURATION),
        (b'{"status":"in_progress","background":true}', ErrorKind.CONFIGURATION),
        (b'{"status":"in_progress","output":[{"type":"message","content":"x"}]}', ErrorKind.MALFORMED),
        (b'{"status":"odd","output":[{"type":"message","content":"x"}]}', ErrorKind.MALFORMED),
        (b'{"status":"incomplete","incomplete_details":{"reason":"odd"},"output":[]}', ErrorKind.MALFORMED),
        (b" \n", ErrorKind.TRUNCATED_STREAM),
    ],
)
def test_bodies_that_are_no_reply(body: bytes, kind: ErrorKind) -> None:
    """An error within a 200, a response that has not ended, and everything that is no response."""
    with pytest.raises(ProviderError) as caught:
        parsed(body)
    assert caught.value.kind is kind


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        (None, Finish.LENGTH),
        ("max_output_tokens", Finish.LENGTH),
        ("max_messages", Finish.LENGTH),
        ("content_filter", Finish.FILTERED),
    ],
)
def test_an_incomplete_reply_is_never_a_stop(reason: str | None, finish: Finish) -> None:
    """Nor is it an error where nothing was said before the cut."""
    assert whole([], status="incomplete", incomplete_details={"reason": reason}).finish is finish


SHELL = {"type": "shell_call", "id": "sh_1", "call_id": "s1", "action": {"commands": ["ls"]}}


@pytest.mark.parametrize(
    "item",
    [
        {"type": "custom_tool_call", "call_id": "x1", "name": "t", "input": ""},
        {"type": "computer_call", "call_id": "x1", "id": "cu_1"},
        {"type": "mcp_approval_request", "id": "ar_1", "name": "t"},
        SHELL,
    ],
)
def test_calls_that_no_agent_can_answer(item: dict[str, Any]) -> None:
    """They would be left open in the conversation for ever, so the run is told which tool to take away."""
    with pytest.raises(ProviderError, match=f"sent a '{item['type']}'.*take that tool out of params") as caught:
        whole([item])
    assert caught.value.kind is ErrorKind.CONFIGURATION


def test_what_the_server_did_itself_is_kept_as_it_came() -> None:
    """Items of its own tools go back in their order, without what the API only shows; an image is too large to keep."""
    output = {"type": "shell_call_output", "id": "so_1", "call_id": "s1", "output": [], "created_by": "server"}
    image = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "x" * 200_000}
    told = {"type": "message", "content": [{"type": "output_text", "text": "Done."}]}
    parts = whole([SHELL, output, image, told]).parts
    del output["created_by"]
    assert [p.details and p.details.get("item") for p in parts] == [SHELL, output, None]
    assert parts[-1] == RawText("Done.")


ITEMS = st.one_of(
    st.builds(
        lambda number, text: {
            "type": "reasoning",
            "id": f"rs_{number}",
            "summary": [{"type": "summary_text", "text": text}],
            "encrypted_content": f"ZW5j{number}",
        },
        st.integers(0, 99),
        st.text(max_size=5),
    ),
    st.builds(
        lambda text: {"type": "message", "content": [{"type": "output_text", "text": text}]}, st.text(min_size=1)
    ),
    st.builds(
        lambda number: {"type": "function_call", "call_id": f"call_{number}", "name": "t", "arguments": "{}"},
        st.integers(0, 99),
    ),
    st.builds(
        lambda number: {"type": "web_search_call", "id": f"ws_{number}", "status": "completed", "action": {}},
        st.integers(0, 99),
    ),
)


def identity(item: dict[str, Any]) -> Any:
    """What tells an item of a reply from another, on its way out and back."""
    content = item.get("content")
    told = content if isinstance(content, str) else "".join(part["text"] for part in content or ())
    return item.get("encrypted_content") or item.get("call_id") or item.get("id") or told


@given(st.lists(ITEMS, min_size=1, max_size=8, unique_by=identity))
def test_a_reply_goes_back_as_it_came(output: list[dict[str, Any]]) -> None:
    """Through parse, store and build every item comes back in its order, except reasoning at the very end."""
    message = stored(whole(output))
    wire = OPENAI.build(ModelRequest("m", "", (message,))).body["input"]
    back = [item for item in wire if item.get("type") != "function_call_output"]
    while output and output[-1]["type"] == "reasoning":
        output = output[:-1]
    assert [identity(item) for item in back] == [identity(item) for item in output]
    assert [item for item in back if item.get("type") == "reasoning"] == [i for i in output if i["type"] == "reasoning"]


@pytest.mark.parametrize(
    ("usage", "right"),
    [
        ({"input_tokens": 5, "output_tokens": 7}, Usage(input_tokens=5, output_tokens=7)),
        ({"input_tokens": 5, "input_tokens_details": {"cached_tokens": 9}}, Usage(input_tokens=5, cached_tokens=5)),
        ({"input_tokens": "5", "output_tokens": float("1e300"), "input_tokens_details": 3}, Usage()),
        (None, None),
        ("none", None),
    ],
)
def test_odd_usage(usage: Any, right: Usage | None) -> None:
    """Numbers that are none count nothing, and no usage is told from zero."""
    assert whole([{"type": "message", "content": "x"}], usage=usage).usage == right
