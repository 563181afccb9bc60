"""A run followed in a terminal and by programs: text as it comes, questions, interrupts, and what goes wrong."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.server import Server
from tests.cli.command_line import CommandLine, make, pending, until
from tests.cli.terminal import Terminal

pytestmark = pytest.mark.slow

STYLES = re.compile(r"\x1b\[\d*m")
WORDS = " ".join(f"w{number}" for number in range(400))


@pytest.mark.parametrize("columns", [80, 12])
def test_text_is_shown_once_as_it_comes(perdure: CommandLine, new_id: str, columns: int) -> None:
    """On a terminal the answer grows, and is not repeated at the end; nothing in it moves the cursor."""
    with Terminal(perdure, "run", "slow", "x", "--id", new_id, columns=columns, NO_COLOR="1") as terminal:
        assert "w399" not in terminal.until("step 1: w0 w1 ")
        assert terminal.finish() == 0
        assert terminal.seen.replace("\n", "").count(WORDS) == 1
        assert re.search(r"\[\d+ tokens, \$0\]\nsuccess\n$", STYLES.sub("", terminal.seen))
        assert "\x1b[3" not in terminal.seen


def test_odd_characters(perdure: CommandLine, new_id: str) -> None:
    """Escapes, bells, carriage returns and turned text are left out; wide characters and long lines stay."""
    with Terminal(perdure, "run", "odd", "x", "--id", new_id, NO_COLOR="1") as terminal:
        assert terminal.finish() == 0
    assert f"step 1: [31mred evil\n\u597d\U0001f600 tail {'long' * 100}\n" in terminal.seen
    assert not {"\x07", "\u202e", "\r"} & set(terminal.seen)
    assert "\x1b[31m" not in terminal.seen


def test_ascii_terminal(perdure: CommandLine, new_id: str) -> None:
    """What the terminal's encoding lacks is replaced."""
    with Terminal(perdure, "run", "odd", "x", "--id", new_id, NO_COLOR="1", PYTHONIOENCODING="ascii") as terminal:
        assert terminal.finish() == 0
    assert "?? tail" in terminal.seen


def test_interrupted_and_attached_again(perdure: CommandLine, new_id: str) -> None:
    """Ctrl-C leaves the run and says how to come back; coming back shows the text that is written, once."""
    with Terminal(perdure, "run", "slow", "x", "--id", new_id) as terminal:
        terminal.until("w5 ")
        terminal.interrupt()
        assert terminal.finish() == 130
        assert f"run {new_id} goes on; follow it with `perdure events {new_id} --follow`" in terminal.seen
    with Terminal(perdure, "events", new_id, "--follow", NO_COLOR="1") as terminal:
        assert terminal.finish() == 0
        assert terminal.seen.count(WORDS) == 1
        assert terminal.seen.count("w7 ") == 1
        assert terminal.seen.splitlines()[-1].endswith("run_ended outcome=success")


def test_interrupted_twice(perdure: CommandLine, new_id: str) -> None:
    """A second Ctrl-C leaves at once; the run goes on."""
    with Terminal(perdure, "run", "payer", "x", "--id", new_id) as terminal:
        terminal.until("approve? y or n")
        terminal.interrupt()
        terminal.interrupt()
        assert terminal.finish() == 130
    assert perdure.json("show", new_id)["status"]["state"] == "waiting_approval"


@pytest.mark.parametrize("how", ["interrupt", "hang_up"])
def test_left_at_a_question(perdure: CommandLine, new_id: str, how: str) -> None:
    """Ctrl-C and a closed terminal leave the call undecided."""
    with Terminal(perdure, "run", "payer", "x", "--id", new_id) as terminal:
        terminal.until("approve? y or n")
        getattr(terminal, how)()
        code = terminal.process.wait(30)
        assert code == (130 if how == "interrupt" else -signal.SIGHUP)
    assert [call["call_id"] for call in pending(perdure, new_id)] == ["c1"]


@pytest.mark.parametrize("before", [[], ["n\n"]])
def test_the_end_of_input(perdure: CommandLine, new_id: str, before: list[str]) -> None:
    """Ctrl-D leaves the call undecided, at the reason too, and goes on following; somebody else decides."""
    with Terminal(perdure, "run", "payer", "x", "--id", new_id) as terminal:
        for typed, asked in zip((*before, "\x04"), ("approve? y or n", "why?"), strict=False):
            terminal.until(asked)
            terminal.press(typed)
        terminal.until(f"stays open, and is answered by its command\n     perdure approve {new_id} c1\n")
        assert len(pending(perdure, new_id)) == 1
        perdure("deny", new_id, "--reason", "no money")
        assert terminal.finish() == 0
        assert "denied" in terminal.seen
        assert "no money" in terminal.seen


def test_questions_on_a_terminal(perdure: CommandLine, new_id: str) -> None:
    """Each is asked with its options and answered by typing; an empty or unknown answer asks again."""
    with Terminal(perdure, "run", "asker", "x", "--id", new_id, NO_COLOR="1") as terminal:
        terminal.until(f"{new_id} asks: Did it happen?\n  answer?\n")
        assert perdure.json("show", new_id)["status"]["state"] == "waiting_answer"
        terminal.press("\n")
        terminal.until("  answer?\n", 2)
        terminal.press("in a way\n")
        for times, typed in enumerate(("\n", "maybe\n", "it did\n"), 1):
            terminal.until("  answer? one of: it did | no\n", times)
            terminal.press(typed)
        assert terminal.finish() == 0
    assert perdure.json("show", new_id)["result"]["output"] == "Heard: in a way, it did"


def test_a_question_that_is_left(perdure: CommandLine, new_id: str) -> None:
    """Ctrl-D leaves all questions open, the next one too, with the command for each; its answer is followed."""
    with Terminal(perdure, "run", "asker", "x", "--id", new_id, NO_COLOR="1") as terminal:
        terminal.until("  answer?\n")
        terminal.press("\x04")
        terminal.until(f"     perdure answer {new_id} q-c1 TEXT\n     perdure answer {new_id} q-c2 'it did'\n")
        assert "one of:" not in terminal.seen
        for question, text in (("q-c1", "yes"), ("q-c2", "no")):
            perdure("answer", new_id, question, text)
        assert terminal.finish() == 0
    assert "Heard: yes, no" in terminal.seen


def test_a_question_answered_elsewhere(perdure: CommandLine, new_id: str) -> None:
    """It is withdrawn, and the next one is asked."""
    with Terminal(perdure, "run", "asker", "x", "--id", new_id, NO_COLOR="1") as terminal:
        terminal.until("  answer?\n")
        perdure("answer", new_id, "q-c1", "yes")
        terminal.until("  answer? one of: it did | no\n")
        assert "(no longer asked)" in terminal.seen
        terminal.press("no\n")
        assert terminal.finish() == 0
    assert "Heard: yes, no" in terminal.seen


def test_a_call_that_others_decide(perdure: CommandLine, new_id: str) -> None:
    """Whoever is no approver is not asked, but told who is; the run is followed on."""
    with Terminal(perdure, "run", "guarded", "x", "--id", new_id, NO_COLOR="1") as terminal:
        terminal.until(f"  c1 is not asked here: only ann or bea may decide it\n     perdure approve {new_id} c1\n")
        assert "approve? y or n" not in terminal.seen
        perdure("approve", new_id, "--by", "bea")
        assert terminal.finish() == 0
    assert "Done: paid bob" in terminal.seen
    with Terminal(perdure, "run", "guarded", "x", "--id", f"{new_id}-ann", LOGNAME="ann") as terminal:
        terminal.until("approve? y or n")
        terminal.press("y\n")
        assert terminal.finish() == 0
    assert "Done: paid bob" in terminal.seen


def test_decided_elsewhere(perdure: CommandLine, new_id: str) -> None:
    """A question that somebody else has answered is withdrawn."""
    with Terminal(perdure, "run", "payer", "x", "--id", new_id) as terminal:
        terminal.until("approve? y or n")
        perdure("approve", new_id)
        assert terminal.finish() == 0
        assert "(no longer asked)" in terminal.seen
        assert "Done: paid bob" in terminal.seen


def test_a_provider_that_is_down(perdure: CommandLine, new_id: str) -> None:
    """Each further attempt is told once, with the last failure and when it is tried again."""
    done = perdure("run", "flaky", "x", "--id", new_id)
    assert done.stdout.endswith("\nat last\n")
    assert done.stderr.count("attempt 2 of 6") == done.stderr.count("attempt 3 of 6") == 1
    assert "too busy" in done.stderr
    assert "next" in done.stderr


def test_a_worker_that_is_lost(perdure: CommandLine, agents_file: Path, tmp_path: Path, new_id: str) -> None:
    """What a lost attempt has shown does not count any more, and that is said; then the text comes anew."""
    own = make(tmp_path, perdure.environment["TEMPORAL_ADDRESS"], f"queue-{new_id}")
    try:
        first = own.start("worker", str(agents_file))
        with Terminal(own, "run", "slow", "x", "--id", new_id, NO_COLOR="1") as terminal:
            terminal.until("w20 ")
            first.kill()
            first.communicate()
            own.start("worker", str(agents_file))
            terminal.until("(attempt 2 begins anew; the text above does not count)", within=60)
            assert terminal.finish() == 0
            assert terminal.seen.count("step 1: w0 w1 ") == 2
            assert terminal.seen.count(WORDS) == 1
    finally:
        own.close()


def test_programs_follow(perdure: CommandLine, new_id: str) -> None:
    """JSON lines hold the log with its numbers, and the text between; CloudEvents have their fields and stable ids."""
    perdure("run", "slow", "x", "--id", new_id, "--no-follow")
    log = [json.loads(line) for line in perdure("events", new_id, "--follow", "--json").stdout.splitlines()]
    assert "".join(event["text"] for event in log if event["type"] == "text") == WORDS
    assert [event["n"] for event in log if "n" in event] == [1, 2, 3]
    assert log[-1]["type"] == "run_ended"
    twice = [
        [json.loads(line) for line in perdure("events", new_id, "--format", "cloudevents", *more).stdout.splitlines()]
        for more in ([], ["--follow"])
    ]
    recorded, followed = twice
    assert [event for event in followed if not event["id"].startswith("live-")] == recorded
    assert len({event["id"] for event in followed}) == len(followed) > len(recorded) == 3
    for event in followed:
        assert event.keys() == {"specversion", "id", "source", "type", "time", "subject", "datacontenttype", "data"}
        assert (event["specversion"], event["subject"]) == ("1.0", new_id)
        assert event["source"] == f"/default/{new_id}"
    assert recorded[-1]["type"] == "perdure.run_ended"
    assert recorded[-1]["data"] == {"n": 3, "outcome": "success"}


def test_a_reader_that_goes_away(perdure: CommandLine, new_id: str) -> None:
    """A pipe that is closed ends the command without a word."""
    perdure("run", "slow", "x", "--id", new_id, "--no-follow")
    process = perdure.start("events", new_id, "--follow", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) != 0
    process.stderr.close()


def test_interrupted_log(perdure: CommandLine, new_id: str) -> None:
    """Ctrl-C says where to go on."""
    perdure("run", "payer", "x", "--id", new_id, "--no-follow")
    process = perdure.start("events", new_id, "--follow")
    assert process.stdout is not None
    while "approval_requested" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == f"perdure: go on with `perdure events {new_id} --follow --after 3`\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of this test's own."""
    made = Server(tmp_path / "server")
    yield made
    made.close()


def test_a_server_that_is_lost(server: Server, agents_file: Path, tmp_path: Path, new_id: str) -> None:
    """That it does not answer is said once; when it is back the run is followed to its end."""
    perdure = make(tmp_path, server.address, "lost")
    try:
        worker = perdure.start("worker", str(agents_file))
        assert worker.stdout is not None
        worker.stdout.readline()
        with Terminal(perdure, "run", "payer", "x", "--id", new_id, NO_COLOR="1") as terminal:
            terminal.until("approve? y or n")
            server.kill()
            terminal.until("still waiting, and Ctrl-C leaves the run as it is", within=60)
            time.sleep(1)  # the outage itself
            server.restart()
            until(lambda: pending(perdure, new_id))
            terminal.press("y\n")
            assert terminal.finish() == 0
            assert terminal.seen.count("does not answer") == 1
            assert "Done: paid bob" in terminal.seen
    finally:
        perdure.close()
