"""Agents: what an author writes, and the part of it that is data and is frozen into every run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from perdure.approval import Names, unreachable
from perdure.arguments import check_schema
from perdure.canonical import digest
from perdure.errors import ConfigError
from perdure.limits import Limits
from perdure.model import Model, parse_models
from perdure.routing import Router
from perdure.settings import Settings, must
from perdure.strategies import STRATEGIES, StrategySpec, ToolLoop, strategy_spec
from perdure.tools import TOOL_NAME, Tool, ToolDefaults, ToolOptions, ToolSpec, tool

S = TypeVar("S", bound=Settings)

Instructions = str | Callable[[], str]

OnLimit = Literal["finish", "pause"]

CHILD_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"prompt": {"type": "string", "description": "The task, with everything the agent needs to know."}},
    "required": ["prompt"],
    "additionalProperties": False,
}
"""Arguments of a tool that is an agent."""


class AgentSpec(Settings):
    """An agent as data, complete: a run resolves it once and uses it to its end."""

    name: str
    models: tuple[Model, ...]
    instructions: str = ""
    tools: tuple[ToolSpec, ...] = ()
    strategy: StrategySpec = Field(default_factory=lambda: strategy_spec(ToolLoop()))
    limits: Limits = Field(default_factory=Limits)
    output_schema: dict[str, Any] | None = None
    parallel_tools: bool = True
    tool_choice: str = "auto"
    corrections: int = 1
    verify: bool = False
    policy: bool = False
    on_limit: OnLimit = "finish"
    notify: bool = False
    """The worker has a function that is told what waits for people."""
    webhook: str | None = None
    """An address that is told the same; `${VAR}` in it is the worker's."""
    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Who is in which group of approvers."""
    router: Router | None = None
    """Chooses the models of each call; `models` are its default ones then."""

    @property
    def all_models(self) -> tuple[Model, ...]:
        """Every model that may answer."""
        return self.models if self.router is None else self.router.models

    def model_named(self, label: str | None) -> Model:
        """The model of this label; the first one where it is None or not the agent's."""
        return next((model for model in self.all_models if model.label == label), self.models[0])

    def tool(self, name: str) -> ToolSpec | None:
        """The tool of this name, if the agent has it."""
        return next((spec for spec in self.tools if spec.name == name), None)

    @property
    def digest(self) -> str:
        """SHA-256 of the whole spec; recorded in every result."""
        return digest(self.model_dump(mode="json", exclude_defaults=True))


def _usable(schema: dict[str, Any]) -> dict[str, Any]:
    if problem := check_schema(schema):
        raise ValueError(problem)
    return schema


OutputSchema = Annotated[dict[str, Any], AfterValidator(_usable)]
"""The JSON Schema of an answer: an object's."""

_WEB_ADDRESS = re.compile(r"(https?://|\$\{\w+\})\S*")
WebAddress = Annotated[
    str, AfterValidator(must(_WEB_ADDRESS.fullmatch, "be an address such as 'https://...', or '${VAR}' of the worker"))
]


Verify = Callable[..., str | Awaitable[str | None] | None]
Policy = Callable[..., Any]
Notify = Callable[..., Any]


class Agent:
    """An agent: a model, instructions, tools and rules. Everything is checked here; errors name agent, field and fix.

    `verify(ctx)` sees the answer before it is accepted and returns None or what to fix; `policy(call)` sees every tool
    call before any of its reply runs; `notify` (a function of one Notification, or a webhook's address) is told what
    waits for people. All run on a worker, so they may do I/O. `on_limit="pause"` waits at a limit for `extend` instead
    of finishing with what there is. `groups` are approvers by the name of their group. Several models are a chain: each
    answers where those before it failed. A `router` instead of a model chooses for each call. Raises ConfigError.
    """

    def __init__(
        self,
        name: str,
        model: str | Model | Sequence[str | Model] | None = None,
        instructions: Instructions = "",
        tools: Iterable[Tool | Agent | Callable[..., Any]] = (),
        *,
        limits: Limits | None = None,
        strategy: Settings | None = None,
        output: type[Any] | dict[str, Any] | None = None,
        verify: Verify | None = None,
        policy: Policy | None = None,
        notify: Notify | str | None = None,
        on_limit: OnLimit = "finish",
        groups: Mapping[str, Sequence[str]] | None = None,
        parallel_tools: bool = True,
        tool_choice: str = "auto",
        corrections: int = 1,
        tool_defaults: ToolDefaults | None = None,
        description: str = "",
        router: Router | None = None,
    ) -> None:
        self.name = name
        self.description = description
        self._require(isinstance(description, str), "description", "a text")
        self._require(isinstance(name, str) and bool(TOOL_NAME.fullmatch(name)), "name", "1 to 64 of A-Z a-z 0-9 _ -")
        self._require(router is None or isinstance(router, Router), "router", "Router(default=..., ...)")
        self._require((model is None) != (router is None), "model", "given, or a router instead")
        self.router = router
        self.models = router.default if router is not None else self._models(model)
        plain = isinstance(instructions, str) or (
            not inspect.iscoroutinefunction(instructions) and _takes(instructions, 0)
        )
        self._require(plain, "instructions", "a text or a plain function (not async) that takes no argument")
        self.instructions = instructions
        self.limits = Limits() if limits is None else limits
        self._require(isinstance(self.limits, Limits), "limits", "Limits(...), such as Limits(steps=20)")
        self.strategy = ToolLoop() if strategy is None else strategy
        self._require(type(self.strategy) in STRATEGIES.values(), "strategy", f"one of {sorted(STRATEGIES)}")
        self.output_schema = self._schema(output)
        for field, function in (("verify", verify), ("policy", policy)):
            self._require(function is None or _takes(function, 1), field, "a function that takes exactly one argument")
        self.verify, self.policy = verify, policy
        told = notify is None or (_WEB_ADDRESS.fullmatch(notify) if isinstance(notify, str) else _takes(notify, 1))
        self._require(bool(told), "notify", "a function that takes exactly one argument, or a webhook's https address")
        self.notify = notify
        self._require(on_limit in get_args(OnLimit), "on_limit", "'finish' or 'pause'")
        self.on_limit: OnLimit = on_limit
        self.groups = self._groups(groups)
        self._require(isinstance(parallel_tools, bool), "parallel_tools", "True or False")
        self.parallel_tools, self.tool_choice = parallel_tools, tool_choice
        self._require(type(corrections) is int and 0 <= corrections <= 10, "corrections", "a number from 0 to 10")
        self.corrections = corrections
        self._require(
            tool_defaults is None or isinstance(tool_defaults, ToolDefaults), "tool_defaults", "ToolDefaults()"
        )
        self.tool_defaults = tool_defaults
        self.tools: list[Tool] = []
        self._require(
            isinstance(tools, Iterable), "tools", "a list of functions, tools or agents, such as tools=[search]"
        )
        for item in tools:
            self._add(item)
        if self.tools or not isinstance(tool_choice, str):  # else it may name a tool that is registered later
            self._check_choice()

    @property
    def all_models(self) -> tuple[Model, ...]:
        """Every model that may answer."""
        return self.models if self.router is None else self.router.models

    def tool(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Register a function as a tool of this agent; bare or with the options of `perdure.tool`."""

        def build(target: Callable[..., Any]) -> Tool:
            return self._add(target, **options)

        return build if function is None else build(function)

    def as_tool(self, name: str | None = None, description: str | None = None, **options: Any) -> Tool:
        """This agent as a tool of another: each call is a child run whose spend is on the caller's account."""
        label = self.name if name is None else name
        text = description or self.description or f"Delegate a task to the agent {self.name}."
        try:
            settled = ToolOptions(**{"effect": "idempotent", "timeout": self.limits.deadline, **options})
        except ConfigError as error:
            raise ConfigError(f"agent {self.name!r} as tool: {str(error).removeprefix('ToolOptions: ')}") from None
        return Tool(None, None, settled, name=label, description=text, parameters=CHILD_PARAMETERS, agent=self)

    def spec(self, defaults: ToolOptions | None = None, instructions: str | None = None) -> AgentSpec:
        """This agent as data; `defaults` are the worker's, `instructions` the evaluated text. Raises ConfigError."""
        self._check_choice()
        text = instructions if instructions is not None else self.instructions
        own = self.tool_defaults.over(defaults) if self.tool_defaults else defaults
        return AgentSpec(
            name=self.name,
            models=self.models,
            instructions=text if isinstance(text, str) else "",
            tools=tuple(item.with_defaults(own) for item in self.tools),
            strategy=strategy_spec(self.strategy),
            limits=self.limits,
            output_schema=self.output_schema,
            parallel_tools=self.parallel_tools,
            tool_choice=self.tool_choice,
            corrections=self.corrections,
            verify=self.verify is not None,
            policy=self.policy is not None,
            on_limit=self.on_limit,
            notify=callable(self.notify),
            webhook=self.notify if isinstance(self.notify, str) else None,
            groups=self.groups,
            router=self.router,
        )

    def run_sync(self, prompt: str, **fields: Any) -> Any:
        """Run in this process with an embedded server, and return the RunResult; see `perdure.local`."""
        from perdure.local_process import local  # the server's machinery is loaded only where it is used

        with local(self) as here:
            return here.run(self, prompt, **fields)

    def _add(self, item: Tool | Agent | Callable[..., Any], **options: Any) -> Tool:
        self._require(isinstance(item, Agent) or callable(item), "tools", "functions, tools or agents")
        try:
            ready = item.as_tool() if isinstance(item, Agent) else item
            made: Tool = ready if isinstance(ready, Tool) and not options else tool(**options)(ready)
            check_approvers([made.with_defaults(self.tool_defaults)], self.groups)
        except ConfigError as error:
            raise ConfigError(f"agent {self.name!r}: {error}") from None
        if any(made.spec.name == other.spec.name for other in self.tools):
            raise ConfigError(f"agent {self.name!r}: tools: two are named {made.spec.name!r}; give one another name=")
        self.tools.append(made)
        return made

    def _groups(self, given: Mapping[str, Sequence[str]] | None) -> dict[str, tuple[str, ...]]:
        wanted = "names of people by the name of their group, such as {'finance': ['ann', 'bob']}"
        try:
            return TypeAdapter(dict[str, Names]).validate_python(dict(given or {}))
        except (ValidationError, TypeError, ValueError):
            raise ConfigError(f"agent {self.name!r}: groups: must be {wanted}") from None

    def _models(self, value: Any) -> tuple[Model, ...]:
        self._require(value not in ([], ()), "model", "a model, such as 'openai:gpt-5-mini', or a list of them")
        try:
            return parse_models(value)
        except ConfigError as error:
            raise ConfigError(f"agent {self.name!r}: {error}") from None

    def _schema(self, output: type[Any] | dict[str, Any] | None) -> dict[str, Any] | None:
        if output is None:
            return None
        schema, problem = output if isinstance(output, dict) else {}, None
        if not isinstance(output, dict):
            try:
                schema = TypeAdapter(output).json_schema()
            except Exception as error:  # pydantic raises many kinds for types it cannot describe
                problem = f"no JSON Schema for {output!r}: {str(error).splitlines()[0]}"
        problem = problem or check_schema(schema)
        self._require(
            problem is None, "output", f"a pydantic model, a dataclass or a JSON Schema of an object ({problem})"
        )
        return schema

    def _check_choice(self) -> None:
        if problem := misfit(self.tool_choice, [item.spec.name for item in self.tools]):
            raise ConfigError(f"agent {self.name!r}: {problem}")

    def _require(self, holds: bool, field: str, wanted: str) -> None:
        if not holds:
            raise ConfigError(f"agent {self.name!r}: {field}: must be {wanted}")

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, {self.models[0].label!r})"


def _takes(function: Any, count: int) -> bool:
    """Whether it can be called with so many positional arguments; true where Python cannot tell."""
    if not callable(function):
        return False
    try:
        signature = inspect.signature(function)
    except ValueError:
        return True
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def check_approvers(tools: Iterable[ToolSpec], groups: Mapping[str, Sequence[str]]) -> None:
    """Raise ConfigError where an approval could never be given: its group is not there, or too few are in it."""
    for spec in tools:
        if spec.approval is None:
            continue
        if unknown := sorted(spec.approval.groups - groups.keys()):
            raise ConfigError(f"groups: {spec.name} names {unknown[0]!r}, which is not there")
        if problem := unreachable(spec.approval, groups):
            raise ConfigError(f"tool {spec.name!r}: approval.{problem}")


def misfit(tool_choice: Any, tools: Collection[str]) -> str | None:
    """What is wrong with a `tool_choice` among these tools."""
    known = ["auto", "required", "none", *sorted(tools)]
    return None if tool_choice in known else f"tool_choice: must be one of {', '.join(known)}"


def evaluate_instructions(agent: Agent) -> str:
    """The instructions as text; raises ConfigError where the author's function fails or returns something else."""
    if isinstance(agent.instructions, str):
        return agent.instructions
    try:
        text = agent.instructions()
    except Exception as error:
        raise ConfigError(f"agent {agent.name!r}: instructions: {type(error).__name__}: {error}") from error
    if inspect.iscoroutine(text) or not isinstance(text, str):
        raise ConfigError(
            f"agent {agent.name!r}: instructions: the function must return a str, not {type(text).__name__}"
        )
    return text
