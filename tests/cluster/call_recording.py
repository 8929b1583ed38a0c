"""Play the scenes of `tests/kubernetes/recorded` on a cluster, and record the calls."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.cluster.agent_sandbox import AgentSandbox
from tests.cluster.kube_api import ApiError, KubeApi, wait_for
from tests.kubernetes import cluster_images
from tests.kubernetes.recorded import scenes
from tests.kubernetes.recorded.recorded_calls import Recording
from tests.kubernetes.recorded.recorder import Recorder

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.cluster import Cluster
    from tests.kubernetes.recorded.recorded_calls import RecordedCall

_PORT = 8484
_INSIDE = f"/api/v1/namespaces/{scenes.NAMESPACE}"
_QUOTA = "boxes"
_NOT_FOUND = 404


async def record(cluster: Cluster, place: Path) -> Recording:
    """Make a namespace, play everything in it, and remove it."""
    await asyncio.to_thread(cluster_images.stock, cluster, "busybox")
    api = cluster.api
    tokens = await asyncio.to_thread(_prepare, api, cluster)
    trust = ssl.create_default_context(cafile=str(cluster.certificates / "ca.pem"))
    found: dict[str, list[RecordedCall]] = {}
    try:
        async with Recorder(cluster.server, trust, tokens) as proxy:
            outside = _Cluster(cluster, proxy)
            for scene in scenes.SCENES:
                found[scene.__name__] = await _played(scene, outside, place)
            with ExitStack() as stack:
                await asyncio.to_thread(stack.enter_context, AgentSandbox(cluster))
                for scene in scenes.AGENT_SANDBOX_SCENES:
                    found[scene.__name__] = await _played(scene, outside, place)
    finally:
        await asyncio.to_thread(api.ask, "DELETE", _INSIDE)
    version = await asyncio.to_thread(api.ask, "GET", "/version")
    return Recording(version["gitVersion"], found)


@dataclass(frozen=True, slots=True)
class _Cluster:
    """Implements `scenes.Outside`."""

    cluster: Cluster
    proxy: Recorder

    async def fill_quota(self) -> None:
        await asyncio.to_thread(_fill_quota, self.cluster.api)

    async def delete_pod(self, name: str) -> None:
        await asyncio.to_thread(self.cluster.api.delete_pod, name, scenes.NAMESPACE)

    async def forget_history(self) -> None:
        # The Pod does not change any more.
        await asyncio.to_thread(_wait_until_unscheduled, self.cluster.api)
        self.cluster.kill_server("kube-apiserver")
        self.cluster.start_server("kube-apiserver")
        await asyncio.to_thread(self.cluster.wait_until_ready)

    async def cause_bookmark(self) -> None:
        self.proxy.bookmarks = True
        await asyncio.to_thread(_make_and_remove_pod, self.cluster.api)


async def _played(scene: scenes.Scene, outside: _Cluster, place: Path) -> list[RecordedCall]:
    stage = scenes.Stage(outside.proxy.url, place, _PORT, outside)
    try:
        await scene(stage)
    finally:
        await stage.aclose()
    await asyncio.to_thread(_clear, outside.cluster.api)
    return outside.proxy.recorded()


def _prepare(api: KubeApi, cluster: Cluster) -> dict[str, str]:
    """Make the namespace; return the tokens of the clients."""
    api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": scenes.NAMESPACE}})
    accounts = f"{_INSIDE}/serviceaccounts"
    wait_for(
        lambda: api.ask("GET", accounts)["items"], bool, lambda _: "no service account was made"
    )
    api.ask("POST", accounts, {"metadata": {"name": scenes.STRANGER}})
    told = api.ask("POST", f"{accounts}/{scenes.STRANGER}/token", {"spec": {}})
    config = json.loads(cluster.kubeconfig.read_text())
    return {
        scenes.DAEMON: config["users"][0]["user"]["token"],
        scenes.STRANGER: told["status"]["token"],
    }


def _wait_until_unscheduled(api: KubeApi) -> None:
    wait_for(
        lambda: api.pod(scenes.NAME, scenes.NAMESPACE)["status"].get("conditions"),
        bool,
        lambda _: "the scheduler has not looked at the Pod",
    )


def _make_and_remove_pod(api: KubeApi) -> None:
    """Make a Pod that never starts: a bookmark tells only of a version that is new."""
    name = "other"
    container = {"name": name, "image": "localhost/none:1"}
    spec = {"containers": [container], "schedulingGates": [{"name": "example.org/never"}]}
    api.create_pod({"metadata": {"name": name}, "spec": spec})
    api.delete_pod(name)


def _fill_quota(api: KubeApi) -> None:
    """Wait until the quota is in force, too."""
    quota = {"metadata": {"name": _QUOTA}, "spec": {"hard": {"pods": "0"}}}
    api.ask("POST", f"{_INSIDE}/resourcequotas", quota)
    wait_for(
        lambda: api.ask("GET", f"{_INSIDE}/resourcequotas/{_QUOTA}").get("status", {}).get("used"),
        bool,
        lambda _: "the quota is not in force",
    )


def _clear(api: KubeApi) -> None:
    """Remove the quota of a scene, and wait until nothing of the scene is left."""
    try:
        api.ask("DELETE", f"{_INSIDE}/resourcequotas/{_QUOTA}")
    except ApiError as exc:
        if exc.status != _NOT_FOUND:
            raise
    wait_for(
        lambda: [
            one["metadata"]["name"]
            for kind in ("pods", "secrets")
            for one in api.ask("GET", f"{_INSIDE}/{kind}")["items"]
        ],
        lambda left: not left,
        lambda left: f"left by a scene: {left}",
    )
