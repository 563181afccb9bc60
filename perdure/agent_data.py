"""Agents written as data in a run's input: tools and strategy by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from perdure.agent import AgentSpec, OnLimit, OutputSchema, WebAddress, check_approvers, misfit
from perdure.approval import Names
from perdure.errors import ConfigError
from perdure.limits import Limits
from perdure.model import parse_models
from perdure.routing import Router
from perdure.settings import Settings, must, problems_of
from perdure.strategies import StrategySpec, ToolLoop, strategy_spec
from perdure.tools import ToolSpec

S = TypeVar("S", bound=Settings)


def _names_model(value: Any) -> bool:
    items = value if isinstance(value, list) else [value]
    return all(isinstance(item, str | dict) for item in items)


ModelData = Annotated[
    str | dict[str, Any] | list[str | dict[str, Any]],
    BeforeValidator(must(_names_model, "be 'provider:model' or an object with 'provider' and 'name'")),
]


class AgentData(BaseModel):
    """An agent written as data in a run's input: tools and strategy by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=64)
    model: ModelData | None = None
    instructions: str = ""
    tools: list[str] = Field(default_factory=list)
    strategy: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    output_schema: OutputSchema | None = None
    parallel_tools: bool = True
    tool_choice: str = "auto"
    corrections: int = Field(1, ge=0, le=10)
    on_limit: OnLimit = "finish"
    notify: WebAddress | None = None
    groups: dict[str, Names] = Field(default_factory=dict)
    router: dict[str, Any] | None = None


def spec_from_data(data: AgentData, tools: Callable[[str], ToolSpec | None]) -> AgentSpec:
    """The spec of an agent written as data; `tools` looks a name up. Raises ConfigError naming the field."""
    found: list[ToolSpec] = []
    for name in data.tools:
        spec = tools(name)
        if spec is None:
            raise ConfigError(f"agent.tools: this worker has no tool {name!r}")
        found.append(spec)
    if (data.model is None) == (data.router is None):
        raise ConfigError("agent.model: must be given, or a router instead")
    if problem := misfit(data.tool_choice, data.tools):
        raise ConfigError(f"agent.{problem}")
    try:
        check_approvers(found, data.groups)
        router = _field("router", Router, data.router) if data.router is not None else None
        return AgentSpec(
            name=data.name,
            models=router.default if router is not None else parse_models(data.model),
            router=router,
            instructions=data.instructions,
            tools=tuple(found),
            strategy=_field("strategy", StrategySpec, data.strategy) if data.strategy else strategy_spec(ToolLoop()),
            limits=_field("limits", Limits, data.limits or {}),
            output_schema=data.output_schema,
            parallel_tools=data.parallel_tools,
            tool_choice=data.tool_choice,
            corrections=data.corrections,
            on_limit=data.on_limit,
            webhook=data.notify,
            groups=data.groups,
        )
    except ConfigError as error:
        raise ConfigError(f"agent.{error}") from None


def _field(name: str, kind: type[S], value: dict[str, Any]) -> S:
    try:
        return kind(**value)
    except ConfigError as error:
        raise ConfigError(str(error).replace(kind.__name__, name, 1)) from None


def read_agent_data(value: Any) -> AgentData:
    """AgentData from a run's input; raises ConfigError naming the field."""
    try:
        return AgentData.model_validate(value)
    except ValidationError as error:
        raise ConfigError(f"agent: {problems_of(error)}") from None
