"""Runs whose histories are kept for who has answered in them: a chain whose first model fails, and a router."""

from __future__ import annotations

from decimal import Decimal

from perdure import Agent, Price, Router, RoutingRule
from perdure.testing import calls, failure, reply, scripted
from tests.lab import Lab, closed
from tests.replay.scenarios import AGENTS, Handle, look, scenario

CHEAP, DEAR = Price(input=Decimal(1), output=Decimal(2)), Price(input=Decimal(3), output=Decimal(4))

first = scripted(failure("authentication"), reply("ok"), price=CHEAP)
second = scripted(calls("look", n=1), name="second", price=DEAR)
AGENTS["chained"] = Agent("chained", [first, second], tools=[look])

late = RoutingRule(model=[scripted(failure("not_found"), repeat=True), scripted({}, reply("ok"), name="late")],
                   after_steps=1)  # fmt: skip
AGENTS["routed"] = Agent(
    "routed", router=Router(default=scripted(calls("look", n=1), price=CHEAP), rules=[late]), tools=[look]
)


@scenario("chained")
async def chained(lab: Lab) -> list[Handle]:
    """The first model fails for good in one call, and answers the next."""
    run = await lab.start("chained")
    await closed(run)
    return [run.handle]


@scenario("routed")
async def routed(lab: Lab) -> list[Handle]:
    """The second call goes to other models, the first of which fails."""
    run = await lab.start("routed")
    await closed(run)
    return [run.handle]
