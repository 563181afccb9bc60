"""A model behind an HTTP format of its own: `perdure dev examples/own_provider.py`, with its address in TALK_URL."""

import os
from typing import Any

import httpx2

from perdure import Agent, ModelReply, ModelRequest, ProviderError, provider, tool
from perdure.errors import ErrorKind
from perdure.messages import AssistantMessage, Message, ToolMessage, Usage, text_of
from perdure.model_call import Finish, RawCall, RawText


def turn(message: Message) -> dict[str, Any]:
    """A message as the server reads it."""
    if isinstance(message, ToolMessage):
        return {"did": message.call, "says": text_of(message)}
    calls = message.calls if isinstance(message, AssistantMessage) else ()
    does = [{"id": call.id, "skill": call.tool, "with": call.arguments} for call in calls]
    return {"who": message.role, "says": text_of(message), "does": does}


@provider("talk")
async def complete(request: ModelRequest) -> ModelReply:
    """One reply of the server; tried again where it was away, busy or broken."""
    skills = [{"skill": t.name, "about": t.description, "takes": t.parameters} for t in request.tools]
    body = {"model": request.model, "task": request.instructions, "skills": skills}
    try:
        async with httpx2.AsyncClient(timeout=60, headers={"x-key": os.environ.get("TALK_KEY", "")}) as http:
            address = os.environ.get("TALK_URL", "http://127.0.0.1:8080/talk")
            answer = await http.post(address, json={**body, "turns": [turn(m) for m in request.messages]})
    except httpx2.TransportError as error:
        raise ProviderError(ErrorKind.CONNECTION, f"talk: {type(error).__name__}") from error
    if answer.status_code != 200:
        kind = ErrorKind.OVERLOADED if answer.status_code >= 429 else ErrorKind.INVALID_REQUEST
        raise ProviderError(kind, f"talk: {answer.text[:200]}", status=answer.status_code)
    said = answer.json()
    words = [RawText(said["says"])] if said["says"] else []
    usage = Usage(input_tokens=said["read"], output_tokens=said["wrote"])
    return ModelReply((*words, *(RawCall(do["skill"], do["with"]) for do in said["does"])), Finish.STOP, usage)


@tool(effect="read")
def get_stock(item: str) -> int:
    """How many of an item are there."""
    return {"bolts": 120, "nuts": 0}.get(item, 0)


keeper = Agent("keeper", "talk:small", "You keep a store.", tools=[get_stock])
