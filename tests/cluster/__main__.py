"""Start, show and stop a cluster by hand: `python -m tests.cluster up|load|status|down`.

`up` returns when both nodes are ready and leaves a process that holds the cluster; `down` ends it.
One such cluster per checkout: `build/cluster/running.json` says where it is.

`record` starts another one, records the calls of the backend that unit tests replay, and stops it.
"""

# ruff: noqa: T201  (its output is its product)

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.cluster import programs
from tests.cluster.cluster import Cluster
from tests.cluster.kube_api import KubeApi, is_ready
from tests.cluster.node import import_archive
from tests.engines import keeper
from tests.patience import FAR_TOO_LATE_S

_RUNNING = programs.PLACE / "running.json"


@dataclass(frozen=True, slots=True)
class _Running:
    owner: str
    kubeconfig: str
    sockets: list[str]

    @property
    def pid(self) -> int:
        return int(self.owner.partition("@")[0])

    @property
    def lives(self) -> bool:
        try:
            return keeper.who(self.pid) == self.owner
        except OSError:
            return False


def _running() -> _Running | None:
    try:
        found = _Running(**json.loads(_RUNNING.read_text()))
    except (OSError, ValueError):
        return None
    return found if found.lives else None


def up(kubeconfig: Path, images: list[Path]) -> int:
    if _running():
        print("a cluster is up already", file=sys.stderr)
        return 1
    if why := programs.missing():
        print(why, file=sys.stderr)
        return 1
    _RUNNING.unlink(missing_ok=True)
    began = time.monotonic()
    log = programs.PLACE / "up.log"
    with log.open("wb") as said:
        holder = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster", "hold", str(kubeconfig), *map(str, images)],
            cwd=programs.REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    while not _RUNNING.exists():
        if holder.poll() is not None:
            print(log.read_text(), file=sys.stderr)
            return 1
        time.sleep(0.05)
    print(f"up after {time.monotonic() - began:.1f} s: export KUBECONFIG={kubeconfig}")
    return 0


def hold(kubeconfig: Path, images: list[Path]) -> int:
    """Run a cluster until SIGTERM."""
    signal.signal(signal.SIGTERM, _leave)
    with Cluster() as cluster:
        for image in images:
            cluster.load(image)
        shutil.copyfile(cluster.kubeconfig, kubeconfig)
        kubeconfig.chmod(0o600)
        sockets = [str(node.socket) for node in cluster.nodes]
        running = _Running(keeper.who(), str(kubeconfig), sockets)
        making = _RUNNING.with_suffix(".new")
        making.write_text(json.dumps(asdict(running)))
        making.rename(_RUNNING)
        try:
            while True:
                signal.pause()
        finally:
            _RUNNING.unlink(missing_ok=True)
            kubeconfig.unlink(missing_ok=True)


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


def load(images: list[Path]) -> int:
    found = _running()
    if found is None:
        print("no cluster is up", file=sys.stderr)
        return 1
    for image in images:
        for socket in found.sockets:
            import_archive(Path(socket), image)
    return 0


def down() -> int:
    found = _running()
    if found is None:
        print("no cluster is up", file=sys.stderr)
        return 1
    os.kill(found.pid, signal.SIGTERM)
    deadline = time.monotonic() + FAR_TOO_LATE_S
    while found.lives:
        if time.monotonic() > deadline:
            print(f"process {found.pid} does not end", file=sys.stderr)
            return 1
        time.sleep(0.05)
    return 0


def status() -> int:
    found = _running()
    if found is None:
        print("no cluster is up")
        return 1
    api = KubeApi.of(Path(found.kubeconfig))
    print(f"KUBECONFIG={found.kubeconfig}")
    for node in api.nodes():
        _line(node, "ready" if is_ready(node) else "not ready")
    for pod in api.ask("GET", "/api/v1/pods")["items"]:
        _line(pod, pod["status"]["phase"], pod["spec"].get("nodeName", ""))
    return 0


def _line(found: Any, *words: str) -> None:
    print(f"{found['metadata'].get('namespace', 'node')}/{found['metadata']['name']}", *words)


def record() -> int:
    # Few of the commands need our own package.
    from tests.cluster import call_recording
    from tests.kubernetes.recorded import recorded_calls

    with Cluster() as cluster, tempfile.TemporaryDirectory() as place:
        recorded_calls.write(asyncio.run(call_recording.record(cluster, Path(place))))
    print(f"written: {recorded_calls.FILE.relative_to(programs.REPOSITORY)}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("up", "hold"):
        verb = verbs.add_parser(name)
        where = "kubeconfig" if name == "hold" else "--kubeconfig"
        verb.add_argument(where, type=Path, default=programs.PLACE / "kubeconfig")
        verb.add_argument("images", type=Path, nargs="*", help="archives of docker save or skopeo")
    verbs.add_parser("load").add_argument("images", type=Path, nargs="+")
    verbs.add_parser("down")
    verbs.add_parser("status")
    verbs.add_parser("record")
    asked = parser.parse_args()
    match asked.verb:
        case "up":
            return up(asked.kubeconfig.absolute(), [one.absolute() for one in asked.images])
        case "hold":
            return hold(asked.kubeconfig, asked.images)
        case "load":
            return load([one.absolute() for one in asked.images])
        case "down":
            return down()
        case "record":
            return record()
    return status()


if __name__ == "__main__":
    sys.exit(main())
