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
    one.name for one in CONTESTANTS if one.build.endswith(("CommandLine", "OfDaemon", "DockerRun"))
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
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
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
        told = self._answer(_START_S)
        if "absent" in told:
            raise Failed(told["absent"])
        self.has = frozenset(told["has"])
        self.version = told["version"]

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
        told: dict[str, Any] = json.loads(line)
        return told

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
        able = [one for one in self.workers if set(needs) <= one.has]
        for one in able:
            if one.gone:  # in an earlier part
                _record(samples, one.contestant.name, _failure(turn, one.gone), names)
        begin, fewest = (-1, 2) if warm_up else (0, 1)
        due = dict.fromkeys(able, begin)
        failed = dict.fromkeys(able, 0)
        best: dict[Worker, float] = {}
        slow: set[Worker] = set()
        deadline = time.monotonic() + plan.comparison_s
        for number in range(begin, rounds):
            shift = number % max(1, len(able))
            for one in able[shift:] + able[:shift]:
                late = one in slow and time.monotonic() > deadline
                if one.gone or late or failed[one] >= _FAILED_TURNS or number < due[one]:
                    continue
                began = time.monotonic()
                answer = self._taken(one, turn)
                took = answer.get("seconds", time.monotonic() - began)
                # Its pool is filled again, which must not slow the next contestant.
                time.sleep(min(one.contestant.warm_s, _REFILL_S))
                # The first may have paid for files that no cache held.
                best[one] = min(took, best.get(one, took))
                stride = math.ceil(best[one] * rounds / plan.contestant_s)
                if number < 0 and took < plan.contestant_s:
                    stride = 1
                due[one] = number + min(stride, rounds // fewest + 1)
                failed[one] += bool(answer["failures"]) and not answer["values"]
                if took >= plan.contestant_s:
                    slow.add(one)
                elif number < 0:
                    continue
                _record(samples, one.contestant.name, answer, names)

    def _taken(self, one: Worker, turn: dict[str, Any]) -> dict[str, Any]:
        try:
            return one.take({**turn, "warm_s": one.contestant.warm_s})
        except Failed as exc:
            one.gone = str(exc)
            one.end(wait=False)
            return _failure(turn, one.gone)


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
    given: dict[str, str],
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
        for one in CONTESTANTS:
            absent = next((missing[need] for need in one.needs if missing.get(need)), "")
            if one.name in without:
                absent = "left out by --without"
            python = "" if absent else interpreters.setdefault(one.environment, _interpreter(one))
            if isinstance(python, str) and not absent:
                absent = python
            if absent:
                entrants[one.name] = Entrant(one.what, absent=absent)
                continue
            command = [str(python), "-m", "benchmarks.peers.worker", one.build, one.distribution]
            if "docker network" in one.needs and entering is not None:
                command = entering(command)
            home = scratch / f"c{len(workers)}"
            (home / "tmp").mkdir(parents=True)
            started = Worker(one, command, _environ(one, home, given), home / "log")
            stack.callback(started.end)
            workers.append(started)
        came = []
        for started in workers:
            one = started.contestant
            try:
                started.begin()
            except Failed as exc:
                entrants[one.name] = Entrant(one.what, absent=str(exc))
            else:
                came.append(started)
                entrants[one.name] = Entrant(one.what, started.version or _program_version(one))
        order = [one.name for one in CONTESTANTS]
        yield Contest(came, {name: entrants[name] for name in order})


def _interpreter(one: Contestant) -> Path | str:
    """Return the interpreter of its environment, or why there is none."""
    try:
        match one.environment:
            case "ours":
                return Path(sys.executable)
            case "llm-sandbox":
                return environments.environment(one.environment)
            case name:
                return environments.framework(name)
    except subprocess.CalledProcessError as exc:
        return f"its packages could not be installed ({exc.cmd[-1]}: exit {exc.returncode})"


def _environ(one: Contestant, home: Path, given: dict[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SANDKASTEN_")}
    data = given.get("BENCH_DATA_DIR", "") if "daemon" in one.needs else str(home / "data")
    return {
        **kept,
        **given,
        **one.environ,
        "SANDKASTEN_DATA_DIR": data,
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
    }


def _program_version(one: Contestant) -> str:
    """Return the version that a program prints."""
    programs = {"bwrap": "bwrap", "runc": "runc", "docker": "docker", "bare": sys.executable}
    program = programs.get(one.build.partition(":")[0])
    if program is None:
        return ""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\d+(\.\d+)+", done.stdout)
    return found[0] if found else ""
