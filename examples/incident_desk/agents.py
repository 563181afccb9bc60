"""An incident desk: two specialists read a log each, their findings are compared, and what does not fit gets a ticket.

The model is the one of COMPATIBLE_BASE_URL or OPENAI_API_KEY; without either, `script.json` plays it.
"""

import json
import os
import re
import sqlite3
import time
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from perdure import Agent, Approval, Limits, Model, ToolContext, tool

HERE = Path(__file__).parent
LOGS = {"gateway": HERE / "data" / "gateway.log", "payments": HERE / "data" / "payments.log"}
TICKETS = Path(os.environ.get("PERDURE_DATA_DIR", ".perdure")) / "tickets.db"
PACE = float(os.environ.get("INCIDENT_DESK_PACE", "0"))
"""Seconds that a specialist's look into a log takes: a demonstration of crashes needs a middle."""

REQUEST, ORDER, STATUS = re.compile(r"\breq_\w+"), re.compile(r"\border=(\S+)"), re.compile(r"\bstatus=(\S+)")

Log = Literal["gateway", "payments"]


def model_for(agent: str) -> str | Model:
    """The model that the environment offers, else this agent's part of the script."""
    if os.environ.get("COMPATIBLE_BASE_URL"):
        return Model(provider="compatible", name=os.environ.get("COMPATIBLE_MODEL", "default"))
    if os.environ.get("OPENAI_API_KEY"):
        return f"openai-chat:{os.environ.get('OPENAI_MODEL', 'gpt-5-mini')}"
    return Model(provider="scripted", params={"script": json.loads((HERE / "script.json").read_text())[agent]})


# --- reading the logs -------------------------------------------------------------------------------------------------


def lines_of(log: Log) -> list[str]:
    """All lines of a log."""
    return LOGS[log].read_text().splitlines()


def status_of(line: str) -> str:
    """The value of `status=` in a line."""
    found = STATUS.search(line)
    return found[1] if found else ""


def request_of(line: str) -> str:
    """The request id of a line."""
    found = REQUEST.search(line)
    return found[0] if found else ""


@tool(effect="read", heartbeat="5s")
def count_status(log: Log) -> dict[str, Any]:
    """How many lines of a log have which status, and what period it covers.

    Args:
        log: Which log.
    """
    time.sleep(PACE)
    lines = lines_of(log)
    return {"counts": Counter(map(status_of, lines)), "first": lines[0].split()[0], "last": lines[-1].split()[0]}


@tool(effect="read", heartbeat="5s")
def read_log(
    log: Log, contains: str = "", after_line: int = 0, limit: Annotated[int, Field(ge=1, le=100)] = 50
) -> dict[str, Any]:
    """The lines of a log that contain a text, with their request ids in the same order.

    Args:
        log: Which log.
        contains: Exact text, such as `status=502`; empty for every line.
        after_line: Skip lines up to this number; give `next_after` of the last result to read on.
        limit: At most so many lines.
    """
    time.sleep(PACE)
    found = [(n, line) for n, line in enumerate(lines_of(log), 1) if n > after_line and contains in line]
    page = found[:limit]
    return {
        "matching": len(found),
        "request_ids": [request_of(line) for _, line in page],
        "lines": [f"{n}: {line}" for n, line in page],
        "next_after": page[-1][0] if len(found) > limit else None,
    }


@tool(effect="read", heartbeat="5s")
def trace_request(request_id: str) -> dict[str, Any]:
    """Everything that both logs have on a request and on other requests for the same order.

    Args:
        request_id: Such as `req_1a2b3c4d`.
    """
    everything = lines_of("payments")
    gateway = [line for line in lines_of("gateway") if request_of(line) == request_id]
    payments = [line for line in everything if request_of(line) == request_id]
    order = next((found[1] for line in payments if (found := ORDER.search(line))), None)
    same_order = [line for line in everything if order and f"order={order} " in line]
    return {
        "request_id": request_id,
        "order": order,
        "gateway_status": status_of(gateway[-1]) if gateway else None,
        "payment_status": status_of(payments[-1]) if payments else None,
        "captures_of_order": sum(status_of(line) == "CAPTURED" for line in same_order),
        "gateway": gateway,
        "payments": same_order,
    }


@tool(effect="read")
def cross_check(gateway_502: list[str], failed_payments: list[str]) -> dict[str, Any]:
    """Which requests of the gateway's 502s do not have exactly one failed payment.

    Args:
        gateway_502: Request ids that the gateway answered with 502.
        failed_payments: Request ids of failed payments, one for each failure.
    """
    failures = Counter(failed_payments)
    unmatched = [request for request in gateway_502 if failures[request] != 1]
    return {"checked": len(gateway_502), "matched": len(gateway_502) - len(unmatched), "unmatched": unmatched}


# --- the ticket: the only thing that changes the world ----------------------------------------------------------------


def tickets_of(run_id: str) -> list[dict[str, Any]]:
    """The tickets that a run has opened."""
    if not TICKETS.exists():
        return []
    with closing(sqlite3.connect(TICKETS)) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute("SELECT * FROM tickets WHERE run_id = ? ORDER BY id", (run_id,))]


@tool(effect="write", approval=Approval(timeout="15m", on_timeout="deny"))
def open_ticket(title: str, body: str, severity: Literal["low", "medium", "high"], ctx: ToolContext) -> dict[str, Any]:
    """Open a ticket for the people on call. A person has to approve it.

    Args:
        title: One line.
        body: What happened, with request ids and orders, and what should be looked at.
        severity: `high` where customers lose money.
    """
    TICKETS.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(TICKETS, timeout=30)) as db, db:
        db.execute(
            "CREATE TABLE IF NOT EXISTS tickets (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE,"
            " run_id TEXT NOT NULL, opened_at TEXT NOT NULL, severity TEXT NOT NULL, title TEXT NOT NULL,"
            " body TEXT NOT NULL)"
        )
        # The key is the same in every attempt of this call, so the table itself refuses a second ticket.
        db.execute(
            "INSERT INTO tickets (key, run_id, opened_at, severity, title, body) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (key) DO NOTHING",
            (ctx.idempotency_key, ctx.run_id, datetime.now(UTC).isoformat(), severity, title, body),
        )
        (ticket,) = db.execute("SELECT id FROM tickets WHERE key = ?", (ctx.idempotency_key,)).fetchone()
    return {"ticket": ticket}


# --- what the agents hand over ----------------------------------------------------------------------------------------


class Findings(BaseModel):
    """What a specialist found in its log."""

    status: str = Field(description="The status that was looked for.")
    count: int = Field(ge=0, description="How many lines have it.")
    request_ids: list[str] = Field(description="The request id of each of these lines.")
    notes: str = Field(description="What else is remarkable, in one or two sentences.")


class IncidentReport(BaseModel):
    """The end of the job; every number is compared with the logs before it is accepted."""

    gateway_502: int = Field(ge=0, description="Requests that the gateway answered with 502.")
    failed_payments: int = Field(ge=0, description="Payments that ended FAILED, for whatever reason.")
    matched: int = Field(ge=0, description="502s with exactly one failed payment of the same request.")
    unmatched: list[str] = Field(description="Request ids of the other 502s.")
    severity: Literal["none", "low", "medium", "high"]
    summary: str = Field(min_length=40, description="Two to four sentences for somebody who has seen nothing yet.")
    next_steps: list[str] = Field(min_length=1)


class FiledReport(IncidentReport):
    """A report as it is filed, with what the desk's own records add."""

    ticket: int | None = None


@tool(effect="read", final=True)
def file_report(report: IncidentReport, ctx: ToolContext) -> FiledReport:
    """File the report, which ends the job. A report that contradicts the logs is refused with what is wrong.

    Args:
        report: The report.
    """
    gateway = [request_of(line) for line in lines_of("gateway") if status_of(line) == "502"]
    failed = Counter(request_of(line) for line in lines_of("payments") if status_of(line) == "FAILED")
    unmatched = {request for request in gateway if failed[request] != 1}
    expected = {
        "gateway_502": len(gateway),
        "failed_payments": failed.total(),
        "matched": len(gateway) - len(unmatched),
    }
    problems = [
        f"{field}: the report says {said}, the logs say {value}"
        for field, value in expected.items()
        if (said := getattr(report, field)) != value
    ]
    if set(report.unmatched) != unmatched:
        problems.append(f"unmatched: the logs say {sorted(unmatched)}")
    if problems:
        raise ValueError("; ".join(problems))
    tickets = tickets_of(ctx.run_id)
    return FiledReport(**report.model_dump(), ticket=tickets[0]["id"] if tickets else None)


# --- the agents -------------------------------------------------------------------------------------------------------

gateway_analyst = Agent(
    name="gateway_analyst",
    model=model_for("gateway_analyst"),
    description="Reads the gateway's log: which requests were answered with which status.",
    instructions=(
        "You read the log `gateway` of a shop: one line a request, with `status=`. Count first, then read the lines in "
        "question, all pages of them. `502` also occurs as a size, a duration and in paths: only `status=502` counts."
    ),
    tools=[count_status, read_log],
    output=Findings,
    limits=Limits(steps=10, tokens=100_000, deadline="10m"),
)

payments_analyst = Agent(
    name="payments_analyst",
    model=model_for("payments_analyst"),
    description="Reads the payment service's log: what became of which payment.",
    instructions=(
        "You read the log `payments` of a shop: several lines a payment, with `status=`. Count first, then read the "
        "lines in question, all pages of them. DECLINED and RETRYING are not FAILED. Name each FAILED line once."
    ),
    tools=[count_status, read_log],
    output=Findings,
    limits=Limits(steps=10, tokens=100_000, deadline="10m"),
)

incident_desk = Agent(
    name="incident_desk",
    model=model_for("incident_desk"),
    instructions=(
        "You run the incident desk of a shop. Each request that the gateway answered with 502 should have exactly one "
        "FAILED payment. 1. Ask gateway_analyst for all request ids with status 502 and payments_analyst for all "
        "request ids with status FAILED, both in one reply. 2. cross_check what they found. 3. trace_request each "
        "request that does not match. 4. Open one ticket for all of them, none if all match. 5. file_report."
    ),
    tools=[gateway_analyst, payments_analyst, cross_check, trace_request, open_ticket, file_report],
    limits=Limits(steps=20, tool_calls=40, tokens=400_000, deadline="20m"),
)
