"""The incident desk from start to end: an embedded server, a worker, one job on two logs, its report.

With --kill the worker is killed twice on the way, and the job ends the same.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
from contextlib import AsyncExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout that is not installed runs too

from perdure.client import Client
from perdure.embedded import EmbeddedServer, Endpoint, find_binary
from perdure.errors import NoAnswer, NoSuchRun, PerdureError
from perdure.messages import ToolMessage, text_of
from perdure.outcomes import RunResult
from perdure.status import RunEvent

AGENTS = Path(__file__).with_name("agents.py")
WORKER = Path(__file__).resolve().parents[2] / "worker.py"
SPECIALISTS = {"gateway_analyst", "payments_analyst"}
QUIET = 20
"""Looks without news after which it is told what is tried again."""
OPERATOR = "desk-operator"
PROMPT = "Customers saw errors at the checkout between 18:00 and 19:00 UTC. Find out what happened, and report."
SCRIPTED = " (a script plays the model, as neither OPENAI_API_KEY nor COMPATIBLE_BASE_URL is set; the rest is real)"


def say(who: str, what: str) -> None:
    """Print a line of the story."""
    print(f"{datetime.now().astimezone():%H:%M:%S}  {who:<17} {what}", flush=True)


class WorkerProcess:
    """`python worker.py agents.py` as a process of its own, so that it can be killed."""

    def __init__(self, data_dir: Path, environment: dict[str, str]) -> None:
        self.log, self.environment = data_dir / "incident-desk-worker.log", os.environ | environment
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it and wait until it serves; raises PerdureError with its last words where it ends instead."""
        self.process = self._spawn()
        while b"worker: serving" not in self.log.read_bytes():
            self.check()
            await asyncio.sleep(0.05)
        say("worker", f"process {self.process.pid} serves the agents")

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(WORKER), str(AGENTS)]
        with self.log.open("wb") as log:
            # In a session of its own: Ctrl-C reaches this program alone, which then stops the worker in peace.
            return subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)

    def check(self) -> None:
        """Raise PerdureError where it has ended by itself."""
        if self.process is not None and self.process.poll() is not None:
            words = self.log.read_text(errors="replace").strip().splitlines() or ["nothing"]
            raise PerdureError(f"the worker ended with code {self.process.returncode}, saying: {words[-1]}")

    async def kill_and_replace(self, when: str) -> None:
        """SIGKILL, which leaves no time for a last word, and another process in its place."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        say("KILL", f"worker process {self.process.pid} got SIGKILL {when}; the run itself is in Temporal")
        await self.start()

    def stop(self) -> None:
        """Ask it to stop and wait; after 20 s by force."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Job:
    """One run of the desk, told while it happens, with a person's part played where it is needed."""

    def __init__(self, client: Client, run_id: str, worker: WorkerProcess, options: argparse.Namespace) -> None:
        self.client, self.handle, self.worker, self.ask = client, client.handle(run_id), worker, options.ask
        self.names, self.seen = {run_id: "incident_desk"}, {run_id: 0}
        self.kills = {"specialists", "approval"} if options.kill else set()
        self.reading: dict[str, datetime] = {}
        """Specialists that are at a log right now, and since when."""
        self.asked: set[str] = set()
        """Calls that wait for a decision."""
        self.retries: set[str] = set()
        """Attempts that were told."""
        self.model, self.model_calls, self.decided = "", 0, 0

    async def follow(self) -> RunResult:
        """Tell the story to its end; raises RunFailed and what else a handle's result raises."""
        ended, quiet = False, 0
        while not ended:
            self.worker.check()
            news = await self._news()
            quiet = 0 if news else quiet + 1
            if quiet and quiet % QUIET == 0:
                await self._tell_retries()
            for run, event in news:
                await self._tell(run, event)
                ended = ended or (event.type == "run_ended" and run == self.handle.id)
            if "specialists" in self.kills and self._both_read():
                self.kills.remove("specialists")
                await self.worker.kill_and_replace(f"while {' and '.join(sorted(self.reading))} read")
                say("KILL", "what was cut is done again once its heartbeat is missed: 5 s for a look, 30 s for a model")
            if self.asked:
                await self._decide()
            await asyncio.sleep(0.1)
        return await self.handle.result()

    async def _tell_retries(self) -> None:
        for run, who in self.names.items():
            with suppress(NoSuchRun):  # a child that is about to be started
                retrying = (await self.client.handle(run).status()).retrying
                for attempt in {f"goes on with {attempt}" for attempt in retrying} - self.retries:
                    self.retries.add(attempt)
                    say(who, attempt)

    def _both_read(self) -> bool:
        """Whether it is the middle of both, or of one while the other does something else."""
        since = min(self.reading.values(), default=datetime.max.replace(tzinfo=UTC))
        return self.reading.keys() == SPECIALISTS or datetime.now(UTC) - since > timedelta(seconds=1)

    async def _news(self) -> list[tuple[str, RunEvent]]:
        """New events of the run and of its specialists, in the order in which they happened."""
        found: list[tuple[str, RunEvent]] = []
        for run, after in list(self.seen.items()):
            try:
                page = await self.client.handle(run).events(after)
            except (NoAnswer, NoSuchRun):  # its worker was just killed, or the child is about to be started
                continue
            self.seen[run] = page.last
            found += [(run, event) for event in page.events]
        return sorted(found, key=lambda item: item[1].at)

    async def _tell(self, run: str, event: RunEvent) -> None:
        who, desk, of = self.names[run], run == self.handle.id, (event.model_extra or {}).get
        match event.type:
            case "run_started" if desk:
                self.model = str(of("model"))
                say("model", f"{self.model}{SCRIPTED if self.model == 'scripted' else ''}")
            case "child_started":
                self.names[str(of("workflow_id"))], self.seen[str(of("workflow_id"))] = str(of("agent")), 0
                say(who, f"delegates to {of('agent')}")
            case "child_ended":
                say(self.names[str(of("workflow_id"))], f"reports back: {of('outcome')}, {of('tokens')} tokens")
            case "reply":
                self.model_calls += 1
                if desk and of("text"):
                    say(who, f'"{of("text")}"')
            case "tool_start" if of("tool") not in SPECIALISTS:
                self.reading |= {} if desk else {who: event.at}
                say(who, f"runs {of('tool')}")
            case "tool_end":
                self.reading.pop(who, None)
                if of("error"):
                    told = [m for m in await self.client.handle(run).conversation() if isinstance(m, ToolMessage)]
                    say(who, f"gets an error: {next((text_of(m) for m in told if m.call == of('call_id')), '')}")
            case "approval_requested":
                self.asked.add(str(of("call_id")))
                say(who, f"wants {of('tool')}, which needs a person's approval")
            case "approval_decided":
                self.asked.discard(str(of("call_id")))
                self.decided += 1
                say(who, f"{of('tool')} was {'approved' if of('approve') else 'denied'} by {of('by')}")

    async def _decide(self) -> None:
        if "approval" in self.kills:
            self.kills.remove("approval")
            await self.worker.kill_and_replace("while the approval waits")
        try:
            pending = await self.handle.approvals()
        except NoAnswer:
            return
        for call in pending:
            title = call.arguments.get("title")
            if self.decided:
                approve, reason = False, "one incident, one ticket: this run has asked before"
            elif self.ask:
                answer = await read_line(f"Open the ticket {title!r}? [y/N] ")
                approve, reason = answer.lower() in {"y", "yes"}, "decided at the terminal"
            else:
                say("operator", f'approving as {OPERATOR}, in your place (--ask leaves it to you): "{title}"')
                approve, reason = True, "approved by the example's program"
            await self.handle.decide(call.call_id, approve, by=OPERATOR, reason=reason, digest=call.digest)


async def read_line(question: str) -> str:
    """A person's answer; other than `input`, it can be interrupted."""
    print(question, end="", flush=True)
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str] = loop.create_future()

    def take() -> None:
        loop.remove_reader(sys.stdin)
        answer.set_result(sys.stdin.readline())

    loop.add_reader(sys.stdin, take)
    try:
        return (await answer).strip()
    finally:
        loop.remove_reader(sys.stdin)


def print_report(result: RunResult, job: Job, tickets: list[tuple[int, str]]) -> None:
    """The report, what it cost, and the tickets of the run."""
    table = Table(title="Incident report", title_justify="left", show_header=False, width=100)
    for field, value in (result.structured or {"output": result.output or result.reason}).items():
        shown_value = "\n".join(map(str, value)) if isinstance(value, list) else str(value)
        table.add_row(field, shown_value if value is not None else "none")
    print()
    Console(width=100).print(table)
    usage = result.usage
    free = "a script costs nothing" if job.model == "scripted" else "no price is known for this model"
    print(f"\nOutcome   {result.outcome.value}{f' ({result.reason})' if result.reason else ''}")
    print(f"Cost      ${result.cost_usd}{f' ({free})' if result.cost_usd == '0' else ''}")
    print(f"Tokens    {usage.input_tokens} in and {usage.output_tokens} out, all three agents together")
    print(f"Steps     {result.steps} model calls and {result.tool_calls} tool calls of the desk;")
    print(f"          {job.model_calls} model calls of all three agents together")
    for number, title in tickets:
        print(f"Ticket    #{number} {title}")
    print(f"          {len(tickets)} ticket{'' if len(tickets) == 1 else 's'} of this run in the desk's table")


def print_where_to_look(data_dir: Path, run_id: str, endpoint: Endpoint, stopped: bool) -> None:
    """How to see the run in Temporal, now or when the server is up again."""
    address = "ADDRESS" if stopped else endpoint.address
    print(f"\nRun       {run_id}, kept in {data_dir}")
    if stopped:
        folder = f"PERDURE_DATA_DIR={data_dir} " if "PERDURE_DATA_DIR" in os.environ else ""
        dev = shown(Path(sys.executable).with_name("perdure"))
        print("Look at   its server stops now; the following starts it again and prints ADDRESS and the web page:")
        print(f"          {folder}{dev} dev {shown(AGENTS)}")
    else:
        print(f"Look at   {endpoint.ui_address}/namespaces/default/workflows/{run_id}")
    print(f"          {shown(find_binary())} workflow show --workflow-id {run_id} --address {address}")
    print("Try next  --kill kills the worker twice on the way; --ask lets you decide about the ticket;")
    print("          OPENAI_API_KEY or COMPATIBLE_BASE_URL (with COMPATIBLE_MODEL) puts a real model in charge")


def shown(path: Path) -> str:
    """A path as it is typed from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def tickets_of(data_dir: Path, run_id: str) -> list[tuple[int, str]]:
    """Number and title of each ticket of a run, read from the file itself."""
    if not (data_dir / "tickets.db").exists():
        return []
    with closing(sqlite3.connect(data_dir / "tickets.db")) as db:
        return db.execute("SELECT id, title FROM tickets WHERE run_id = ? ORDER BY id", (run_id,)).fetchall()


async def main(options: argparse.Namespace, data_dir: Path) -> int:
    """Exit code: 0 where the job ended with its report and one ticket."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    run_id = f"incident-{datetime.now().astimezone():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    async with AsyncExitStack() as stack:
        found = EmbeddedServer.running(data_dir)
        endpoint = found or (await stack.enter_async_context(EmbeddedServer(data_dir))).endpoint
        say("server", f"{endpoint.address}, {'already running' if found else 'started'}; data in {data_dir}")
        # A server that runs already may have a worker without these agents on the usual queue.
        queue = "incident-desk" if found else "perdure"
        environment = {"PERDURE_DATA_DIR": str(data_dir), "PERDURE_TASK_QUEUE": queue}
        environment |= {"INCIDENT_DESK_PACE": "2" if options.kill else "0"}
        worker = WorkerProcess(data_dir, environment | {"TEMPORAL_ADDRESS": endpoint.address})
        stack.callback(worker.stop)
        await worker.start()
        client = await Client.connect(address=endpoint.address, task_queue=queue)
        await client.start("incident_desk", PROMPT, id=run_id, user=os.environ.get("USER") or None)
        say("run", f"{run_id}  {endpoint.ui_address}/namespaces/default/workflows/{run_id}")
        if options.kill:
            say("KILL", "the worker will be killed twice; each look into a log takes 2 s, so that there is a middle")
        job = Job(client, run_id, worker, options)
        result = await job.follow()
        tickets = tickets_of(data_dir, run_id)
        print_report(result, job, tickets)
        print_where_to_look(data_dir, run_id, endpoint, stopped=found is None)
        if job.kills:
            print(f"incident desk: there was no moment to kill the worker at: {', '.join(job.kills)}", file=sys.stderr)
    return 0 if result.outcome == "success" and (options.ask or len(tickets) == 1) else 1


def entry() -> int:
    """Read the options, run, and turn every end into an exit code and at most one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kill", action="store_true", help="SIGKILL the worker twice and start another")
    parser.add_argument("--ask", action="store_true", help="let you decide about the ticket; needs a terminal")
    options = parser.parse_args()
    if options.ask and not sys.stdin.isatty():
        parser.error("--ask needs a terminal")
    # Settings for another Temporal server, perhaps with TLS, are not for the embedded one.
    for name in [name for name in os.environ if name.startswith("TEMPORAL_")]:
        del os.environ[name]
    os.environ["TEMPORAL_CONFIG_FILE"] = os.devnull
    try:
        return asyncio.run(main(options, Path(os.environ.get("PERDURE_DATA_DIR") or ".perdure").resolve()))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("incident desk: stopped; `perdure dev` with the same agents file goes on with the run", file=sys.stderr)
        return 130
    except (PerdureError, OSError, sqlite3.Error) as error:
        print(f"incident desk: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    code = entry()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Temporal's client has threads of its own that need not be waited for
