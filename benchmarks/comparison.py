"""Sandkasten beside its peers: each contestant in a process of its own, asked in turns.

One contestant works at a time. The first of a round is the last of the next one, so that none
always follows the same one. A slow contestant takes part in every second, third … round, so that
the turns of all are spread over the whole run and none uses up the time of the others. A contestant
that does not answer has failed, and the others go on.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import rows
from benchmarks.peers import worker
from benchmarks.peers.contestants import BARE, CONTESTANTS, Contestant
from benchmarks.results import Entrant
from tests import environments

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from benchmarks.plan import Plan
    from benchmarks.samples import Samples

ROOT: Final = Path(__file__).resolve().parents[1]
SECTIONS: Final = ("sessions", "oneshots", "files", "rate", "first")
# A contestant that takes longer than this for one turn has failed.
_TURN_S: Final = 90.0
_START_S: Final = 60.0
_END_S: Final = 15.0
_FAILED_TURNS: Final = 2
_REFILL_S: Final = 0.3
_OPERATIONS: Final = {
    worker.CREATE: rows.CREATE,
    worker.EXEC: rows.EXEC,
    worker.DESTROY: rows.DESTROY,
    worker.FIRST: rows.FIRST,
    worker.RATE: rows.RATE,
    "session": rows.FIRST,
}
_COMMAND_LINES: Final = frozenset(
    contestant.name
    for contestant in CONTESTANTS
    if contestant.build.endswith(("CommandLine", "OfDaemon", "DockerRun"))
)


class Failed(Exception):
    """A contestant did not answer, or its process ended."""


class Worker:
    """A contestant's process."""

    def __init__(
        self, contestant: Contestant, command: list[str], environ: dict[str, str], log: Path
    ) -> None:
        self.contestant = contestant
        self.gone = ""
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environ,
                cwd=ROOT,
                text=True,
                start_new_session=True,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.has: frozenset[str] = frozenset()
        self.version = ""

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def begin(self) -> None:
        answer = self._answer(_START_S)
        if "absent" in answer:
            raise Failed(answer["absent"])
        self.has = frozenset(answer["has"])
        self.version = answer["version"]

    def take(self, turn: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it ended: the answer says so
            self._process.stdin.write(json.dumps(turn) + "\n")
            self._process.stdin.flush()
        return self._answer(_TURN_S)

    def _answer(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise Failed(f"no answer within {seconds:g} s") from None
        if not line:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            raise Failed(f"its process ended: {lines[-1][:200] if lines else 'it printed nothing'}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self, *, wait: bool = True) -> None:
        """End it and all that it started."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if wait:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Contest:
    """The contestants that came, and why the others did not."""

    def __init__(self, workers: list[Worker], entrants: dict[str, Entrant]) -> None:
        self.workers = workers
        self.entrants = entrants

    def turns(
        self,
        samples: Samples,
        plan: Plan,
        turn: dict[str, Any],
        needs: Collection[str],
        *,
        rounds: int,
        names: Callable[[str, str], Collection[str]],
        warm_up: bool = True,
    ) -> None:
        """Ask all that have these verbs in turns; `names` says in which rows a value belongs.

        With `warm_up` there is one more round, in which only the slowest are counted. Without it,
        one turn is enough: it has many values of its own.
        """
        able = [worker for worker in self.workers if set(needs) <= worker.has]
        for peer in able:
            if peer.gone:  # in an earlier part
                _record(samples, peer.contestant.name, _failure(turn, peer.gone), names)
        begin, fewest = (-1, 2) if warm_up else (0, 1)
        due = dict.fromkeys(able, begin)
        failed = dict.fromkeys(able, 0)
        best: dict[Worker, float] = {}
        slow: set[Worker] = set()
        deadline = time.monotonic() + plan.comparison_s
        for number in range(begin, rounds):
            shift = number % max(1, len(able))
            for peer in able[shift:] + able[:shift]:
                late = peer in slow and time.monotonic() > deadline
                if peer.gone or late or failed[peer] >= _FAILED_TURNS or number < due[peer]:
                    continue
                began = time.monotonic()
                answer = self._taken(peer, turn)
                took = answer.get("seconds", time.monotonic() - began)
                # Its pool is filled again, which must not slow the next contestant.
                time.sleep(min(peer.contestant.warm_s, _REFILL_S))
                # The first may have paid for files that no cache held.
                best[peer] = min(took, best.get(peer, took))
                stride = math.ceil(best[peer] * rounds / plan.contestant_s)
                if number < 0 and took < plan.contestant_s:
                    stride = 1
                due[peer] = number + min(stride, rounds // fewest + 1)
                failed[peer] += bool(answer["failures"]) and not answer["values"]
                if took >= plan.contestant_s:
                    slow.add(peer)
                elif number < 0:
                    continue
                _record(samples, peer.contestant.name, answer, names)

    def _taken(self, peer: Worker, turn: dict[str, Any]) -> dict[str, Any]:
        try:
            return peer.take({**turn, "warm_s": peer.contestant.warm_s})
        except Failed as exc:
            peer.gone = str(exc)
            peer.end(wait=False)
            return _failure(turn, peer.gone)


def _failure(turn: dict[str, Any], reason: str) -> dict[str, Any]:
    return {"values": {}, "failures": {turn["turn"]: [reason]}}


def _record(
    samples: Samples,
    name: str,
    answer: dict[str, Any],
    names: Callable[[str, str], Collection[str]],
) -> None:
    for operation, values in answer["values"].items():
        for row in names(name, operation):
            for value in values:
                samples.add(row, name, value)
    for operation, reasons in answer["failures"].items():
        for row in names(name, operation):
            for reason in reasons:
                samples.fail(row, name, reason)


def _named(_: str, operation: str) -> tuple[str, ...]:
    return (_OPERATIONS.get(operation, operation),)


def oneshot_rows(name: str, _: str) -> tuple[str, ...]:
    """Return the rows of a one-shot: a process of the host is the floor of both."""
    if name in _COMMAND_LINES:
        return (rows.COMMAND_LINE,)
    return (rows.ONESHOT, rows.COMMAND_LINE) if name == BARE else (rows.ONESHOT,)


# ---- the parts


def sessions(samples: Samples, contest: Contest, plan: Plan) -> None:
    turn = {"turn": "session", "execs": plan.execs}
    contest.turns(samples, plan, turn, {"exec_true"}, rounds=plan.turns, names=_named)


def oneshots(samples: Samples, contest: Contest, plan: Plan) -> None:
    turn = {"turn": "oneshot"}
    contest.turns(samples, plan, turn, {"oneshot"}, rounds=plan.turns, names=oneshot_rows)


def files(samples: Samples, contest: Contest, plan: Plan) -> None:
    def named(_: str, operation: str) -> tuple[str, ...]:
        return rows.FILES if operation == "files" else (operation,)

    turn = {"turn": "files", "sizes": plan.file_sizes}
    contest.turns(samples, plan, turn, {"read", "write"}, rounds=2, names=named, warm_up=False)


def rate(samples: Samples, contest: Contest, plan: Plan) -> None:
    turn = {"turn": "rate", "sandboxes": 8, "seconds": plan.rate_s}
    contest.turns(samples, plan, turn, {"exec_true"}, rounds=1, names=_named, warm_up=False)


def first(samples: Samples, contest: Contest, plan: Plan) -> None:
    for label, gap_s in ((rows.STAGGERED, 0.2), (rows.BURST, 0.0)):

        def named(_: str, operation: str, label: str = label) -> tuple[str, ...]:
            return (label,) if operation in (label, "first") else ()

        turn = {"turn": "first", "count": plan.starts, "gap_s": gap_s, "label": label}
        needs = {"create", "exec_true"}
        contest.turns(samples, plan, turn, needs, rounds=1, names=named, warm_up=False)


# ---- who comes


@contextlib.contextmanager
def opened(
    scratch: Path,
    variables: dict[str, str],
    missing: dict[str, str],
    entering: Callable[[list[str]], list[str]] | None,
    without: Collection[str],
) -> Iterator[Contest]:
    """Start the contestants.

    `given` is the environment in which they find the daemon, the engine and the root of runc;
    `missing` says of each need why it is not there; `entering` leads to the network of containers.
    """
    workers: list[Worker] = []
    entrants: dict[str, Entrant] = {}
    interpreters: dict[str, Path | str] = {}
    with contextlib.ExitStack() as stack:
        for contestant in CONTESTANTS:
            absent = next((missing[need] for need in contestant.needs if missing.get(need)), "")
            if contestant.name in without:
                absent = "left out by --without"
            python = (
                ""
                if absent
                else interpreters.setdefault(contestant.environment, _interpreter(contestant))
            )
            if isinstance(python, str) and not absent:
                absent = python
            if absent:
                entrants[contestant.name] = Entrant(contestant.what, absent=absent)
                continue
            command = [
                str(python),
                "-m",
                "benchmarks.peers.worker",
                contestant.build,
                contestant.distribution,
            ]
            if "docker network" in contestant.needs and entering is not None:
                command = entering(command)
            home = scratch / f"c{len(workers)}"
            (home / "tmp").mkdir(parents=True)
            started = Worker(
                contestant, command, _environ(contestant, home, variables), home / "log"
            )
            stack.callback(started.end)
            workers.append(started)
        came = []
        for started in workers:
            contestant = started.contestant
            try:
                started.begin()
            except Failed as exc:
                entrants[contestant.name] = Entrant(contestant.what, absent=str(exc))
            else:
                came.append(started)
                entrants[contestant.name] = Entrant(
                    contestant.what, started.version or _program_version(contestant)
                )
        order = [contestant.name for contestant in CONTESTANTS]
        yield Contest(came, {name: entrants[name] for name in order})


def _interpreter(contestant: Contestant) -> Path | str:
    """Return the interpreter of its environment, or why there is none."""
    try:
        match contestant.environment:
            case "ours":
                return Path(sys.executable)
            case "llm-sandbox":
                return environments.environment(contestant.environment)
            case name:
                return environments.framework(name)
    except subprocess.CalledProcessError as exc:
        return f"its packages could not be installed ({exc.cmd[-1]}: exit {exc.returncode})"


def _environ(contestant: Contestant, home: Path, variables: dict[str, str]) -> dict[str, str]:
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith("SANDKASTEN_")
    }
    data = (
        variables.get("BENCH_DATA_DIR", "") if "daemon" in contestant.needs else str(home / "data")
    )
    return {
        **inherited,
        **variables,
        **contestant.environ,
        "SANDKASTEN_DATA_DIR": data,
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "PYTHONPATH": str(ROOT),
    }


def _program_version(contestant: Contestant) -> str:
    """Return the version that a program prints."""
    programs = {"bwrap": "bwrap", "runc": "runc", "docker": "docker", "bare": sys.executable}
    program = programs.get(contestant.build.partition(":")[0])
    if program is None:
        return ""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"\d+(\.\d+)+", done.stdout)
    return match[0] if match else ""
