"""What a provider's error means: the one table from status and body to an `ErrorKind`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from perdure.errors import ErrorKind, ProviderError
from providers.base import WireResponse
from providers.retry_after import duration, seconds_to_wait
from providers.text import clean

LONGEST_MESSAGE = 500
"""Characters of a provider's own words that are kept."""

_READ_BYTES = 16_384
_REQUEST_IDS = ("x-request-id", "request-id", "x-litellm-call-id", "cf-ray")

_BY_STATUS: Mapping[int, ErrorKind] = {
    401: ErrorKind.AUTHENTICATION,
    402: ErrorKind.QUOTA,
    403: ErrorKind.AUTHENTICATION,
    404: ErrorKind.NOT_FOUND,
    408: ErrorKind.TIMEOUT,
    409: ErrorKind.SERVER,
    410: ErrorKind.NOT_FOUND,
    413: ErrorKind.CONTEXT_LENGTH,
    425: ErrorKind.SERVER,
    429: ErrorKind.RATE_LIMIT,
    503: ErrorKind.OVERLOADED,
    504: ErrorKind.TIMEOUT,
    522: ErrorKind.TIMEOUT,
    524: ErrorKind.TIMEOUT,
    529: ErrorKind.OVERLOADED,
}

_QUOTA_CODES = frozenset(
    [
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "insufficient_balance",
        "insufficient_credits",
        "enforced_spend_limit_reached",
        "contract_spend_limit_reached",
        "billing_error",
        "budget_exceeded",
    ]
)
_QUOTA_PHRASES = (
    "credit balance is too low",
    "insufficient balance",
    "insufficient credits",
    "reached your specified api usage limits",
)

_CONTEXT_CODES = frozenset(
    ["context_length_exceeded", "context_window_exceeded", "exceed_context_size_error", "model_context_window_exceeded"]
)
_CONTEXT_PHRASES = (
    "maximum context length",
    "context_length_exceeded",
    "contextwindowexceeded",
    "context window",
    "context size",
    "exceed context limit",
    "exceeds the context length",
    "greater than the context length",
    "prompt is too long",
    "input is too long",
    "input token count",
    "maximum prompt length",
    "exceeded model token limit",
    "reduce the length of the messages",
    "request too large for",
)
_CONTEXT_STATUSES = frozenset({None, 400, 413, 422, 429})

# Words of the body count where the status decides nothing: in a 200, in a stream, in a 400 that stands for everything.
_BY_CODE: tuple[tuple[ErrorKind, frozenset[str]], ...] = tuple(
    (kind, frozenset(codes.split()))
    for kind, codes in (
        (
            ErrorKind.AUTHENTICATION,
            "invalid_api_key api_key_invalid authentication_error permission_error permission_denied unauthenticated",
        ),
        (ErrorKind.NOT_FOUND, "model_not_found not_found_error not_found notfounderror"),
        (ErrorKind.RATE_LIMIT, "rate_limit_exceeded rate_limit_error resource_exhausted too_many_requests"),
        (ErrorKind.OVERLOADED, "overloaded_error overloaded engine_overloaded unavailable service_unavailable"),
        (ErrorKind.TIMEOUT, "timeout timeout_error request_timeout deadline_exceeded"),
        (ErrorKind.SERVER, "server_error api_error internal_error internal internal_server_error bad_gateway"),
        (
            ErrorKind.INVALID_REQUEST,
            "invalid_request_error invalid_request bad_request badrequesterror invalid_argument failed_precondition "
            "unsupported_parameter unsupported_value",
        ),
    )
)

_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(//)[^/\s@]{1,500}@"), r"\1***@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=*-]{6,}"), r"\1 ***"),
    (re.compile(r"\b((?:sk|gsk|pk|xai|hf|r8)[-_]|AIza)[-_A-Za-z0-9*]{8,}"), r"\1***"),
    (re.compile(r"(?i)\b(api[_-]?key|access[_-]?token|key|token|secret|password)([=:]\s?)[^\s&,;\"']{6,}"), r"\1\2***"),
)
_TAGS = re.compile(r"(?is)<(script|style)\b.*?</\1>|<!--.*?-->|<[^<>]*>")


@dataclass(frozen=True)
class _Described:
    message: str = ""
    codes: frozenset[str] = frozenset()
    retry_after: float | None = None


def failure(provider: str, response: WireResponse, now: float) -> ProviderError:
    """The error of a response whose status is not 2xx; `now` in epoch seconds is for Retry-After dates."""
    described = _describe(_json(response.body))
    text = described.message or readable(response)
    if 300 <= response.status < 400:
        text = f"{text} (redirects are not followed: set base_url to where the API is)"
    waits = seconds_to_wait(response.headers, now)
    return ProviderError(
        classify(response.status, described.codes, text),
        f"{provider}: HTTP {response.status}: {shorten(text)}",
        status=response.status,
        retry_after=described.retry_after if waits is None else waits,
        request_id=_request_id(response),
    )


def reported(provider: str, error: object, *, response: WireResponse | None = None) -> ProviderError:
    """The error that a body with status 200 or an event of a stream tells of."""
    described = _describe(error)
    return ProviderError(
        classify(None, described.codes, described.message),
        f"{provider}: {shorten(described.message) or 'an error without a message'}",
        status=_status_in(described.codes),
        retry_after=described.retry_after,
        request_id=_request_id(response) if response else None,
    )


def not_a_reply(provider: str, response: WireResponse, expected: str = "JSON") -> ProviderError:
    """The error of a 2xx body that is not a reply: nothing at all, a login page, a fragment; names the content type."""
    if not response.body.strip():
        kind, text = ErrorKind.TRUNCATED_STREAM, "an empty body"
    else:
        kind, text = (
            ErrorKind.MALFORMED,
            f"{_header(response, 'content-type') or 'no content type'}: {readable(response)}",
        )
    return ProviderError(
        kind,
        f"{provider}: HTTP {response.status}: expected {expected}, got {shorten(text)}",
        status=response.status,
        request_id=_request_id(response),
    )


def classify(status: int | None, codes: frozenset[str], message: str) -> ErrorKind:
    """The kind of an error; `status` None where there is none, `codes` are the lower-case words of the body."""
    words = message.lower()
    if codes & _QUOTA_CODES or any(phrase in words for phrase in _QUOTA_PHRASES):
        return ErrorKind.QUOTA
    if codes & _CONTEXT_CODES or (status in _CONTEXT_STATUSES and any(phrase in words for phrase in _CONTEXT_PHRASES)):
        return ErrorKind.CONTEXT_LENGTH
    if status is None:
        status = _status_in(codes)
    if status is None or status == 400:
        for kind, known in _BY_CODE:
            if codes & known:
                return kind
    if status is None or status >= 500:
        return _BY_STATUS.get(status or 0, ErrorKind.SERVER)
    return _BY_STATUS.get(status, ErrorKind.INVALID_REQUEST)


def shorten(text: str) -> str:
    """One line of at most `LONGEST_MESSAGE` characters without credentials."""
    line = clean(" ".join(text[:_READ_BYTES].split()))
    for pattern, replacement in _SECRETS:
        line = pattern.sub(replacement, line)
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 1] + "…"


def readable(response: WireResponse) -> str:
    """What a body that is not JSON says, without markup."""
    text = response.body.lstrip()[:_READ_BYTES].decode(errors="replace")
    if text.startswith("<") or "html" in _header(response, "content-type"):
        text = _TAGS.sub(" ", text)
    return " ".join(text.split()) or "no text"


def _json(body: bytes) -> object:
    try:
        return json.loads(body, strict=False)
    except (ValueError, RecursionError):
        return None


def _describe(value: object) -> _Described:
    if isinstance(value, str):
        return _Described(value)
    if isinstance(value, list) and value:
        return _describe(value[0])
    if not isinstance(value, Mapping):
        return _Described()
    codes = {
        str(value[field]).lower()
        for field in ("type", "code", "status", "error_code", "reason")
        if isinstance(value.get(field), str | int)
    }
    message, retry_after = "", duration(value.get("retryDelay"))
    for field in ("message", "error", "errors", "detail", "msg", "error_description"):
        inner = _describe(value.get(field))
        message, codes = message or inner.message, codes | inner.codes
        retry_after = inner.retry_after if retry_after is None else retry_after
    details = value.get("details")
    for detail in details if isinstance(details, list) else [details]:
        inner = _describe(detail)
        codes |= inner.codes
        retry_after = inner.retry_after if retry_after is None else retry_after
    metadata = value.get("metadata")
    if isinstance(metadata, Mapping) and isinstance(metadata.get("raw"), str):
        # A gateway's own words are often only "Provider returned error"; the upstream's stand in here.
        message = f"{message}: {metadata['raw']}"
    return _Described(message, frozenset(codes), retry_after)


def _status_in(codes: frozenset[str]) -> int | None:
    return next((int(code) for code in sorted(codes) if re.fullmatch(r"[45][0-9]{2}", code)), None)


def _header(response: WireResponse, name: str) -> str:
    return next((value for key, value in response.headers.items() if key.lower() == name), "")


def _request_id(response: WireResponse) -> str | None:
    return next((value for name in _REQUEST_IDS if (value := _header(response, name))), None)
