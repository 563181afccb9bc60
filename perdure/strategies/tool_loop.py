"""The loop that most agents are: model, tools, model, ... until an answer stands."""

from __future__ import annotations

from perdure.outcomes import Ending, Outcome
from perdure.runtime import Reply, Runtime
from perdure.strategies.parameters import ToolLoop

EMPTY = "Your reply was empty. Answer the user, or call a tool."
IDLE = (
    "Your last replies brought nothing new: the same calls, or nearly the same, with errors or results that you have. "
    "Do something else, or answer with what you know."
)
MOST_PAUSES = 10
"""How often in a row a server may pause over tools of its own; each time is a step."""
MISSING = "You announced a tool call but sent none. Send the call, or answer the user."


async def tool_loop(rt: Runtime, params: ToolLoop) -> Ending:
    """Run the tools a model asks for until it answers without asking; then check the answer and end."""
    pauses = 0
    while True:
        if calls := rt.open_calls():
            results = await rt.tools(calls, max_repeats=params.max_repeats)
            if final := next((ran for ran in results if ran.final), None):
                text = "".join(p.text for p in final.message.parts if p.type == "text")
                return Ending(outcome=Outcome.SUCCESS, output=text, structured=final.structured)
            if stuck := _stuck(rt, params, rt.idle("", list(zip(calls, results, strict=False)))):
                return stuck
        # A turn that goes on takes no word in between: it would end what the server has not finished.
        fresh = not pauses and (rt.take_said() or len(rt.messages) <= 1)
        reply = await rt.model(tool_choice=rt.spec.tool_choice if fresh else "auto")
        pauses = pauses + 1 if reply.finish == "paused" and not reply.calls else 0
        if 0 < pauses <= MOST_PAUSES:
            continue
        if reply.calls:
            if reply.finish == "length" and rt.count("cut") > params.max_cut:
                await rt.tools(reply.calls, max_repeats=params.max_repeats)  # answered with why they did not run
                return _end(
                    Outcome.FAILED, "truncated", reply, "tool calls were cut by the output limit again and again"
                )
            continue
        if nudge := _nothing(reply):
            if rt.count("nudge") > params.max_nudges:
                return _end(Outcome.FAILED, nudge[0], reply, nudge[1])
            rt.tell(nudge[1], nudge[0])
            if stuck := _stuck(rt, params, rt.idle(reply.text)):
                return stuck
            continue
        if reply.finish != "stop":
            return _end(*_UNFINISHED[reply.finish], reply)
        if rt.take_said():
            continue
        problem = reply.misfit or await rt.verify(reply.text, reply.structured)
        if problem is None:
            return _end(Outcome.SUCCESS, None, reply)
        if rt.count("correction") > rt.spec.corrections:
            return _end(Outcome.NO_SOLUTION, "output_schema" if reply.misfit else "verify", reply, problem)
        rt.tell(f"Your answer was not accepted: {problem}")
        if stuck := _stuck(rt, params, rt.idle(reply.text)):
            return stuck


_UNFINISHED = {
    "length": (Outcome.NO_SOLUTION, "truncated"),
    "filtered": (Outcome.BLOCKED, "filtered"),
    "refused": (Outcome.NO_SOLUTION, "refused"),
    "paused": (Outcome.NO_SOLUTION, "paused"),
}


def _stuck(rt: Runtime, params: ToolLoop, idle: int) -> Ending | None:
    """Tell the model that it gets nowhere, and end where that did not help."""
    if idle == params.max_idle:
        rt.tell(IDLE, "idle")
    if idle < 2 * params.max_idle:
        return None
    return Ending(outcome=Outcome.NO_SOLUTION, reason="loop", message=f"{idle} replies in a row brought nothing new")


def _nothing(reply: Reply) -> tuple[str, str] | None:
    if reply.finish in {"filtered", "refused", "paused"}:
        return None
    if reply.announced:
        return "missing_call", MISSING
    return None if reply.text.strip() else ("empty", EMPTY)


def _end(outcome: Outcome, reason: str | None, reply: Reply, message: str | None = None) -> Ending:
    return Ending(outcome=outcome, reason=reason, output=reply.text, structured=reply.structured, message=message)
