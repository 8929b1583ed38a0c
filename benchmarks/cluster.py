"""Sandboxes that are Pods, held against bare Pods on the same test cluster of two nodes.

One after another in turns, and many at once. The warm pool is off: every sandbox is created on
demand. `pods/exec` is the protocol of `kubectl exec`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Final

from benchmarks.agents import opened
from benchmarks.peers.pods import BarePods
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_kubernetes.api import cluster_access
from sandkasten_kubernetes.api.cluster_client import ClusterClient
from sandkasten_runtime.assembly.backend_registry import read_nested

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from benchmarks.plan import Plan
    from benchmarks.samples import Samples
    from sandkasten_runtime.engine.engine import Engine

OURS, BARE, WITH_VOLUME, KUBECTL = "sandkasten", "bare Pod", "bare Pod with a volume", "pods/exec"
CREATE: Final = "create on Kubernetes"
DESTROY: Final = "destroy on Kubernetes"
SHELL: Final = "exec true on Kubernetes (shell)"
ARGV: Final = "exec true on Kubernetes (argv)"
BURST: Final = "create on Kubernetes, many at once"
LAST: Final = "the last of many on Kubernetes"
_TIMEOUT_S: Final = 30.0
_REMOVED_AT_ONCE: Final = 10


def measure(samples: Samples, plan: Plan, scratch: Path) -> None:
    from tests.cluster.cluster import Cluster
    from tests.kubernetes import cluster_images

    with Cluster() as cluster:
        cluster_images.stock(cluster, "debian")
        flags = {
            "backend": "kubernetes",
            "default_image": cluster_images.reference("debian"),
            "backends.kubernetes.kubeconfig": str(cluster.kubeconfig),
            "backends.kubernetes.runner_image": cluster_images.reference(
                cluster_images.PROGRAM_IMAGE
            ),
            "backends.kubernetes.pull_policy": "Never",
            "backends.kubernetes.reach": "direct",
            # No controller of the test cluster enforces a NetworkPolicy.
            "backends.kubernetes.network_policy": "assumed",
            # Two processors have to run a hundred sandboxes.
            "backends.kubernetes.overcommit": "100",
            "pool.oneshot_spares": "0",
        }
        asyncio.run(_measure(samples, plan, scratch, cluster.kubeconfig, flags))


async def _measure(
    samples: Samples, plan: Plan, scratch: Path, kubeconfig: Path, flags: dict[str, str]
) -> None:
    client = ClusterClient(
        lambda: cluster_access.from_kubeconfig(kubeconfig, "", read_nested, {}),
        "",
        _TIMEOUT_S,
    )
    bare = BarePods(client, kubeconfig, flags["default_image"])
    try:
        async with opened(scratch / "cluster", **flags) as engine:
            # The first has a throw-away sandbox examined; each opens a connection.
            await engine.destroy((await engine.create(CreateRequest())).id)
            await bare.destroy(await bare.create())
            await _in_turns(samples, plan, engine, bare)
            await _commands(samples, plan, engine, bare)
            await _at_once(samples, plan, engine, bare)
    finally:
        await client.aclose()


async def _in_turns(samples: Samples, plan: Plan, engine: Engine, bare: BarePods) -> None:
    async def create_sandbox() -> str:
        return (await engine.create(CreateRequest())).id

    create: dict[str, Callable[[], Awaitable[str]]] = {
        OURS: create_sandbox,
        BARE: bare.create,
        WITH_VOLUME: lambda: bare.create(volume=True),
    }
    destroy = {OURS: engine.destroy, BARE: bare.destroy, WITH_VOLUME: bare.destroy}
    peers = list(create)
    names: dict[str, str] = {}
    for number in range(plan.rounds + 1):
        shift = number % len(peers)
        for peer in peers[shift:] + peers[:shift]:
            # One of the round before: a kubelet removes a Pod that it has just started later.
            if peer in names:
                with samples.timed(DESTROY, peer):
                    await destroy[peer](names.pop(peer))
            if number < plan.rounds:
                with samples.timed(CREATE, peer):
                    names[peer] = await create[peer]()


async def _commands(samples: Samples, plan: Plan, engine: Engine, bare: BarePods) -> None:
    box, name = await engine.create(CreateRequest()), await bare.create()
    requests = {SHELL: ExecRequest("true"), ARGV: ExecRequest(("/bin/true",))}
    for number in range(-1, plan.rounds * plan.execs):
        for operation, request in requests.items():
            began = time.perf_counter()
            assert (await engine.exec(box.id, request)).exit_code == 0
            if number >= 0:  # the first one starts the shell
                samples.add(operation, OURS, (time.perf_counter() - began) * 1000)
        began = time.perf_counter()
        await bare.exec_true(name)
        took = (time.perf_counter() - began) * 1000
        # It has one way to run a command; both of ours are held against it.
        for operation in requests if number >= 0 else ():
            samples.add(operation, KUBECTL, took)
    await engine.destroy(box.id)
    await bare.destroy(name)


async def _at_once(samples: Samples, plan: Plan, engine: Engine, bare: BarePods) -> None:
    async def create_sandbox() -> str:
        with samples.timed(BURST, OURS):
            return (await engine.create(CreateRequest())).id

    async def create_pod() -> str:
        with samples.timed(BURST, WITH_VOLUME):
            return await bare.create(volume=True)

    for peer, create, destroy in (
        (WITH_VOLUME, create_pod, bare.destroy),
        (OURS, create_sandbox, engine.destroy),
    ):
        began = time.perf_counter()
        pods = await asyncio.gather(*(create() for _ in range(plan.pods)))
        samples.add(LAST, peer, (time.perf_counter() - began) * 1000)
        spread = await bare.spread()
        print(f"bench: {plan.pods} of {peer}, by node: {spread}", file=sys.stderr)
        # A scheduler may place bare Pods on one node: they request next to nothing.
        assert peer != OURS or len(spread) > 1
        # Both at once would fill the nodes. Not all of them at once, because removing one has a
        # deadline and they are not measured.
        for first in range(0, len(pods), _REMOVED_AT_ONCE):
            some = pods[first : first + _REMOVED_AT_ONCE]
            await asyncio.gather(*(destroy(pod) for pod in some))
