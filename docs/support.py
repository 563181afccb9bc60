"""What each wire format carries, found by building requests: `make docs` writes the table into the README."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from perdure.errors import ProviderError
from perdure.messages import DocumentPart, ImagePart, Message, UserMessage, text
from perdure.model_call import ModelRequest, ToolDefinition
from providers import REGISTRY
from providers.base import Provider
from providers.scripted import Scripted

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(r"(<!-- what providers carry: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
SHOWN = ("openai", "openai-chat", "anthropic", "gemini", "deepseek", "compatible")
"""One provider for each format and set of quirks; the rest are as `compatible` or `openai-chat`."""
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
ADD = ToolDefinition("add", "Add.", SCHEMA)
PDF, PNG = {"base64": "JVBERi0=", "media_type": "application/pdf"}, {"base64": "iVBORw==", "media_type": "image/png"}


def ask(*parts: Any, **options: Any) -> ModelRequest:
    """A request with these parts in the user's message."""
    message: Message = UserMessage(role="user", parts=(*text("hi"), *parts))
    return ModelRequest("m", "be brief", (message,), **options)


def body_of(provider: Provider, request: ModelRequest) -> Mapping[str, Any] | None:
    """What would be sent; None where the format cannot say it."""
    try:
        return provider.build(request).body
    except ProviderError:
        return None


def forms(provider: Provider, kind: Callable[..., Any], data: Mapping[str, str]) -> str:
    """In which forms an attachment is carried."""
    inline = body_of(provider, ask(kind(**data)))
    linked = body_of(provider, ask(kind(url="https://example.org/a", media_type=data["media_type"])))
    return " and ".join([*(["data"] if inline else []), *(["address"] if linked else [])]) or "no"


def told(provider: Provider, **options: Any) -> str:
    """How a schema for the answer is told: to the server, or only in words."""
    body = dict(body_of(provider, ask(output_schema=SCHEMA, **options)) or {})
    words = {name: body.pop(name, None) for name in ("messages", "input", "instructions", "system", "contents")}
    words["systemInstruction"] = body.pop("systemInstruction", None)
    if '"additionalProperties"' in json.dumps({k: v for k, v in body.items() if k != "tools"}):
        return "enforced"
    return "in words"


def param(provider: Provider, name: str, value: Any) -> str:
    """Where a parameter of Chat Completions goes."""
    body = body_of(provider, ask(params={name: value}))
    return next((path for path in _paths(body or {}) if _at(body, path) in (value, [value], str(value).upper())), "no")


def _paths(body: Mapping[str, Any], before: str = "") -> list[str]:
    found = []
    for name, value in body.items():
        found += [f"{before}{name}", *(_paths(value, f"{before}{name}.") if isinstance(value, Mapping) else ())]
    return found


def _at(body: Any, path: str) -> Any:
    for name in path.split("."):
        body = body[name]
    return body


def one_call(provider: Provider) -> str:
    """Whether a model can be kept to one call in a reply."""
    several, single = (body_of(provider, ask(tools=(ADD,), parallel_tools=many)) for many in (True, False))
    return "yes" if several != single else "no"


COLUMNS: Mapping[str, Callable[[Provider], str]] = {
    "images": lambda provider: forms(provider, lambda **data: ImagePart(type="image", **data), PNG),
    "documents": lambda provider: forms(provider, lambda **data: DocumentPart(type="document", **data), PDF),
    "`output=`": told,
    "`output=` beside tools": lambda provider: told(provider, tools=(ADD,)),
    "one call at a time": one_call,
    "`reasoning_effort`": lambda provider: param(provider, "reasoning_effort", "low"),
    "`stop`": lambda provider: param(provider, "stop", "END"),
}


def table() -> str:
    """The table as Markdown."""
    lines = [f"| format of | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name in SHOWN:
        provider = REGISTRY[name].provider
        assert provider is not None
        assert not isinstance(provider, Scripted)
        lines.append(f"| {name} | {' | '.join(column(provider) for column in COLUMNS.values())} |")
    return "\n".join(lines)


def readme() -> str:
    """The README with the table as it is now."""
    return BLOCK.sub(lambda found: f"{found[1]}{table()}\n{found[2]}", README.read_text())


if __name__ == "__main__":
    README.write_text(readme())
