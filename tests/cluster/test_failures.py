"""What fails in a real cluster has the named error of the guide, and nothing is left of it."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    ImageNotFound,
    QuotaExceeded,
    RegistryUnavailable,
    SandboxLost,
    SandkastenError,
    Unauthorized,
)
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.limits import MIB, Limits
from sandkasten_contract.box import Box
from sandkasten_kubernetes import cell as cell_module
from sandkasten_kubernetes import pod_names, pod_network
from sandkasten_kubernetes.backend import KubernetesBackend
from sandkasten_runtime.assembly.backend_registry import read_nested
from tests.cluster.kube_api import KubeApi, wait_for
from tests.kubernetes import cluster_images
from tests.patience import FAR_TOO_LATE_S, PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from sandkasten_kubernetes.cell import KubernetesCell
    from tests.cluster.cluster import Cluster
    from tests.cluster.node import Node

    Opened = Callable[..., KubernetesBackend]

pytestmark = [
    pytest.mark.long("starts a Kubernetes of two nodes (make test-cluster)"),
    pytest.mark.promise("P100"),
    pytest.mark.timeout(300),
]
SPEC = CellSpec(image=Image(cluster_images.reference("busybox"), "engine"))


@pytest.fixture(scope="module")
def stocked(cluster: Cluster) -> Cluster:
    """The cluster with the images of sandboxes."""
    cluster_images.stock(cluster, "busybox")
    return cluster


@pytest.fixture
async def opened(stocked: Cluster, tmp_path: Path) -> AsyncIterator[Opened]:
    """Open backends of one installation, which must have nothing in the cluster at the end."""
    made: list[KubernetesBackend] = []
    options = cluster_images.options(str(stocked.kubeconfig))

    def open_backend(**changes: Any) -> KubernetesBackend:
        changed = replace(options, installation=tmp_path.name, **changes)
        made.append(KubernetesBackend(tmp_path, changed, read_nested))
        # The suites run with the self-test; here it would only take time.
        made[-1]._tried.add(pod_network.CLOSED)
        return made[-1]

    yield open_backend
    for one in made:
        await one.aclose()
    await asyncio.to_thread(_nothing_is_left, stocked.api, tmp_path.name)


def _nothing_is_left(api: KubeApi, owner: str) -> None:
    selector = pod_names.selector(owner).replace("=", "%3D").replace(",", "%2C")

    def left() -> list[str]:
        found = [
            api.ask("GET", f"/api/v1/{kind}?labelSelector={selector}")
            for kind in ("pods", "secrets")
        ]
        return [one["metadata"]["name"] for kind in found for one in kind["items"]]

    wait_for(left, lambda names: names == [], lambda names: f"left in the cluster: {names}")


@pytest.fixture
def backend(opened: Opened) -> KubernetesBackend:
    return opened()


async def _created(backend: KubernetesBackend, **limits: int) -> KubernetesCell:
    return await backend.create(new_sandbox_id(), replace(SPEC, limits=Limits(**limits)))


async def _says(cell: KubernetesCell, *command: str) -> bytes:
    """Run a command over a connection of its own."""
    box = await Box.open(cell)
    try:
        return (await box.run(list(command))).stdout
    finally:
        await box.aclose()


async def _lost(backend: KubernetesBackend, cell: KubernetesCell) -> str:
    """Wait until the sandbox is lost, check what the backend says of it, and return why."""
    with pytest.raises(SandboxLost) as raised:
        await _while_it_lives(cell)
    assert raised.value.hint == "create a new one"
    with pytest.raises(SandboxLost):
        await backend.attach(cell.id)
    return raised.value.message


async def _while_it_lives(cell: KubernetesCell) -> None:
    deadline = time.monotonic() + 2 * FAR_TOO_LATE_S
    while time.monotonic() < deadline:
        # A Pod that does not answer may come back.
        with suppress(Busy):
            await (await cell.dial()).aclose()
        await asyncio.sleep(0.1)


async def test_a_pod_that_is_evicted_by_a_drain_is_lost(backend: KubernetesBackend, api: KubeApi):
    cell = await _created(backend)
    name = pod_names.pod_name(cell.id)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    api.ask("POST", f"/api/v1/namespaces/default/pods/{name}/eviction", eviction)
    why = await _lost(backend, cell)
    # It may be gone before the first look.
    assert "it was evicted from its node" in why or "its Pod is gone" in why
    await backend.discard(cell.id)


async def test_a_pod_that_is_deleted_by_another_client_is_lost(
    backend: KubernetesBackend, api: KubeApi
):
    cell = await _created(backend)
    api.delete_pod(pod_names.pod_name(cell.id))
    assert "its Pod is" in await _lost(backend, cell)
    # Its Secret is how it is found.
    assert list(await backend.owned()) == [cell.id]
    await backend.discard(cell.id)


async def test_a_container_that_uses_too_much_memory_is_lost(backend: KubernetesBackend):
    cell = await _created(backend, memory_bytes=64 * MIB, tmp_bytes=64 * MIB)
    box = await Box.open(cell)
    # Files in memory stay when the command that wrote them is killed: at the end only the runner
    # is left to be killed. With cgroups of version 2 the first command is enough.
    fill = "for at in /tmp /dev/shm; do dd if=/dev/zero of=$at/$$ bs=1048576 count=64; done"
    with pytest.raises(SandkastenError):
        await _until_it_fails(box, fill)
    await box.aclose()
    assert "it used more memory than its limit" in await _lost(backend, cell)
    await backend.discard(cell.id)


async def test_a_workspace_over_its_size_is_an_eviction_with_that_reason(
    backend: KubernetesBackend,
):
    cell = await _created(backend, workspace_bytes=16 * MIB)
    await _says(cell, "dd", "if=/dev/zero", "of=/workspace/large", "bs=1048576", "count=32")
    assert 'its node evicted it: Usage of EmptyDir volume "workspace"' in await _lost(backend, cell)
    await backend.discard(cell.id)


async def _until_it_fails(box: Box, script: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        await box.run(["sh", "-c", script])


_REGISTRY = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Registry(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(self.path.split("/")[2]) if "/manifests/" in self.path else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    do_HEAD = do_GET

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Registry).serve_forever()
"""
_PORT = 5000


@contextmanager
def _registry(node: Node) -> Iterator[None]:
    """A registry on a node, in which the name of an image is the status of each answer."""
    words = [sys.executable, "-I", "-c", _REGISTRY, str(_PORT)]
    process = node.start(words, "registry.log")
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, ImageNotFound), (401, Unauthorized), (503, RegistryUnavailable)],
)
async def test_an_image_that_cannot_be_pulled_is_named(
    opened: Opened, stocked: Cluster, status: int, error: type[SandkastenError]
):
    node = stocked.nodes[0]
    backend = opened(
        pull_policy="IfNotPresent", node_selector={"kubernetes.io/hostname": node.name}
    )
    image = f"localhost:{_PORT}/{status}:1"
    with _registry(node), pytest.raises(error, match=image) as raised:
        await backend.create(new_sandbox_id(), replace(SPEC, image=Image(image, "engine")))
    assert raised.value.hint


async def test_a_full_quota_is_named_and_spares_what_runs(opened: Opened, api: KubeApi):
    namespace = f"full-{secrets.token_hex(4)}"
    api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    inside = f"/api/v1/namespaces/{namespace}"
    wait_for(
        lambda: api.ask("GET", f"{inside}/serviceaccounts")["items"],
        bool,
        lambda _: "no service account was made",
    )
    backend = opened(namespace=namespace)
    cell = await _created(backend)
    quota = {"metadata": {"name": "boxes"}, "spec": {"hard": {"pods": "1"}}}
    api.ask("POST", f"{inside}/resourcequotas", quota)
    used = {"pods": "1"}
    wait_for(
        lambda: api.ask("GET", f"{inside}/resourcequotas/boxes").get("status", {}).get("used"),
        lambda found: found == used,
        lambda found: f"used: {found}",
    )
    with pytest.raises(QuotaExceeded, match="boxes") as raised:
        await _created(backend)
    assert "ResourceQuota" in raised.value.hint
    assert await _says(cell, "echo", "here") == b"here\n"
    await cell.destroy()
    assert list(await backend.owned()) == []
    api.ask("DELETE", f"/api/v1/namespaces/{namespace}")


async def test_a_gate_that_is_slow_once_is_reached_through_the_api_server_and_the_next_directly(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
):
    backend = opened(reach="auto")
    with monkeypatch.context() as slow:
        slow.setattr(cell_module, "_DIRECT_S", 0.0)
        first = await _created(backend)
    assert backend._ways.direct is False
    second = await _created(backend)
    assert backend._ways.direct is True
    for cell in (first, second):
        assert await _says(cell, "echo", "here") == b"here\n"
        await cell.destroy()


async def test_a_cluster_without_room_is_busy(opened: Opened):
    backend = opened(overcommit=1.0, start_s=3.0)
    with pytest.raises(Busy, match="Insufficient memory") as raised:
        await _created(backend, memory_bytes=1 << 50)
    assert "add nodes" in raised.value.hint


# A daemon waits for a minute.
_GIVEN_UP_AT_ONCE = {
    "key": "node.kubernetes.io/unreachable",
    "operator": "Exists",
    "effect": "NoExecute",
    "tolerationSeconds": 1,
}


async def test_a_sandbox_on_a_lost_node_is_lost_and_the_others_go_on(
    opened: Opened, stocked: Cluster, api: KubeApi
):
    gone, other = stocked.nodes
    at = [
        opened(
            node_selector={"kubernetes.io/hostname": node.name}, tolerations=(_GIVEN_UP_AT_ONCE,)
        )
        for node in (gone, other)
    ]
    cell, beside = await _created(at[0]), await _created(at[1])
    assert await _says(cell, "echo", "here") == b"here\n"
    await asyncio.to_thread(gone.kill)
    await asyncio.to_thread(gone.cut_off)
    try:
        with pytest.raises(Busy, match="does not answer"):
            await cell.dial()
        assert "its node is lost" in await _lost(at[0], cell)
        assert await _says(beside, "echo", "here") == b"here\n"
        fresh = await _created(opened())
        assert api.pod(pod_names.pod_name(fresh.id))["spec"]["nodeName"] == other.name
        await fresh.destroy()
        # The cluster has accepted the removal, and its node has it to do.
        await at[0].discard(cell.id)
        assert list(await at[0].owned()) == [beside.id]
    finally:
        await asyncio.to_thread(gone.reconnect)
        gone.start_runtime()
        # A kubelet ends if there is no containerd.
        await asyncio.to_thread(wait_for, gone.is_up, bool, lambda _: "no containerd")
        gone.start_kubelet()
        await asyncio.to_thread(stocked.wait_until_ready)
    await beside.destroy()
    assert list(await at[0].owned()) == []


async def test_a_sandbox_on_a_node_without_network_is_there_again_when_the_node_is(
    opened: Opened, stocked: Cluster
):
    node = stocked.nodes[1]
    cell = await _created(opened(node_selector={"kubernetes.io/hostname": node.name}))
    await _says(cell, "sh", "-c", "echo kept >/workspace/file")
    await asyncio.to_thread(node.cut_off)
    try:
        with pytest.raises(Busy, match="does not answer") as raised:
            await _says(cell, "true")
        assert raised.value.hint
    finally:
        await asyncio.to_thread(node.reconnect)
    assert await _says(cell, "cat", "/workspace/file") == b"kept\n"
    await cell.destroy()


async def test_sandboxes_go_on_while_the_api_server_is_away(
    backend: KubernetesBackend, stocked: Cluster
):
    cell = await _created(backend)
    box = await Box.open(cell)
    stocked.kill_server("kube-apiserver")
    try:
        assert (await box.run(["echo", "same connection"])).stdout == b"same connection\n"
        assert await _says(cell, "echo", "a new one") == b"a new one\n"
        for asked in (_created(backend), backend.attach(cell.id), backend.owned()):
            with pytest.raises(BackendUnavailable, match="does not answer") as raised:
                await asked
            assert "running sandboxes go on" in raised.value.hint
        assert not (await backend.probe()).ready
    finally:
        stocked.start_server("kube-apiserver")
    await asyncio.to_thread(stocked.wait_until_ready)
    assert (await box.run(["echo", "still"])).stdout == b"still\n"
    await box.aclose()
    assert list(await backend.owned()) == [cell.id]
    await (await _created(backend)).destroy()
    await cell.destroy()
