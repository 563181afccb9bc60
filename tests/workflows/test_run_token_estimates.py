"""What a limit on tokens expects of a call is learned from what the model's calls have used."""

from __future__ import annotations

from perdure import Agent, Limits
from tests.conftest import Serve
from tests.fake_chat import fake_chat


async def test_a_limit_knows_how_dense_a_models_tokens_are(serve: Serve) -> None:
    """4,000 characters are 1,000 tokens at first; no call is made once they have been 4,000 often enough."""
    async with fake_chat({"text": "ok", "usage": {"prompt_tokens": 4_000, "completion_tokens": 1}}) as fake:
        agent = Agent("dense", fake.model())
        lab = await serve(agent)
        first = await lab.run(agent, "x" * 4_000, limits=Limits(tokens=2_000))
        for _ in range(3):
            await lab.run(agent, "x" * 4_000)
        asked = len(fake.requests)
        last = await lab.run(agent, "x" * 4_000, limits=Limits(tokens=2_000))
    assert (first["outcome"], last["outcome"], last["reason"]) == ("success", "budget_exceeded", "max_tokens")
    assert len(fake.requests) == asked
