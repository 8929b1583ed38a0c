"""`make bench`: Sandkasten and its peers, interleaved in one run on this machine.

Prints a table and the verdict on each promise, writes the same as JSON, and cleans up after
itself: its dockerd, containers, sandboxes and files are gone when it ends, however it ends.
With --check a missed promise, or one that could not be measured, is a failing exit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from benchmarks import (
    agents,
    code,
    contained,
    expressions,
    files,
    footprint,
    gvisor,
    http,
    images,
    latency,
    load,
    network,
    ondocker,
    packages,
    report,
    traces,
)
from benchmarks.peers import Peers, bwrap, rootfs
from benchmarks.peers import docker as docker_peer
from benchmarks.peers import runc as runc_peer
from benchmarks.peers import runsc as runsc_peer
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SECTIONS = (
    *("sessions", "oneshots", "files", "images", "load", "idle", "output", "gvisor", "http"),
    *("network", "docker", "contained", "agents", "packages", "expressions", "code", "traces"),
)
LATEST = Path(__file__).parent / "results" / "latest.json"


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    signal.signal(signal.SIGTERM, _interrupted)
    began = time.monotonic()
    plan: Plan = QUICK if options.quick else FULL
    # A folder of its own: sandboxes of somebody else's data directory are left alone.
    scratch = Path(tempfile.mkdtemp(prefix="sandkasten-bench-"))
    os.environ["SANDKASTEN_DATA_DIR"] = str(scratch / "data")
    os.environ.pop("SANDKASTEN_URL", None)
    try:
        with _peers(scratch, options.without) as peers:
            found = report.Findings(Samples(), absent=peers.absent)
            _measure(found, peers, plan, options.only, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    found.seconds = round(time.monotonic() - began, 1)
    print(report.table(found), end="\n\n")
    print(report.judgement(found))
    for line in found.absent:
        print(f"not compared with {line}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report.document(found), indent=2) + "\n")
    print(f"\n{found.seconds} s; written to {os.path.relpath(options.json)}")
    if options.check and any(verdict.ok is not True for verdict in report.verdicts(found)):
        print("a promise was missed or not measured", file=sys.stderr)
        return 1
    return 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, about two minutes")
    parser.add_argument("--check", action="store_true", help="fail when a promise is missed")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    peers = ("docker", "runc", "bwrap", "runsc")
    parser.add_argument("--without", nargs="+", choices=peers, default=())
    parser.add_argument("--json", type=Path, default=LATEST, help="where the results go")
    return parser.parse_args(argv)


def _interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _peers(scratch: Path, without: Sequence[str]) -> Iterator[Peers]:
    """Starts what can be started here; what cannot is named with its reason, never skipped."""
    reasons = {
        "docker": "left out" if "docker" in without else docker_peer.missing(),
        "runc": "left out" if "runc" in without else runc_peer.missing(),
        "bwrap": "left out" if "bwrap" in without else bwrap.missing(),
        "runsc": "left out" if "runsc" in without else runsc_peer.missing(),
    }
    absent = tuple(f"{name}: {reason}" for name, reason in reasons.items() if reason)
    with contextlib.ExitStack() as stack:
        docker = runc = runsc = None
        if not (reasons["docker"] and reasons["runc"] and reasons["runsc"]):
            _say("cutting a root file system for the peers")
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


def _measure(
    found: report.Findings, peers: Peers, plan: Plan, only: Sequence[str], scratch: Path
) -> None:
    if "sessions" in only:
        _say("create, exec, destroy")
        latency.sessions(found.samples, peers, plan)
    if "oneshots" in only:
        _say("one-shot Python")
        latency.oneshots(found.samples, peers, plan)
    if "files" in only:
        _say("files in and out")
        files.measure(found.samples, peers, plan, scratch)
    if "images" in only:
        _say("images: import, and a sandbox on one")
        images.measure(found.samples, plan, scratch)
    if "load" in only:
        _say("throughput")
        found.rates = load.measure(peers, plan)
    if "idle" in only:
        _say("memory of idle sessions")
        found.idle = footprint.idle(peers, plan)
    if "output" in only:
        _say("memory under a flood of output")
        found.output_bytes = plan.output_bytes
        found.growth = footprint.growth_under_output(plan.output_bytes)
    if "gvisor" in only and peers.runsc is not None:
        _say("commands on gVisor")
        gvisor.measure(found.samples, peers.runsc, plan)
    if "http" in only:
        _say("commands over HTTP")
        http.measure(found.samples, plan, scratch)
    if "network" in only:
        _say("networks of sandboxes")
        reasons = {name: network.missing(name) for name in network.PEERS}
        found.absent += tuple(f"{name}: {why}" for name, why in reasons.items() if why)
        found.networked = network.measure(found.samples, plan, scratch)
    if "docker" in only and peers.docker is not None:
        _say("sandboxes on docker")
        ondocker.measure(found.samples, peers.docker, plan, scratch / "rootfs")
    if "contained" in only and peers.docker is not None:
        _say("a daemon in a container")
        contained.measure(found.samples, peers.docker, plan)
    if "agents" in only:
        _say("the tools of agents, and a step of one")
        agents.measure(found.samples, peers, plan, scratch)
    if "packages" in only:
        _say("sandboxes with packages")
        packages.measure(found.samples, plan, scratch)
    if "expressions" in only:
        _say("expressions of workflows")
        expressions.measure(found.samples, plan)
    if "code" in only:
        _say("code in kernels")
        code.measure(found.samples, plan, scratch)
    if "traces" in only:
        _say("spans of commands")
        traces.measure(found.samples, plan, scratch)


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
