"""`python -m benchmarks.density`: one daemon with 1, 10, 100 and 1,000 idle sandboxes.

Measures memory of each sandbox all included, processor time while idle, requests, the restart after
`kill -9`, and how many sandboxes are created per second for a minute. A second daemon with one
sandbox is asked in turns with the first, so that both see the same machine at the same moment.
Everything is removed at the end, also after an interrupt. `--quick` stops at 100.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sandkasten.model.ids import SandboxId
from sandkasten_runtime.linux.sandbox_removal import remove
from sandkasten_runtime.linux.state_layout import Layout, read_pid

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SIZES: Final = (1, 10, 100, 1000)
QUICK_SIZES: Final = (1, 10, 100)
_CALLERS: Final = 4
_PAGE: Final = 50
# Freed pages and finished helpers come back to the count within this time.
_SETTLE_S: Final = 2.0
_READY: Final = re.compile(r"sandkasten serves http://127\.0\.0\.1:(\d+)")
_MIB: Final = 1 << 20
_HZ: Final = os.sysconf("SC_CLK_TCK")
# What the kernel takes and cannot give back. Pages of programs are counted by runner.
_KERNEL: Final = ("SUnreclaim", "KernelStack", "PageTables", "Percpu", "Shmem")


@dataclass(frozen=True, slots=True)
class Plan:
    sizes: tuple[int, ...]
    execs: int = 200
    creates: int = 15
    lists: int = 20
    restarts: int = 3
    idle_s: float = 10.0
    rate_s: float = 60.0


@dataclass(slots=True)
class Found:
    """What was measured with one number of sandboxes. Times are medians in milliseconds."""

    sandboxes: int
    sandbox_mib: float = 0.0
    """By what the whole machine has left, all included."""
    parts_mib: dict[str, float] = field(default_factory=dict)
    """Of each sandbox, where the kernel says what for."""
    daemon_mib: float = 0.0
    daemon_cpu: float = 0.0
    """Of one core, in percent, while nothing is asked."""
    runners_cpu: float = 0.0
    runner_wakeups: float = 0.0
    """Of each runner, per minute."""
    ms: dict[str, float] = field(default_factory=dict)
    one_ms: dict[str, float] = field(default_factory=dict)
    """The same by the daemon with one sandbox, in turns."""
    ready_ms: float = 0.0
    one_ready_ms: float = 0.0
    first_use_ms: float = 0.0
    recovered_ms: float = 0.0
    made_per_s: float = 0.0
    """While the sandboxes of this size were made."""


_Turn = Callable[[], dict[str, float]]


class Daemon:
    """A daemon process that can be killed and started again on the same data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self._local = threading.local()
        self.recovered = threading.Event()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self.recovered.clear()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "sandkasten_server.cli", "--data-dir", str(self.data_dir)),
                *("serve", "--listen", "127.0.0.1:0", "--log-level", "info"),
            ],
            stderr=subprocess.PIPE,
            text=True,
            # A thousand workspaces of the usual size would reserve 500 GB.
            env={**os.environ, "SANDKASTEN_DISK_RESERVE": "none"},
        )
        assert self._process.stderr is not None
        output = ""
        while (match := _READY.search(output)) is None:
            line = self._process.stderr.readline()
            if not line:
                raise RuntimeError(f"the daemon did not start: {output[-2000:]}")
            output += line
            self._look(line)
        self.port = int(match[1])
        threading.Thread(target=self._follow, args=(self._process.stderr,), daemon=True).start()

    def _follow(self, lines: Any) -> None:
        for line in lines:
            self._look(line)

    def _look(self, line: str) -> None:
        if "daemon.recovered" in line:
            self.recovered.set()

    def end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Ask on a connection of this thread."""
        port, connection = getattr(self._local, "open", (0, None))
        if connection is None or port != self.port:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._local.open = (self.port, connection)
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, {"Content-Type": "application/json"} if sent else {})
        answer = connection.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {data[:300]!r}")
        kind = answer.headers.get_content_type()
        return json.loads(data) if data and kind == "application/json" else data

    def create(self) -> str:
        body = {"ttl_seconds": 3600, "lifetime_seconds": 7200}
        return str(self.ask("POST", "/v1/sessions", body)["id"])

    def exec(self, the_id: str) -> None:
        done = self.ask("POST", f"/v1/sessions/{the_id}/exec", {"cmd": ["/bin/true"]})
        assert done["exit_code"] == 0, done

    def destroy(self, the_id: str) -> None:
        self.ask("DELETE", f"/v1/sessions/{the_id}")

    def page(self) -> None:
        self.ask("GET", f"/v1/sessions?limit={_PAGE}")

    def metrics(self) -> None:
        self.ask("GET", "/metrics")


@contextmanager
def running(data_dir: Path) -> Iterator[Daemon]:
    """Start a daemon; end it and remove all of its sandboxes, whatever happens."""
    daemon = Daemon(data_dir)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.end(signal.SIGKILL)
        layout = Layout(data_dir)
        with ThreadPoolExecutor(_CALLERS) as pool:
            for done in [pool.submit(remove, layout, sandbox_id) for sandbox_id in layout.cells()]:
                done.result()


def measure(plan: Plan, scratch: Path) -> list[Found]:
    results = []
    with ExitStack() as stack:
        alone = stack.enter_context(running(scratch / "one"))
        reference = alone.create()
        daemon = stack.enter_context(running(scratch / "many"))
        daemon.destroy(daemon.create())  # what is loaded once and stays is not a sandbox's
        time.sleep(_SETTLE_S)
        before, daemon_before = _memory(), _resident(daemon.pid)
        ids: list[str] = []
        for size in plan.sizes:
            result = Found(size)
            _say(f"{size} sandboxes")
            result.made_per_s = _grow(daemon, ids, size)
            time.sleep(_SETTLE_S)
            after = _memory()
            result.sandbox_mib = (before["MemAvailable"] - after["MemAvailable"]) / size / _MIB
            result.parts_mib = {
                name: (after[name] - before[name]) / size / _MIB
                for name in _KERNEL
                if name in after
            }
            result.daemon_mib = (_resident(daemon.pid) - daemon_before) / _MIB
            result.parts_mib["runner"] = sum(map(_private, _runners(daemon, ids))) / size / _MIB
            result.parts_mib["daemon"] = result.daemon_mib / size
            _idle(result, daemon, ids, plan)
            _requests(result, daemon, ids, alone, reference, plan)
            _restarts(result, daemon, ids, alone, plan)
            results.append(result)
    return results


def rate(plan: Plan, scratch: Path) -> list[float]:
    """Create and destroy for a minute; return how many per second, for each tenth of the time."""
    with running(scratch / "rate") as daemon:
        daemon.destroy(daemon.create())
        began = time.monotonic()
        counts = [0] * 10

        def work() -> None:
            while (share := (time.monotonic() - began) / plan.rate_s) < 1:
                daemon.destroy(daemon.create())
                counts[int(share * 10)] += 1

        with ThreadPoolExecutor(_CALLERS) as pool:
            for done in [pool.submit(work) for _ in range(_CALLERS)]:
                done.result()
    return [count / (plan.rate_s / 10) for count in counts]


def _grow(daemon: Daemon, ids: list[str], size: int) -> float:
    began, count = time.monotonic(), size - len(ids)
    with ThreadPoolExecutor(_CALLERS) as pool:
        ids += pool.map(lambda _: daemon.create(), range(count))
    return count / (time.monotonic() - began)


def _idle(result: Found, daemon: Daemon, ids: Sequence[str], plan: Plan) -> None:
    pids = _runners(daemon, ids)
    began = time.monotonic()
    cpu, inside, woken = _cpu_s(daemon.pid), sum(map(_cpu_s, pids)), sum(map(_switches, pids))
    time.sleep(plan.idle_s)
    took = time.monotonic() - began
    result.daemon_cpu = 100 * (_cpu_s(daemon.pid) - cpu) / took
    result.runners_cpu = 100 * (sum(map(_cpu_s, pids)) - inside) / took
    result.runner_wakeups = (sum(map(_switches, pids)) - woken) / len(pids) / took * 60


def _requests(
    result: Found,
    daemon: Daemon,
    ids: Sequence[str],
    alone: Daemon,
    reference: str,
    plan: Plan,
) -> None:
    chance = random.Random(1)

    def cycle(server: Daemon) -> dict[str, float]:
        began = time.perf_counter()
        the_id = server.create()
        created_at = time.perf_counter()
        server.destroy(the_id)
        return {
            "create": (created_at - began) * 1000,
            "destroy": (time.perf_counter() - created_at) * 1000,
        }

    def timed(name: str, work: Callable[[], None]) -> dict[str, float]:
        began = time.perf_counter()
        work()
        return {name: (time.perf_counter() - began) * 1000}

    turns: list[tuple[int, _Turn, _Turn | None]] = [
        (
            plan.execs,
            lambda: timed("exec", lambda: daemon.exec(ids[0])),
            lambda: timed("exec", lambda: alone.exec(reference)),
        ),
        (
            plan.lists,
            lambda: timed("exec, each time in another", lambda: daemon.exec(chance.choice(ids))),
            lambda: timed("exec, each time in another", lambda: alone.exec(reference)),
        ),
        (plan.creates, lambda: cycle(daemon), lambda: cycle(alone)),
        (
            plan.lists,
            lambda: timed(f"list of at most {_PAGE}", daemon.page),
            None,
        ),
        (
            plan.lists,
            lambda: timed("metrics", daemon.metrics),
            lambda: timed("metrics", alone.metrics),
        ),
    ]
    for count, many, single in turns:
        taken_by_many: dict[str, list[float]] = {}
        taken_by_one: dict[str, list[float]] = {}
        for turn in range(count + 3):
            for work, into in ((many, taken_by_many), (single, taken_by_one)):
                for name, ms in (work() if work is not None else {}).items():
                    if turn >= 3:  # the first pay for connections and caches
                        into.setdefault(name, []).append(ms)
        result.ms |= {name: median(values) for name, values in taken_by_many.items()}
        result.one_ms |= {name: median(values) for name, values in taken_by_one.items()}


def _restarts(result: Found, daemon: Daemon, ids: Sequence[str], alone: Daemon, plan: Plan) -> None:
    ready, ready_with_one, first, recovered = [], [], [], []
    for _ in range(plan.restarts):
        ready_with_one.append(_restart(alone))
        began = time.perf_counter()
        ready.append(_restart(daemon))
        sent_at = time.perf_counter()
        daemon.exec(ids[-1])
        first.append((time.perf_counter() - sent_at) * 1000)
        if not daemon.recovered.wait(120):
            raise RuntimeError("the daemon did not recover within 120 s")
        recovered.append((time.perf_counter() - began) * 1000)
    result.ready_ms, result.one_ready_ms = median(ready), median(ready_with_one)
    result.first_use_ms, result.recovered_ms = median(first), median(recovered)


def _restart(daemon: Daemon) -> float:
    """Kill the daemon, start it, and return how long it took to listen."""
    daemon.end(signal.SIGKILL)
    began = time.perf_counter()
    daemon.start()
    return (time.perf_counter() - began) * 1000


def _runners(daemon: Daemon, ids: Sequence[str]) -> list[int]:
    layout = Layout(daemon.data_dir)
    identities = [read_pid(layout.cell(SandboxId(the_id))) for the_id in ids]
    return [pid for pid, _ in (identity for identity in identities if identity is not None)]


def _memory() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines}


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/{pid}/status has no {name}")


def _resident(pid: int) -> int:
    return _status(pid, "VmRSS") * 1024


def _private(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(amount) for amount in re.findall(r"Private_\w+: +(\d+)", text)) * 1024


def _switches(pid: int) -> int:
    return _status(pid, "voluntary_ctxt_switches")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _HZ


def table(results: Sequence[Found], rates: Sequence[float]) -> str:
    """Return the results as Markdown."""

    def row(name: str, value: Callable[[Found], str]) -> str:
        return " | ".join((f"| {name}", *(value(result) for result in results))) + " |"

    def request(name: str) -> Callable[[Found], str]:
        return lambda result: _shown(result.ms[name], result.one_ms.get(name))

    lines = [
        row("sandboxes", lambda result: f"{result.sandboxes:,}"),
        "|---" * (len(results) + 1) + "|",
        # With fewer, other programs of the machine weigh more.
        row(
            "memory of each, all included (MiB)",
            lambda result: f"{result.sandbox_mib:.2f}" if result.sandboxes >= 1000 else "",
        ),
        row(
            "the same, added up (MiB)",
            lambda result: (
                f"{sum(result.parts_mib.values()):.2f}" if result.sandboxes >= 100 else ""
            ),
        ),
        row("growth of the daemon (MiB)", lambda result: f"{result.daemon_mib:.1f}"),
        row("idle daemon (% of a core)", lambda result: f"{result.daemon_cpu:.2f}"),
        row("all idle runners (% of a core)", lambda result: f"{result.runners_cpu:.2f}"),
        row("wake-ups of an idle runner per minute", lambda result: f"{result.runner_wakeups:.1f}"),
        *(row(f"{name} (ms)", request(name)) for name in results[0].ms),
        row(
            "ready after `kill -9` (ms)",
            lambda result: _shown(result.ready_ms, result.one_ready_ms),
        ),
        row("first command after that (ms)", lambda result: f"{result.first_use_ms:.1f}"),
        row("all recovered (ms)", lambda result: f"{result.recovered_ms:.0f}"),
        row("created per second", lambda result: f"{result.made_per_s:.1f}"),
    ]
    if rates:
        shown = f"{min(rates):.1f} to {max(rates):.1f}"
        lines += ["", f"Created and destroyed per second, held for a minute: {shown}."]
    return "\n".join(lines)


def _shown(ms: float, with_one_ms: float | None) -> str:
    return f"{ms:.1f}" if with_one_ms is None else f"{ms:.1f} ({ms / with_one_ms:.2f} ×)"


def verdicts(results: Sequence[Found]) -> list[tuple[str, bool]]:
    """Return each goal and whether it was met, as far as the sizes allow."""
    last = results[-1]
    return [
        (f"{last.sandboxes} sandboxes: at most 2 MB each", last.sandbox_mib * _MIB <= 2e6),
        ("exec: at most 1.2 x with one", last.ms["exec"] <= 1.2 * last.one_ms["exec"]),
        ("ready again: at most 3 x with one", last.ready_ms <= 3 * last.one_ready_ms),
        ("idle daemon: below 1 % of a core", last.daemon_cpu < 1),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.density", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="up to 100 sandboxes, one minute")
    parser.add_argument("--sizes", nargs="+", type=int, help="other numbers of sandboxes")
    parser.add_argument("--check", action="store_true", help="fail when a goal is missed")
    parser.add_argument("--into", type=Path, metavar="DIRECTORY", help="write the results there")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupted)
    plan = Plan(SIZES)
    if options.quick:
        plan = Plan(QUICK_SIZES, execs=60, creates=5, lists=5, restarts=1, idle_s=4, rate_s=10)
    if options.sizes:
        plan = Plan(tuple(sorted(options.sizes)), rate_s=plan.rate_s)
    os.environ.pop("SANDKASTEN_URL", None)
    scratch = Path(tempfile.mkdtemp(prefix="sandkasten-density-"))
    began = time.monotonic()
    try:
        results = measure(plan, scratch)
        _say("create and destroy, held")
        rates = rate(plan, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    text = table(results, rates)
    print(text, end="\n\n")
    judged = verdicts(results)
    for what, ok in judged:
        print("pass" if ok else "FAIL", what)
    _say(f"{time.monotonic() - began:.0f} s")
    if options.into is not None:
        options.into.mkdir(parents=True, exist_ok=True)
        document = {"sizes": [asdict(result) for result in results], "held_per_s": rates}
        (options.into / "results.json").write_text(json.dumps(document, indent=2) + "\n")
        (options.into / "README.md").write_text(_page(text))
    return int(options.check and not all(ok for _, ok in judged))


def _page(text: str) -> str:
    return f"""<!-- made by python -m benchmarks.density; do not edit -->

# Many sandboxes on one machine

One daemon with idle sandboxes of the default profile, without a network.
The machine has {os.cpu_count()} processors and, with this run, a load of {os.getloadavg()[1]:.0f}:
read the ratios, because other work makes every time longer and memory uncertain.
In brackets: times what a second daemon with one sandbox takes, asked in turns.

{text}
"""


def _interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(f"density: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main())
