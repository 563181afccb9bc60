"""The API reference, written from the docstrings: `python docs/reference.py` writes `docs/reference.md`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import griffe

HERE = Path(__file__).resolve().parent
PAGE = HERE / "reference.md"

SECTIONS: dict[str, tuple[str, ...]] = {
    "Agents": ("Agent", "Model", "Price", "Router", "RoutingRule", "Limits", "ToolLoop"),
    "Tools": ("tool", "Tool", "ToolContext", "ToolDefaults", "RetryTool", "Image", "Document", "ask_human", "human"),
    "Approvals": (
        "Approval",
        "Escalation",
        "Notification",
        "decision_tokens.sign_decision",
        "decision_tokens.make_key",
    ),
    "Policies and checks": (
        "allow",
        "deny",
        "ask",
        "policy.PolicyDecision",
        "contracts.PolicyCall",
        "verify.VerifyContext",
    ),
    "Running": ("local", "local_process.Local", "local_process.LocalRun", "Client", "Handle"),
    "Answers": (
        "RunResult",
        "Outcome",
        "RunStatus",
        "status.RunSummary",
        "status.RunUsage",
        "status.PendingCall",
        "status.OpenQuestion",
        "status.RunEvent",
        "StreamEvent",
        "status.EventPage",
    ),
    "Providers of your own": (
        "provider",
        "ModelRequest",
        "ModelReply",
        "model_call.ToolDefinition",
        "model_call.RawText",
        "model_call.RawThinking",
        "model_call.RawCall",
        "model_call.Finish",
        "messages.Usage",
        "errors.ErrorKind",
    ),
    "Testing": (
        "testing.scripted",
        "testing.reply",
        "testing.call",
        "testing.calls",
        "testing.failure",
        "testing.FakeRuntime",
        "runtime.Runtime",
        "runtime.Reply",
        "runtime.Ran",
    ),
    "Errors": (
        "PerdureError",
        "AlreadyStarted",
        "ConfigError",
        "InvalidInput",
        "MessageRefused",
        "NoAnswer",
        "NoSuchRun",
        "ProviderError",
        "RunCancelled",
        "RunFailed",
        "Unreachable",
    ),
}
"""What is public, by what it is for; names below `perdure`."""

HEAD = """# Reference

Written from the code by `make docs`. The README says how things are used together.
"""


def page() -> str:
    """The whole page."""
    package = griffe.load("perdure", search_paths=[HERE.parent], resolve_aliases=True, resolve_external=False)
    lines = [HEAD]
    for title, names in SECTIONS.items():
        lines.append(f"## {title}\n")
        for name in names:
            lines += _entry(name, _target(package[name]))
    return "\n".join(lines).rstrip() + "\n"


def _target(item: griffe.Object | griffe.Alias) -> griffe.Object:
    return item.final_target if isinstance(item, griffe.Alias) else item


def _entry(name: str, item: griffe.Object) -> Iterator[str]:
    path = f"perdure.{name}"
    if isinstance(item, griffe.Function):
        yield f"### {path}\n\n{_code(_signature(item, path))}\n{_text(item)}\n"
        return
    yield f"### {path}\n\n{_text(item)}\n"
    if isinstance(item, griffe.Class):
        if (init := _constructor(item)) is not None:
            yield _code(_signature(init, path))
        yield from _fields(item)
        yield from _methods(item)


def _constructor(item: griffe.Class) -> griffe.Function | None:
    """The constructor that an author has written; models and dataclasses are shown by their fields."""
    init = item.members.get("__init__")
    written = isinstance(init, griffe.Function) and "dataclass" not in item.labels
    return init if written and isinstance(init, griffe.Function) else None


def _fields(item: griffe.Class) -> Iterator[str]:
    """A table of what is declared in the class; what only its constructor makes is its own business."""
    rows = [
        f"| `{name}` | {_cell(_type(field))} | {_cell(_default(field))} | {_row(field)} |"
        for name, member in {**item.inherited_members, **item.members}.items()
        if isinstance(field := _target(member), griffe.Attribute)
        and (_constructor(item) is None or "class-attribute" in field.labels)
        and "property" not in field.labels
        and (field.annotation or field.docstring)
        and not name.startswith("_")
        and name != "model_config"
    ]
    if rows:
        yield "| field | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _methods(item: griffe.Class) -> Iterator[str]:
    for name, member in item.members.items():
        method = _target(member)
        if name.startswith("_") or method.docstring is None:
            continue
        if isinstance(method, griffe.Function):
            yield f"#### {item.name}.{name}\n\n{_code(_signature(method, name))}\n{_text(method)}\n"
        elif isinstance(method, griffe.Attribute) and "property" in method.labels:
            yield f"#### {item.name}.{name}\n\n{_text(method)}\n"


def _signature(function: griffe.Function, name: str) -> str:
    parameters = [p for p in function.parameters if p.name != "self"]
    shown: list[str] = []
    star = False
    for parameter in parameters:
        kind = parameter.kind
        if kind is griffe.ParameterKind.keyword_only and not star:
            shown.append("*")
            star = True
        mark = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(kind, "")
        star = star or mark == "*"
        annotation = f": {parameter.annotation}" if parameter.annotation else ""
        default = f" = {parameter.default}" if parameter.default is not None and not mark else ""
        shown.append(f"{mark}{parameter.name}{annotation}{default}")
    returns = f" -> {function.returns}" if function.returns and str(function.returns) != "None" else ""
    prefix = "async " if "async" in function.labels else ""
    line = f"{prefix}{name}({', '.join(shown)}){returns}"
    if len(line) <= 100:
        return line
    return f"{prefix}{name}(\n    " + ",\n    ".join(shown) + f",\n){returns}"


def _type(field: griffe.Attribute) -> str:
    """The annotation without the checks inside `Annotated[...]`."""
    text = str(field.annotation or "")
    while (found := re.search(r"Annotated\[([\w.]+(?:\[[^\]]*\])?),", text)) is not None:
        depth, end = 1, found.end()
        while depth:
            depth += {"[": 1, "]": -1}.get(text[end], 0)
            end += 1
        text = text[: found.start()] + found.group(1) + text[end:]
    return text


def _default(field: griffe.Attribute) -> str:
    """The default as an author would write it; nothing for a required field."""
    text = str(field.value) if field.value is not None else ""
    if (made := re.search(r"default_factory=lambda: parse_duration\((.+?)\)", text)) is not None:
        return made.group(1)
    if (made := re.search(r"default_factory=(\w+)", text)) is not None:
        return {"dict": "{}", "list": "[]"}.get(made.group(1), f"{made.group(1)}()")
    if (given := re.match(r"Field\((.*)\)$", text)) is not None:
        first = given.group(1).split(",")[0]
        return "" if "=" in first or first == "..." else first
    return text


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _text(item: griffe.Object) -> str:
    return item.docstring.value if item.docstring else ""


def _row(item: griffe.Object) -> str:
    return " ".join(_text(item).split()).replace("|", "\\|")


def _cell(text: str) -> str:
    short = " ".join(text.split())
    return f"`{short}`".replace("|", "\\|") if short else ""


if __name__ == "__main__":
    PAGE.write_text(page())
