"""A request of the Gemini API: everything of it but the conversation itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from perdure.errors import ErrorKind, ProviderError
from perdure.messages import SystemMessage
from perdure.model_call import ModelRequest, ToolDefinition
from providers.base import WireRequest
from providers.gemini.contents import Wire, contents, plain
from providers.gemini.schema import TooLarge, reduced
from providers.text import clean, clean_json

_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")
_COLLECTIONS = ("models/", "tunedModels/")
_CONFIG = {
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "seed": "seed",
    "stop": "stopSequences",
}
"""Names of Chat Completions and where `generationConfig` has them."""
_LEVELS = {"none": "MINIMAL", "max": "XHIGH"}
"""Efforts that no level is named after: the nearest. Not every model can do without thinking."""
_LONGEST_SCHEMA = 20_000
"""Characters of a schema that is told in words."""


def build(name: str, request: ModelRequest) -> WireRequest:
    """The HTTP request; raises ProviderError (INVALID_REQUEST) for what the format cannot say."""
    params = dict(request.params)
    stream = bool(params.pop("stream", True))
    body: Wire = {"contents": contents(name, request.model, request.messages)}
    config: Wire = {}
    told = ""
    if request.output_schema is not None:
        told = _output(request, config)
    if instructions := _instructions(name, request, told):
        if body["contents"]:
            body["systemInstruction"] = {"parts": [{"text": instructions}]}
        else:
            body["contents"] = [{"role": "user", "parts": [{"text": instructions}]}]
    if not body["contents"]:
        raise ProviderError(ErrorKind.INVALID_REQUEST, f"{name}: a request needs a message or instructions")
    if request.tools:
        body |= _tools(name, request)
    if request.max_tokens is not None:
        config["maxOutputTokens"] = request.max_tokens
    body["generationConfig"] = config
    body = _merged(_merged(body, _placed(params)), params)
    if not body.get("generationConfig"):
        body.pop("generationConfig", None)
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return WireRequest(path=f"{_path(request.model)}:{method}", body=body, stream=stream)


def _path(model: str) -> str:
    collection = next((known for known in _COLLECTIONS if model.startswith(known)), "models/")
    return f"/{collection}{quote(model.removeprefix(collection), safe='/')}"


def _instructions(name: str, request: ModelRequest, told: str) -> str:
    texts = [clean(request.instructions)]
    texts += [plain(name, message) for message in request.messages if isinstance(message, SystemMessage)]
    return "\n\n".join(text for text in (*texts, told) if text)


def _output(request: ModelRequest, config: Wire) -> str:
    """Ask for the output schema; what is returned belongs into the instructions."""
    schema = request.output_schema or {}
    # Many models refuse a JSON answer together with tools.
    if not request.tools:
        try:
            config |= {"responseMimeType": "application/json", "responseJsonSchema": reduced(schema)}
        except TooLarge:
            pass
        else:
            return ""
    return f"Answer with one JSON object that satisfies this JSON Schema, and nothing else: {_as_text(schema)}"


def _placed(params: dict[str, Any]) -> Wire:
    """Take the parameters with Chat Completions' names out of `params`, to where they belong."""
    config: Wire = {}
    for given, field in _CONFIG.items():
        if given in params:
            value = params.pop(given)
            config[field] = [value] if field == "stopSequences" and isinstance(value, str) else value
    if "reasoning_effort" in params:
        effort = params.pop("reasoning_effort")
        level = effort and _LEVELS.get(str(effort), str(effort).upper())
        config["thinkingConfig"] = {"thinkingLevel": level} if level else None
    return {"generationConfig": config}


def _merged(body: Mapping[str, Any], changes: Mapping[str, Any]) -> Wire:
    """The body with the changes, objects merged deeply; None removes a field."""
    made = dict(body)
    for field, value in changes.items():
        if value is None:
            made.pop(field, None)
        elif isinstance(value, Mapping):
            known = made.get(field)
            made[field] = _merged(known if isinstance(known, Mapping) else {}, value)
        else:
            made[field] = value
    return made


def _tools(name: str, request: ModelRequest) -> Wire:
    names = [tool.name for tool in request.tools]
    for tool in names:
        if not _TOOL_NAME.fullmatch(tool):
            raise ProviderError(
                ErrorKind.INVALID_REQUEST,
                f"{name}: tool {tool!r} cannot be offered: a name is 1 to 128 of A-Z, a-z, 0-9, _ . : - "
                "and begins with a letter or _",
            )
    wire: Wire = {"tools": [{"functionDeclarations": [_declaration(tool) for tool in request.tools]}]}
    if request.tool_choice == "auto":
        return wire
    if request.tool_choice in ("required", "none"):
        calling: Wire = {"mode": "ANY" if request.tool_choice == "required" else "NONE"}
    elif request.tool_choice in names:
        calling = {"mode": "ANY", "allowedFunctionNames": [request.tool_choice]}
    else:
        raise ProviderError(
            ErrorKind.INVALID_REQUEST,
            f"{name}: tool_choice {request.tool_choice!r} is none of the tools {', '.join(names)}",
        )
    return {**wire, "toolConfig": {"functionCallingConfig": calling}}


def _declaration(tool: ToolDefinition) -> Wire:
    declaration: Wire = {"name": tool.name, "description": clean(tool.description)}
    try:
        schema = reduced(tool.parameters)
    except TooLarge:
        schema = {}
    bare = schema.keys() <= {"type", "title", "additionalProperties"} and "type" in schema
    if not tool.parameters or (bare and not tool.parameters.get("additionalProperties")):
        return declaration  # no parameters
    if schema.get("type") != "object":
        # One schema that does not fit must not cost the whole request.
        declaration["description"] += f"\n\nThe arguments satisfy this JSON Schema: {_as_text(tool.parameters)}"
        schema = {"type": "object"}
    return {**declaration, "parametersJsonSchema": schema}


def _as_text(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(clean_json(schema), ensure_ascii=False)[:_LONGEST_SCHEMA]
    except RecursionError:
        return "(too deep to be told)"
