"""A request in the OpenAI Responses format: the body around the conversation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from perdure.errors import ErrorKind, ProviderError
from perdure.json_schema import check_schema, normalise_schema, transform
from perdure.model_call import ModelRequest, ToolDefinition
from providers.base import WireRequest
from providers.responses.input import input_items
from providers.strict_schema import can_be_strict
from providers.text import clean, clean_json

PATH = "/responses"

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_TOKENS_FIELDS = ("max_output_tokens", "max_completion_tokens", "max_tokens")
"""Names of the limit in `params`; the first that is there counts."""
_LEAST_TOKENS = 16
"""The API refuses a smaller limit."""
_ADDED = ("tools", "include")
"""Lists of `params` that stand beside ours instead of replacing them."""
_NOT_AT_THE_ROOT = frozenset({"anyOf", "oneOf", "allOf", "enum", "not"})
"""Keywords with which the API refuses the parameters of a tool, where they stand at the root."""

Wire = dict[str, Any]


def build(name: str, request: ModelRequest) -> WireRequest:
    """The HTTP request; raises ProviderError (INVALID_REQUEST) for what the format cannot say.

    Nothing is stored at the vendor unless `params` say so, or want the reply made in the background, which needs it;
    therefore reasoning is asked for in its encrypted form.
    """
    stored = request.params.get("background") is True
    body: Wire = {"model": request.model, "store": stored, "include": ["reasoning.encrypted_content"], "stream": True}
    if request.instructions:
        body["instructions"] = clean(request.instructions)
    if request.tools:
        body |= _tools(name, request)
    if request.output_schema is not None:
        body["text"] = {"format": _output_format(request.output_schema)}
    if request.max_tokens is not None:
        body["max_output_tokens"] = max(request.max_tokens, _LEAST_TOKENS)
    body = _merged(body, _translated(request.params))
    body.setdefault("input", input_items(name, request.messages, stored=body.get("store") is not False))
    return WireRequest(path=PATH, body=body, stream=bool(body.get("stream")))


def _translated(params: Mapping[str, Any]) -> Wire:
    """Parameters under the names of this format, where they bear those of Chat Completions."""
    known = {field: value for field, value in params.items() if field not in _MAX_TOKENS_FIELDS}
    limits = [params[field] for field in _MAX_TOKENS_FIELDS if field in params]
    if limits:
        known["max_output_tokens"] = limits[0]
    if "reasoning_effort" in known:
        known["reasoning"] = _merged({"effort": known.pop("reasoning_effort")}, known.get("reasoning") or {})
    return known


def _merged(body: Mapping[str, Any], params: Mapping[str, Any]) -> Wire:
    """The body with the parameters in it: objects deeply, None removes, and `tools` and `include` are added."""
    made = dict(body)
    for field, value in params.items():
        known = made.get(field)
        if value is None:
            made.pop(field, None)
        elif isinstance(value, Mapping):
            made[field] = _merged(known if isinstance(known, Mapping) else {}, value)
        elif field in _ADDED and isinstance(value, list) and isinstance(known, list):
            made[field] = [*known, *(item for item in value if item not in known)]
        else:
            made[field] = value
    return made


def _tools(name: str, request: ModelRequest) -> Wire:
    names = [tool.name for tool in request.tools]
    for tool in names:
        if not _TOOL_NAME.fullmatch(tool):
            raise ProviderError(
                ErrorKind.INVALID_REQUEST,
                f"{name}: tool {tool!r} cannot be offered: a name is 1 to 64 of A-Z, a-z, 0-9, _ and -",
            )
    wire: Wire = {"tools": [_definition(tool) for tool in request.tools]}
    if request.tool_choice in ("required", "none"):
        wire["tool_choice"] = request.tool_choice
    elif request.tool_choice != "auto":
        if request.tool_choice not in names:
            raise ProviderError(
                ErrorKind.INVALID_REQUEST,
                f"{name}: tool_choice {request.tool_choice!r} is none of the tools {', '.join(names)}",
            )
        wire["tool_choice"] = {"type": "function", "name": request.tool_choice}
    if not request.parallel_tools:
        wire["parallel_tool_calls"] = False
    return wire


def _definition(tool: ToolDefinition) -> Wire:
    parameters = _acceptable(tool.parameters)
    return {
        "type": "function",
        "name": tool.name,
        "description": clean(tool.description),
        "parameters": parameters,
        "strict": can_be_strict(parameters),
    }


def _acceptable(schema: Any) -> Wire:
    """The parameters of a tool as the API takes them; one schema that it refuses would refuse the whole request.

    What such a schema says too much is left out: arguments are checked against the full one when they come.
    """
    if check_schema(schema) is not None:
        return {"type": "object", "properties": {}}
    root = normalise_schema(transform(clean_json(schema), _with_items))
    return {"properties": {}, **{key: value for key, value in root.items() if key not in _NOT_AT_THE_ROOT}}


def _with_items(schema: dict[str, Any]) -> dict[str, Any]:
    kinds = schema.get("type")
    is_array = kinds == "array" or (isinstance(kinds, list) and "array" in kinds)
    return {**schema, "items": {}} if is_array and "items" not in schema else schema


def _output_format(schema: Mapping[str, Any]) -> Wire:
    return {"type": "json_schema", "name": "output", "schema": clean_json(schema), "strict": can_be_strict(schema)}
