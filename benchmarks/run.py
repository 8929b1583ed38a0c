"""`make bench`: Sandkasten and its peers, interleaved in one run on this machine.

Prints a table and the verdict on each goal. A full run writes docs/benchmarks/ (results.json, a
page and plots), section by section: a run that was interrupted goes on with --resume, and --only
measures some sections again and keeps the others. A quick run writes build/bench/ instead.
The run cleans up after itself: its dockerd, containers, sandboxes and files are gone when it ends.
With --check a missed promise, or one that could not be measured, is a failing exit.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from benchmarks import (
    agents,
    cluster,
    code,
    comparison,
    contained,
    expressions,
    footprint,
    gvisor,
    http,
    images,
    interpreters,
    network,
    ondocker,
    packages,
    report,
    results,
    rows,
    traces,
)
from benchmarks.peers import Peers, bwrap, pods, rootfs
from benchmarks.peers import docker as docker_peer
from benchmarks.peers import runc as runc_peer
from benchmarks.peers import runsc as runsc_peer
from benchmarks.peers.contestants import NAMES
from benchmarks.peers.worker import reason
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.comparison import Contest
    from benchmarks.results import Results

ROOT = Path(__file__).resolve().parents[1]
QUICK_PLACE = ROOT / "build" / "bench"
PROGRAMS = ("docker", "runc", "bwrap", "runsc")
# The eighth time of a line in /proc/stat.
_STEAL = 7


class Run:
    """One run: what is on this machine, and a verb for each section."""

    def __init__(self, peers: Peers, plan: Plan, scratch: Path) -> None:
        self._peers = peers
        self._plan = plan
        self._scratch = scratch

    def sections(self, contest: Contest | None) -> dict[str, Callable[[Samples], None]]:
        """Return what can be measured here, in order."""
        peers, plan, scratch = self._peers, self._plan, self._scratch
        compared: dict[str, Callable[[Samples], None]] = {}
        if contest is not None:
            compared = {
                "sessions": lambda into: comparison.sessions(into, contest, plan),
                "oneshots": lambda into: comparison.oneshots(into, contest, plan),
                "files": lambda into: comparison.files(into, contest, plan),
                "rate": lambda into: comparison.rate(into, contest, plan),
                "first": lambda into: comparison.first(into, contest, plan),
            }
        alone: dict[str, Callable[[Samples], None]] = {
            "images": lambda into: images.measure(into, plan, scratch),
            "idle": lambda into: footprint.idle(into, peers, plan),
            "output": lambda into: footprint.growth_under_output(into, plan),
            "http": lambda into: http.measure(into, plan, scratch),
            "network": lambda into: network.measure(into, plan, scratch),
            "agents": lambda into: agents.measure(into, peers, plan, scratch),
            "packages": lambda into: packages.measure(into, plan, scratch),
            "expressions": lambda into: expressions.measure(into, plan),
            "code": lambda into: code.measure(into, plan, scratch),
            "interpreters": lambda into: interpreters.measure(into, plan, scratch),
            "traces": lambda into: traces.measure(into, plan, scratch),
        }
        if (runsc := peers.runsc) is not None:
            alone["gvisor"] = lambda into: gvisor.measure(into, runsc, plan)
        if (docker := peers.docker) is not None:
            root = scratch / "rootfs"
            alone["docker"] = lambda into: ondocker.measure(into, docker, plan, root)
            alone["contained"] = lambda into: contained.measure(into, docker, plan)
        if not pods.missing():
            alone["cluster"] = lambda into: cluster.measure(into, plan, scratch)
        return {**compared, **alone}

    @contextlib.contextmanager
    def contest(self, without: Sequence[str]) -> Iterator[Contest]:
        """Start the contestants beside a daemon of ours."""
        reasons = dict(line.split(": ", 1) for line in self._peers.absent)
        missing = {**reasons, "docker network": ""}
        variables: dict[str, str] = {}
        entering = None
        if self._peers.docker is not None:
            variables["DOCKER_HOST"] = self._peers.docker.host
            entering = self._peers.docker.entering
        if self._peers.runc is not None:
            variables["BENCH_RUNC"] = str(self._peers.runc.folder)
        with contextlib.ExitStack() as stack:
            data = self._scratch / "daemon"
            variables["BENCH_URL"] = stack.enter_context(http.daemon(data))
            variables["BENCH_DATA_DIR"] = str(data)
            place = self._scratch / "contest"
            yield stack.enter_context(
                comparison.opened(place, variables, missing, entering, without)
            )


SECTIONS = (
    *comparison.SECTIONS,
    *("images", "idle", "output", "http", "network", "agents", "packages", "expressions", "code"),
    *("interpreters", "traces", "gvisor", "docker", "contained", "cluster"),
)


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    signal.signal(signal.SIGTERM, _interrupted)
    began = time.monotonic()
    place: Path = options.into or (QUICK_PLACE if options.quick else report.PLACE)
    outcome = results.loaded(place / report.RESULTS)
    wanted = _wanted(options, outcome)
    # A directory of its own: sandboxes of other data directories are left alone.
    scratch = Path(tempfile.mkdtemp(prefix="skb-"))
    os.environ["SANDKASTEN_DATA_DIR"] = str(scratch / "data")
    os.environ.pop("SANDKASTEN_URL", None)
    try:
        with _peers(scratch, options.without) as peers:
            run = Run(peers, QUICK if options.quick else FULL, scratch)
            _measure(run, outcome, wanted, options, place)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(report.text(outcome))
    print(f"\n{time.monotonic() - began:.0f} s; written to {os.path.relpath(place)}/")
    judged = rows.verdicts(outcome.measured, set(wanted))
    missed = [verdict for verdict in judged if verdict.promise and verdict.ok is not True]
    if options.check and missed:
        print("a promise was missed or not measured", file=sys.stderr)
        return 1
    return 0


def _measure(
    run: Run, outcome: Results, wanted: list[str], options: argparse.Namespace, place: Path
) -> None:
    outcome.machine = _machine()
    with contextlib.ExitStack() as stack:
        contest = None
        if set(wanted) & set(comparison.SECTIONS):
            _say("starting the contestants")
            contest = stack.enter_context(run.contest(options.without))
            outcome.entrants = contest.entrants
        able = run.sections(contest)
        for name in wanted:
            if name not in able:
                _say(f"{name}: not on this machine")
                continue
            outcome.parts[name] = _part(name, able[name], quick=options.quick)
            report.write(outcome, place)


def _part(name: str, measure: Callable[[Samples], object], *, quick: bool) -> results.Part:
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    before, began = os.getloadavg()[0], time.monotonic()
    times = _processor_times()
    samples, failed = Samples(), ""
    try:
        measure(samples)
    except Exception as exc:  # noqa: BLE001  (the other sections are worth having)
        failed = reason(exc)
    seconds = round(time.monotonic() - began, 1)
    _say(f"{name}: {seconds:.0f} s {failed}")
    after, summaries = os.getloadavg()[0], samples.summaries()
    spent = [now - then for now, then in zip(_processor_times(), times, strict=True)]
    stolen = spent[_STEAL] / max(1, sum(spent))
    return results.Part(at, _revision(), seconds, before, after, quick, summaries, failed, stolen)


def _processor_times() -> list[int]:
    """Return the times of all processors in ticks, from user to steal (proc(5), `stat`)."""
    with Path("/proc/stat").open() as file:
        return [int(word) for word in file.readline().split()[1 : _STEAL + 2]]


def _wanted(options: argparse.Namespace, outcome: Results) -> list[str]:
    if options.only:
        return [name for name in SECTIONS if name in options.only]
    if not options.resume:
        outcome.parts.clear()
        return list(SECTIONS)
    revision = _revision()
    return [
        name
        for name in SECTIONS
        if name not in outcome.parts
        or outcome.parts[name].revision != revision
        or outcome.parts[name].failed
    ]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, about three minutes")
    parser.add_argument("--check", action="store_true", help="fail when a promise is missed")
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, default=(), metavar="SECTION",
        help=f"measure these again and keep the others: {', '.join(SECTIONS)}",
    )  # fmt: skip
    parser.add_argument(
        "--resume", action="store_true", help="keep sections that this revision has measured"
    )
    parser.add_argument(
        "--without", nargs="+", choices=(*PROGRAMS, *NAMES), default=(), metavar="PEER",
        help=f"leave out a program ({', '.join(PROGRAMS)}) or a contestant by its name",
    )  # fmt: skip
    parser.add_argument("--into", type=Path, metavar="DIRECTORY", help="write the results there")
    return parser.parse_args(argv)


def _interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _machine() -> dict[str, object]:
    """Return what a reader needs to know of the machine, and nothing that identifies it."""
    words = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processors": len(os.sched_getaffinity(0)),
        "processor": words[0] if words else platform.machine(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _revision() -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


@contextlib.contextmanager
def _peers(scratch: Path, without: Sequence[str]) -> Iterator[Peers]:
    """Start what can be started here; what cannot is named with its reason, never skipped."""
    modules = {"docker": docker_peer, "runc": runc_peer, "bwrap": bwrap, "runsc": runsc_peer}
    reasons = {
        name: "left out by --without" if name in without else module.missing()
        for name, module in modules.items()
    }
    absent = tuple(f"{name}: {reason}" for name, reason in reasons.items() if reason)
    with contextlib.ExitStack() as stack:
        docker = runc = runsc = None
        if not (reasons["docker"] and reasons["runc"] and reasons["runsc"]):
            _say("making a root file system for the peers")
            root = rootfs.build(scratch / "rootfs")
            if not reasons["docker"]:
                _say("starting dockerd")
                docker = stack.enter_context(docker_peer.Docker(scratch / "docker", root))
            if not reasons["runc"]:
                runc = runc_peer.Runc.prepare(scratch / "runc", root)
                stack.callback(runc.clean)
            if not reasons["runsc"]:
                runsc = runsc_peer.Runsc.prepare(scratch / "runsc", root)
        yield Peers(docker, runc, not reasons["bwrap"], absent, runsc)


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
