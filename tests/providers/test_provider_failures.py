"""From status and body to a kind of error and words that can be shown."""

from __future__ import annotations

import json

import pytest

from perdure.errors import ErrorKind
from providers.base import WireResponse
from providers.failures import LONGEST_MESSAGE, failure, not_a_reply, reported


def response(status: int, body: object, **headers: str) -> WireResponse:
    """A response whose body is text as it is or JSON."""
    raw = body if isinstance(body, str) else json.dumps(body)
    return WireResponse(status, {name.replace("_", "-"): value for name, value in headers.items()}, raw.encode())


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"error": {"message": "This model's maximum context length is 4096 tokens"}}, ErrorKind.CONTEXT_LENGTH),
        (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}, ErrorKind.CONTEXT_LENGTH),
        (
            400,
            {"error": {"message": "Requested tokens (5000) exceed context window of 4096"}},
            ErrorKind.CONTEXT_LENGTH,
        ),
        (400, {"object": "error", "message": "prompt is too long: 210000 tokens > 200000"}, ErrorKind.CONTEXT_LENGTH),
        (413, "<html>413 Request Entity Too Large</html>", ErrorKind.CONTEXT_LENGTH),
        (429, {"error": {"message": "Request too large for gpt-x on tokens per min"}}, ErrorKind.CONTEXT_LENGTH),
        (402, {"error": {"message": "Insufficient Balance"}}, ErrorKind.QUOTA),
        (429, {"error": {"type": "insufficient_quota", "message": "x"}}, ErrorKind.QUOTA),
        (
            429,
            {"error": {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}}},
            ErrorKind.QUOTA,
        ),
        (400, {"error": {"message": "Your credit balance is too low"}}, ErrorKind.QUOTA),
        (
            429,
            {"error": {"status": "RESOURCE_EXHAUSTED", "message": "You exceeded your current quota"}},
            ErrorKind.RATE_LIMIT,
        ),
        (400, [{"error": {"code": 400, "details": [{"reason": "API_KEY_INVALID"}]}}], ErrorKind.AUTHENTICATION),
        (400, {"error": {"code": "model_not_found", "message": "no such model"}}, ErrorKind.NOT_FOUND),
        (422, {"detail": [{"loc": ["body"], "msg": "field required", "type": "missing"}]}, ErrorKind.INVALID_REQUEST),
        (410, "", ErrorKind.NOT_FOUND),
        (308, "", ErrorKind.INVALID_REQUEST),
        (500, {"error": {"type": "invalid_request_error", "message": "x"}}, ErrorKind.SERVER),
        (599, "", ErrorKind.SERVER),
    ],
)
def test_kinds(status: int, body: object, kind: ErrorKind) -> None:
    """Words of the body decide about quota and context; else the status does."""
    error = failure("compatible", response(status, body), 0.0)
    assert (error.kind, error.status) == (kind, status)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "provider disconnected", "code": 502}, ErrorKind.SERVER),
        ({"message": "slow down", "code": 429}, ErrorKind.RATE_LIMIT),
        ({"message": "slow down", "code": "rate_limit_exceeded"}, ErrorKind.RATE_LIMIT),
        ({"message": "bad", "type": "invalid_request_error"}, ErrorKind.INVALID_REQUEST),
        ({"type": "overloaded_error", "message": "Overloaded"}, ErrorKind.OVERLOADED),
        ({"code": "408"}, ErrorKind.TIMEOUT),
        ("it broke", ErrorKind.SERVER),
        ({"message": "the input exceeds the context window"}, ErrorKind.CONTEXT_LENGTH),
        ({"code": 401, "message": "no"}, ErrorKind.AUTHENTICATION),
    ],
)
def test_errors_within_a_success(error: object, kind: ErrorKind) -> None:
    """Without a status the codes of the body decide, and an unknown error may be tried again."""
    assert reported("compatible", error).kind is kind


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "tools.0: bad schema"}}, "tools.0: bad schema"),
        ({"error": "plain words"}, "plain words"),
        ({"message": "top level"}, "top level"),
        ({"detail": [{"msg": "field required"}]}, "field required"),
        ({"errors": [{"message": "first"}, {"message": "second"}]}, "first"),
        (
            {"error": {"message": "Provider returned error", "metadata": {"raw": "upstream says no"}}},
            "upstream says no",
        ),
        ("not json at all", "not json at all"),
        ("<html><style>p{}</style><body><p>error code:\n 502</p></body></html>", "error code: 502"),
        ("", "no text"),
        ("[" * 100_000, "["),
    ],
)
def test_the_upstream_words_are_kept(body: object, words: str) -> None:
    """The provider's own message reaches the reader, with provider and status in front."""
    message = str(failure("compatible", response(502, body), 0.0))
    assert message.startswith("compatible: HTTP 502: ")
    assert words in message
    assert len(message) < LONGEST_MESSAGE + 40


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdefghijklmnop",
        "AIzaSyA1234567890abcdefgh",
        "Bearer abcdef.ghijkl",
        "http://user:hunter2@host/v1",
        "https://host/v1?api_key=abcdefghij",
        "gsk_abcdefghijklmnop",
    ],
)
def test_no_credentials(secret: str) -> None:
    """What looks like a key or a password does not reach a message."""
    message = str(failure("openai-chat", response(401, {"error": {"message": f"Incorrect: {secret} given"}}), 0.0))
    assert secret not in message
    assert "hunter2" not in message
    assert "***" in message
    assert message.endswith("given")


def test_waits_and_request_ids() -> None:
    """Headers win over the wait in the body; the request id is kept."""
    body = {"error": {"code": 429, "details": [{"@type": "x/RetryInfo", "retryDelay": "34s"}]}}
    assert failure("x", response(429, body), 0.0).retry_after == 34
    error = failure("x", response(429, body, Retry_After="5", X_Request_Id="req_1"), 0.0)
    assert (error.retry_after, error.request_id) == (5, "req_1")


def test_an_empty_success_may_be_tried_again() -> None:
    """No body is a cut answer, a body of another kind is a malformed one."""
    assert not_a_reply("x", response(204, "")).kind is ErrorKind.TRUNCATED_STREAM
    page = not_a_reply("x", response(200, "<html>login</html>", content_type="text/html; charset=utf-8"))
    assert page.kind is ErrorKind.MALFORMED
    assert "text/html; charset=utf-8: login" in str(page)
