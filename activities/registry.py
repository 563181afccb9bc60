"""The agents and tools that this worker serves, loaded from files and packages of their authors."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any

from perdure.agent import Agent, check_approvers
from perdure.errors import ConfigError
from perdure.tools import Tool, ToolDefaults, ToolSpec, ask_human

MOST_SAID = 500
"""Characters of what an agents file raises."""

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


class Registry:
    """Agents by name, the agents inside their tools included; tools by name; what lives as long as the worker."""

    def __init__(self) -> None:
        self.agents: dict[str, Agent] = {}
        self.tools: dict[str, Tool] = {}
        self.lifespans: list[Lifespan] = []
        self._homes: dict[str, int] = {}
        self.defaults: ToolDefaults | None = None
        """Of all tools, below what an agent and a tool say themselves."""

    def add(self, agent: Agent) -> None:
        """Serve an agent and the agents that are its tools; raises ConfigError where a name is taken."""
        known = self.agents.get(agent.name)
        if known is agent:
            return
        if known is not None:
            raise ConfigError(f"two agents are named {agent.name!r}; a worker needs different names")
        self.agents[agent.name] = agent
        self._check(agent)
        for tool in agent.tools:
            self.add_tool(tool)

    def set_defaults(self, defaults: ToolDefaults) -> None:
        """Take the options that all tools have which say nothing else; raises ConfigError where they cannot be."""
        if self.defaults not in (None, defaults):
            raise ConfigError("tool_defaults: another file gives different ones, and a worker has one set of them")
        self.defaults = defaults
        for agent in self.agents.values():
            self._check(agent)

    def _check(self, agent: Agent) -> None:
        check_approvers(agent.spec(self.defaults).tools, agent.groups)

    def add_tool(self, tool: Tool) -> None:
        """Serve a tool; agents may share one, but not its name."""
        name = tool.spec.name
        other = self.tools.get(name)
        if other is not None and other is not tool and not _same_agent(other, tool) and not (other.asks and tool.asks):
            raise ConfigError(f"two tools are named {name!r}; a worker needs different names: give one another name=")
        self.tools.setdefault(name, tool)
        if tool.agent is not None:
            self.add(tool.agent)

    def tool_spec(self, name: str) -> ToolSpec | None:
        """The spec of a tool by name, for agents as data."""
        tool = self.tools.get(name) or (ask_human if name == ask_human.spec.name else None)
        return tool.with_defaults(self.defaults) if tool else None

    def home_of(self, agent: str) -> int | None:
        """Which lifespan belongs to an agent: that of the file or package that it was loaded with."""
        return self._homes.get(agent)

    def add_lifespan(self, lifespan: Lifespan, agents: Iterable[str]) -> None:
        """Serve a lifespan whose value these agents' tools get as `ctx.state`."""
        if lifespan not in self.lifespans:
            self.lifespans.append(lifespan)
        self._homes |= dict.fromkeys(agents, self.lifespans.index(lifespan))

    def longest_write(self) -> float:
        """Seconds that a call may need which must not be cut short: what a graceful stop waits for."""
        effects = (tool.with_defaults(self.defaults) for tool in self.tools.values() if tool.agent is None)
        return max((s.timeout.total_seconds() for s in effects if s.effect in {"write", "dangerous"}), default=0.0)


def load(targets: Iterable[str], registry: Registry) -> None:
    """Import each `file.py` or `package.module` and serve every Agent at its module level. Raises ConfigError.

    A `tool_defaults` there is for all tools of the worker, a `lifespan` for its own agents' tools.
    """
    for target in targets:
        module = _import(target)
        found = list(_agents_of(module))
        if not found:
            raise ConfigError(f"{target}: no Agent at module level; write `name = Agent(name=..., model=...)`")
        before = set(registry.agents)
        defaults = getattr(module, "tool_defaults", None)
        try:
            if isinstance(defaults, ToolDefaults):
                registry.set_defaults(defaults)
            for agent in found:
                registry.add(agent)
        except ConfigError as error:
            raise ConfigError(f"{target}: {error}") from None
        lifespan = getattr(module, "lifespan", None)
        if callable(lifespan):
            registry.add_lifespan(lifespan, set(registry.agents) - before)


def _agents_of(module: ModuleType) -> Iterator[Agent]:
    seen: set[int] = set()
    for value in vars(module).values():
        if isinstance(value, Agent) and id(value) not in seen:
            seen.add(id(value))
            yield value


def _import(target: str) -> ModuleType:
    try:
        return _from_file(Path(target)) if target.endswith(".py") else importlib.import_module(target)
    except ConfigError as error:
        raise ConfigError(f"{target}: {_line(error)}{error}") from None
    except ModuleNotFoundError as error:
        if error.name == target or (error.name and target.startswith(f"{error.name}.")):
            raise ConfigError(f"{target}: no such module; give a path such as my_agents.py or package.module") from None
        raise ConfigError(f"{target}: {_line(error)}it imports {error.name!r}, which is not installed") from error
    except SyntaxError as error:
        place, name = _line(error), Path(error.filename or target).name
        inside = f"{place}{name} " if place else ""  # a file that the loaded one imports
        raise ConfigError(f"{target}: {inside}line {error.lineno}: {error.msg}") from error
    except BaseException as error:  # an agents file may even call sys.exit(); the worker says so and ends
        if isinstance(error, KeyboardInterrupt):
            raise
        said = " ".join(str(error).split())[:MOST_SAID]
        raise ConfigError(f"{target}: {_line(error)}{type(error).__name__}{': ' if said else ''}{said}") from error


def _line(error: BaseException) -> str:
    """The line of the loaded file that it comes from, and that of a file beside it where one was called."""
    frames = [(Path(frame.f_code.co_filename), frame.f_code.co_name, at) for frame, at in walk_tb(error.__traceback__)]
    file = next((path for path, name, _ in frames if name == "<module>"), None)
    if file is None:  # nothing of it has run
        return ""
    own = [(path, at) for path, _, at in frames if path.parent == file.parent]
    last = max(number for number, (path, _) in enumerate(own) if path == file)
    beside = [f"{path.name} line {at}: " for path, at in own[last + 1 :][-1:]]
    return "".join([f"line {own[last][1]}: ", *beside])


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError("no such file")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    name = (
        path.stem
        if path.stem.isidentifier() and path.stem not in sys.modules
        else f"agents_{abs(hash(path.resolve()))}"
    )
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _same_agent(one: Tool, other: Tool) -> bool:
    return one.agent is not None and one.agent is other.agent
