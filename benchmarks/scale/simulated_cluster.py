"""A simulated cluster as a process: the fake API server of the tests, and Pods that are simulated.

`python -m benchmarks.scale.simulated_cluster DIRECTORY PORT START_S` prints one line of JSON when
it serves, and one with its counts for each line that it reads. A line that is not empty names a
file with pairs of ids: the Pod and the Secret of the first are copied for the second. It ends with
its input.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.scale.simulated_pods import SimulatedPods
from sandkasten.model.ids import SandboxId
from sandkasten_kubernetes.pod_names import pod_name
from tests.kubernetes.fake_cluster import FakeCluster

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RATES = Path(__file__).with_name("api_rates.json")


@dataclass(frozen=True, slots=True)
class MeasuredPace:
    """Implements `tests.kubernetes.fake_cluster.Pace` with the times of a real API server."""

    rates: Mapping[str, Mapping[str, float]]
    listed: int
    """How many objects a measured list had."""

    async def wait(self, verb: str, kind: str, items: int) -> None:
        # Its processor time, because other work made each call slower while it was measured.
        took_s = self.rates[f"{verb} {kind}"]["processor_ms"] / 1000
        await asyncio.sleep(took_s * items / self.listed if verb == "list" else took_s)


class SimulatedCluster:
    """The process, as its parent sees it."""

    def __init__(self, place: Path, port: int, start_s: float) -> None:
        """`start_s`: how long a Pod takes to start."""
        self._place = place
        self._port = port
        self._start_s = start_s
        self._process: asyncio.subprocess.Process | None = None
        self.kubeconfig = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def __aenter__(self) -> SimulatedCluster:
        words = (str(self._place), str(self._port), str(self._start_s))
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, *words,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self.kubeconfig = (await self._said())["kubeconfig"]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    async def counts(self) -> Counter[str]:
        """Return how many calls were answered, by verb and kind, and the bytes of the answers."""
        return Counter(await self._asked(""))

    async def copy(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Make copies of sandboxes: for each pair, one of the first id with the second."""
        path = self._place / "copies.json"
        path.write_text(json.dumps(pairs))
        await self._asked(str(path))

    async def _asked(self, line: str) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        return await self._said()

    async def _said(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        return json.loads(await self._process.stdout.readline())


def _copy(cluster: FakeCluster, pods: SimulatedPods, path: str) -> None:
    for old, new in json.loads(Path(path).read_text()):
        before, after = pod_name(SandboxId(old)), pod_name(SandboxId(new))
        address = pods.copy(before, after)
        for kind in ("secrets", "pods"):
            text = json.dumps(cluster.objects[kind, before])
            copied = json.loads(text.replace(before, after).replace(old, new))
            copied["metadata"]["uid"] = f"uid-{new}"
            if kind == "pods":
                copied["status"] |= {"podIP": address, "podIPs": [{"ip": address}]}
            cluster.objects[kind, after] = copied


async def _serve(place: Path, port: int, start_s: float) -> None:
    measured = json.loads(RATES.read_text())
    sample = measured["sample"]
    pods = SimulatedPods(port, start_s, sample)
    await pods.listen()
    cluster = FakeCluster(place, node=pods, pace=MeasuredPace(measured["rates"], measured["pods"]))
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    gc.freeze()
    async with cluster:
        print(json.dumps({"kubeconfig": str(cluster.kubeconfig())}), flush=True)
        while line := await reader.readline():
            if path := line.decode().strip():
                _copy(cluster, pods, path)
            ready = {
                **cluster.counts,
                "objects": len(cluster.objects),
                "connections": pods.connections,
                "open connections": pods.open_connections,
            }
            print(json.dumps(ready), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
