"""`python -m benchmarks.scale.api_rates KUBECONFIG`: what an API server takes for each call.

Makes some real sandboxes, and one of their Pods is the sample for the size of objects; then Pods of
the same manifest that no scheduler takes. Everything is removed at the end. Writes
`api_rates.json`, from which the simulated API server takes its times. `--server PID…` are the
processes of the API server and of etcd, whose processor time is divided by the number of calls.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import time
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from benchmarks.scale.processes import processor_s
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten_kubernetes import pod_manifest, pod_names
from sandkasten_kubernetes.api.cluster_access import from_kubeconfig
from sandkasten_kubernetes.api.cluster_client import ClusterClient
from sandkasten_kubernetes.backend import KubernetesBackend
from sandkasten_kubernetes.kubernetes_options import KubernetesOptions
from sandkasten_runtime.assembly.backend_registry import read_nested
from sandkasten_runtime.backends.gate import entry_keys
from tests.kubernetes.cluster_images import reference

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sandkasten.model.ids import SandboxId

RATES: Final = Path(__file__).with_name("api_rates.json")
_OWNER: Final = "api-rates"
_AT_ONCE: Final = 16
_SAMPLES: Final = 5
_LISTS: Final = 12


@dataclass(frozen=True, slots=True)
class Rate:
    ms: float
    """The fastest decile of calls one after another: other work only makes a call slower."""
    per_s: float
    """Calls per second, sixteen at once."""
    processor_ms: float
    """Of the API server and etcd, for each call."""


class Meter:
    def __init__(self, servers: Sequence[int]) -> None:
        self._servers = servers

    async def rate(self, calls: Sequence[Callable[[], Awaitable[object]]]) -> Rate:
        """Make a quarter of the calls one after another, and the others several at once."""
        alone, rest = calls[: len(calls) // 4], iter(calls[len(calls) // 4 :])
        used, times = processor_s(*self._servers), []
        for call in alone:
            began = time.perf_counter()
            await call()
            times.append((time.perf_counter() - began) * 1000)

        async def work() -> None:
            for call in rest:
                await call()

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
        took_s = time.perf_counter() - began
        used = processor_s(*self._servers) - used
        return Rate(
            round(sorted(times)[len(times) // 10], 2),
            round((len(calls) - len(alone)) / took_s, 1),
            round(used * 1000 / len(calls), 2),
        )


async def sample(options: KubernetesOptions, client: ClusterClient) -> dict[str, Any]:
    """Return the parts that the API server and the kubelet add to a Pod of ours, and how long
    Pods take to run.
    """
    with TemporaryDirectory() as home:
        backend = KubernetesBackend(Path(home), options, read_nested)
        spec = CellSpec(image=Image(reference("busybox"), "engine"))
        try:
            times = []
            # The first one is created after the self-test.
            for _ in range(_SAMPLES + 1):
                began = time.perf_counter()
                cell = await backend.create(new_sandbox_id(), spec)
                times.append(time.perf_counter() - began)
                pod = await client.get("pods", pod_names.pod_name(cell.id))
                await cell.destroy()
        finally:
            await backend.aclose()
    return {
        "start_s": round(median(times[1:]), 2),
        "spec": {name: pod["spec"][name] for name in sorted(pod["spec"])},
        "managedFields": pod["metadata"]["managedFields"],
        "status": dict(pod["status"]),
        "bytes": len(json.dumps(pod)),
    }


async def event_ms(client: ClusterClient, options: KubernetesOptions) -> float:
    """Return the time from a call that removes a Pod to its event in a watch."""
    times = []
    for _ in range(_SAMPLES):
        pod = await client.create("pods", _pod(new_sandbox_id(), options))
        name, version = pod["metadata"]["name"], pod["metadata"]["resourceVersion"]
        async with aclosing(client.watch("pods", name, version)) as events:
            watching = asyncio.ensure_future(_deleted(events))
            await asyncio.sleep(0.2)
            began = time.perf_counter()
            await client.delete("pods", name, grace_s=0)
            await watching
            times.append((time.perf_counter() - began) * 1000)
    return round(median(times), 2)


async def _deleted(events: Any) -> None:
    async for what, _ in events:
        if what == "DELETED":
            return


async def measure(kubeconfig: Path, servers: Sequence[int], pods: int) -> dict[str, Any]:
    options = KubernetesOptions(
        kubeconfig=kubeconfig,
        runner_image=reference("programs"),
        pull_policy="Never",
        reach="direct",
        overcommit=100.0,
        network_policy="assumed",
    )
    access = from_kubeconfig(kubeconfig, "", read_nested, {})
    client = ClusterClient(lambda: access, "", 60.0)
    meter = Meter(servers)
    ids = [new_sandbox_id() for _ in range(pods)]
    names = [pod_names.pod_name(sandbox_id) for sandbox_id in ids]
    keys = entry_keys.make_keys(ids[0], "kubernetes").to_data()
    selector = pod_names.selector(_OWNER)
    rates: dict[str, Rate] = {}
    try:
        sampled = await sample(options, client)
        sampled["event_ms"] = await event_ms(client, options)
        objects = [pod_manifest.secret(sandbox_id, _OWNER, "a", keys) for sandbox_id in ids]
        rates["create secrets"] = await meter.rate(
            [_create(client, "secrets", body) for body in objects]
        )
        objects = [_pod(sandbox_id, options) for sandbox_id in ids]
        rates["create pods"] = await meter.rate([_create(client, "pods", body) for body in objects])
        for kind in ("pods", "secrets"):
            rates[f"get {kind}"] = await meter.rate([_get(client, kind, name) for name in names])
            rates[f"list {kind}"] = await meter.rate([_list(client, kind, selector)] * _LISTS)
            rates[f"list whole {kind}"] = await meter.rate(
                [_list_whole(client, kind, selector, pods)] * _LISTS
            )
        for kind in ("pods", "secrets"):
            rates[f"delete {kind}"] = await meter.rate(
                [_delete(client, kind, name) for name in names]
            )
    finally:
        for kind in ("pods", "secrets"):
            for item in await client.list(kind, selector):
                with suppress(Exception):
                    await client.delete(kind, item["metadata"]["name"], grace_s=0)
        await client.aclose()
    shown = {name: {"ms": rate.ms, "per_s": rate.per_s, "processor_ms": rate.processor_ms}
             for name, rate in rates.items()}  # fmt: skip
    return {"pods": pods, "rates": shown, "sample": sampled}


def _pod(the_id: SandboxId, options: KubernetesOptions) -> dict[str, Any]:
    spec = CellSpec(image=Image(reference("busybox"), "engine"))
    pod = pod_manifest.pod(the_id, spec, options, _OWNER, secrets.token_hex(8))
    # No scheduler works on them, so the processor time is that of the calls.
    pod["spec"]["schedulerName"] = "nowhere"
    return pod


def _create(client: ClusterClient, kind: str, body: Any) -> Callable[[], Awaitable[object]]:
    return lambda: client.create(kind, body)


def _get(client: ClusterClient, kind: str, name: str) -> Callable[[], Awaitable[object]]:
    return lambda: client.get(kind, name)


def _list(client: ClusterClient, kind: str, selector: str) -> Callable[[], Awaitable[object]]:
    return lambda: client.list(kind, selector)


def _list_whole(
    client: ClusterClient, kind: str, selector: str, most: int
) -> Callable[[], Awaitable[object]]:
    """With spec, status and data, for comparison."""

    async def ask() -> object:
        query = {"labelSelector": selector, "limit": str(most)}
        return await client._call("GET", await client._path(kind), query=query)

    return ask


def _delete(client: ClusterClient, kind: str, name: str) -> Callable[[], Awaitable[object]]:
    return lambda: client.delete(kind, name, grace_s=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("--server", type=int, nargs="*", default=[])
    parser.add_argument("--pods", type=int, default=500)
    words = parser.parse_args()
    result = asyncio.run(measure(words.kubeconfig, words.server, words.pods))
    RATES.write_text(json.dumps(result, indent=1) + "\n")
    for name, rate in result["rates"].items():
        print(f"{name}: {rate}")
    print({name: result["sample"][name] for name in ("start_s", "event_ms", "bytes")})


if __name__ == "__main__":
    main()
