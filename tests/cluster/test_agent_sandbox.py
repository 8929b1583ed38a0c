"""Sandboxes through Sandbox objects of agent-sandbox, with its real controller."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import BackendUnavailable, ImageNotFound, QuotaExceeded, SandboxLost
from sandkasten.model.ids import SandboxId, new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten_kubernetes import agent_sandboxes, pod_manifest, pod_names
from sandkasten_kubernetes.backend import KubernetesBackend
from sandkasten_kubernetes.kubernetes_options import KubernetesOptions
from sandkasten_kubernetes.tenant_namespaces import TenantNamespaces
from sandkasten_runtime.assembly.backend_registry import read_nested
from sandkasten_runtime.wire.call import OutputChunk
from sandkasten_runtime.wire.channel import Channel
from tests.cluster.agent_sandbox import AgentSandbox
from tests.cluster.cluster import BUSYBOX
from tests.cluster.kube_api import ApiError, path_of, wait_for
from tests.kubernetes import cluster_images
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from sandkasten_kubernetes.cell import KubernetesCell
    from tests.cluster.cluster import Cluster
    from tests.cluster.kube_api import KubeApi

pytestmark = [
    pytest.mark.long("starts a Kubernetes of two nodes (make test-cluster)"),
    pytest.mark.promise("P108"),
]

SPEC = CellSpec(image=Image(BUSYBOX, "engine"))


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Iterator[AgentSandbox]:
    cluster_images.stock(cluster)
    with AgentSandbox(cluster) as made:
        yield made


@pytest.fixture
async def opened(
    cluster: Cluster, installed: AgentSandbox, tmp_path: Path
) -> AsyncIterator[Callable[..., KubernetesBackend]]:
    made: list[KubernetesBackend] = []
    options = replace(
        cluster_images.options(str(cluster.kubeconfig)),
        agent_sandbox="require",
        start_s=PATIENCE_S,
    )

    def open_backend(**changes: Any) -> KubernetesBackend:
        made.append(KubernetesBackend(tmp_path, replace(options, **changes), read_nested))
        return made[-1]

    yield open_backend
    for one in made:
        for sandbox_id in await one.owned():
            await one.discard(sandbox_id)
        await one.aclose()


@pytest.fixture
def backend(opened: Callable[..., KubernetesBackend]) -> KubernetesBackend:
    return opened()


async def said(cell: KubernetesCell, *argv: str) -> bytes:
    """Run a command in the sandbox; return its output."""
    channel = await Channel.open(await cell.dial())
    exec_id = secrets.token_hex(4)
    try:
        await channel.call("exec.start", {"exec_id": exec_id, "argv": argv, "follow": False})
        await channel.call("exec.wait", {"exec_id": exec_id, "timeout_ms": int(PATIENCE_S * 1000)})
        text = bytearray()
        async with channel.stream("exec.output", {"exec_id": exec_id}) as call:
            async for item in call:
                if isinstance(item, OutputChunk):
                    text += item.data
        return bytes(text)
    finally:
        await channel.aclose()


def left(api: KubeApi, installed: AgentSandbox, sandbox_id: SandboxId) -> list[str]:
    """Return the kinds of what the cluster has of a sandbox."""
    name = pod_names.pod_name(sandbox_id)
    keys = api.ask("GET", "/api/v1/namespaces/default/secrets")["items"]
    kinds = {"pods": api.pods(), "sandboxes": installed.sandboxes(), "secrets": keys}
    return [
        kind
        for kind, found in kinds.items()
        if any(one["metadata"]["name"] == name for one in found)
    ]


def wait_until_gone(api: KubeApi, installed: AgentSandbox, sandbox_id: SandboxId) -> None:
    wait_for(
        lambda: left(api, installed, sandbox_id),
        lambda found: not found,
        lambda found: f"the cluster does not remove {found}",
    )


async def wait_until_lost(cell: KubernetesCell) -> None:
    """Wait until the sandbox cannot be reached: its node ends it after its Pod is gone."""
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(SandboxLost):
            while True:
                await (await cell.dial()).aclose()
                await asyncio.sleep(0.1)


def replacement(api: KubeApi, cell: KubernetesCell, first: str) -> Any:
    """Wait for the Pod that the controller makes after the first one is gone."""

    def look() -> Any:
        with contextlib.suppress(ApiError):
            return api.pod(pod_names.pod_name(cell.id))
        return None

    return wait_for(
        look,
        lambda pod: pod is not None and pod["metadata"]["uid"] != first,
        lambda _: "the controller makes no other Pod",
    )


async def test_a_sandbox_runs_commands_and_leaves_nothing(backend, api, installed):
    cell = await backend.create(new_sandbox_id(), SPEC)
    assert await said(cell, "id", "-u") == b"1000\n"
    (sandbox,) = installed.sandboxes()
    assert sandbox["metadata"]["name"] == pod_names.pod_name(cell.id)
    pod = api.pod(pod_names.pod_name(cell.id))
    assert pod["metadata"]["ownerReferences"][0]["uid"] == sandbox["metadata"]["uid"]
    limits = {one["name"]: one["resources"]["limits"] for one in pod["spec"]["containers"]}
    assert limits["sandbox"]["memory"] == str(SPEC.limits.memory_bytes)
    assert "schedulingGates" not in pod["spec"]
    assert left(api, installed, cell.id) == ["pods", "sandboxes", "secrets"]
    await cell.destroy()
    assert left(api, installed, cell.id) == []


async def test_a_dead_controller_stops_creates_and_nothing_else(
    backend, opened, api, installed: AgentSandbox
):
    cell, other = [await backend.create(new_sandbox_id(), SPEC) for _ in range(2)]
    installed.kill()
    try:
        assert await said(cell, "echo", "on") == b"on\n"
        # No sandbox is made in the meantime, and none of it is left.
        refused = new_sandbox_id()
        impatient = opened(start_s=1.0)
        impatient._tried.add("closed")
        with pytest.raises(BackendUnavailable, match="made no Pod"):
            await impatient.create(refused, SPEC)
        assert left(api, installed, refused) == []
        await other.destroy()
        assert left(api, installed, other.id) == []
    finally:
        installed.start()
    again = await backend.create(new_sandbox_id(), SPEC)
    assert await said(again, "echo", "again") == b"again\n"
    # The controller found the first one as it was.
    assert await said(cell, "echo", "still") == b"still\n"


async def test_a_sandbox_that_was_suspended_is_lost_and_not_started_again(
    backend, opened, api, installed
):
    cell = await backend.create(new_sandbox_id(), SPEC)
    await (await cell.dial()).aclose()
    name = pod_names.pod_name(cell.id)
    first = api.pod(name)["metadata"]["uid"]
    installed.change(name, {"operatingMode": "Suspended"})
    wait_for(
        lambda: left(api, installed, cell.id),
        lambda found: "pods" not in found,
        lambda _: "the Pod of a suspended Sandbox stays",
    )
    with pytest.raises(SandboxLost):
        await cell.dial()
    installed.change(name, {"operatingMode": "Running"})
    pod = replacement(api, cell, first)
    assert pod["spec"]["schedulingGates"] == [{"name": pod_names.START_GATE}]
    with pytest.raises(SandboxLost, match="not started"):
        await opened().attach(cell.id)
    assert list(await backend.owned()) == [cell.id]
    await backend.discard(cell.id)
    wait_until_gone(api, installed, cell.id)


async def test_a_pod_that_was_deleted_is_lost_and_its_replacement_does_not_start(
    backend, opened, api, installed
):
    cell = await backend.create(new_sandbox_id(), SPEC)
    await (await cell.dial()).aclose()
    first = api.pod(pod_names.pod_name(cell.id))["metadata"]["uid"]
    api.delete_pod(pod_names.pod_name(cell.id))
    pod = replacement(api, cell, first)
    assert pod["spec"]["schedulingGates"]
    assert "nodeName" not in pod["spec"]
    with pytest.raises(SandboxLost):
        await opened().attach(cell.id)
    await wait_until_lost(cell)
    await backend.discard(cell.id)
    wait_until_gone(api, installed, cell.id)


async def test_a_sandbox_object_that_was_deleted_takes_everything_with_it(backend, api, installed):
    cell = await backend.create(new_sandbox_id(), SPEC)
    await (await cell.dial()).aclose()
    installed.delete(pod_names.pod_name(cell.id))
    wait_until_gone(api, installed, cell.id)
    with pytest.raises(SandboxLost):
        await cell.dial()
    assert list(await backend.owned()) == []


async def test_the_cluster_removes_everything_at_the_hard_end_without_a_daemon(
    backend, api, installed
):
    cell = await backend.create(new_sandbox_id(), SPEC)
    await (await cell.dial()).aclose()
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    installed.change(pod_names.pod_name(cell.id), {"shutdownTime": now})
    wait_until_gone(api, installed, cell.id)


async def test_a_create_that_was_interrupted_after_its_first_object_is_found(
    backend, api, installed
):
    sandbox_id = new_sandbox_id()
    options = KubernetesOptions(runner_image="r")
    pod = pod_manifest.pod(sandbox_id, SPEC, options, await backend._whose(), "attempt")
    installed.create(agent_sandboxes.sandbox(pod, options))
    assert list(await backend.owned()) == [sandbox_id]
    await backend.discard(sandbox_id)
    wait_until_gone(api, installed, sandbox_id)
    assert list(await backend.owned()) == []


@pytest.mark.promise("P109")
async def test_a_sandbox_object_is_in_the_namespace_of_its_tenant(
    cluster, installed, api, tmp_path
):
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "boxes-acme"}}
    options = replace(
        cluster_images.options(str(cluster.kubeconfig)),
        agent_sandbox="require",
        start_s=PATIENCE_S,
        namespace="default",
        tenant_namespaces={"acme": "boxes-acme"},
    )
    kinds = ("apis/agents.x-k8s.io/v1beta1", "sandboxes"), ("api/v1", "pods"), ("api/v1", "secrets")

    def names() -> set[str]:
        lists = [f"/{root}/namespaces/boxes-acme/{kind}" for root, kind in kinds]
        found = [one for path in lists for one in api.ask("GET", path)["items"]]
        return {one["metadata"]["name"] for one in found}

    api.apply(namespace)
    backend, other = [TenantNamespaces(tmp_path, options, read_nested) for _ in range(2)]
    try:
        spec = replace(SPEC, place=backend.capabilities.place("acme"))
        cell = await backend.create(new_sandbox_id(), spec)
        assert await said(cell, "id", "-u") == b"1000\n"
        assert installed.sandboxes() == []
        assert names() == {pod_names.pod_name(cell.id)}
        assert list(await other.owned()) == [cell.id]
        assert await said(await other.attach(cell.id), "echo", "there") == b"there\n"
        await other.discard(cell.id)
        wait_for(names, lambda left: not left, lambda left: f"left: {left}")
    finally:
        await backend.aclose()
        await other.aclose()
        api.ask("DELETE", path_of(namespace))


async def test_errors_are_those_of_bare_pods(backend, api, installed):
    missing = replace(SPEC, image=Image("localhost/sandkasten/none:1", "engine"))
    backend._tried.add("closed")
    sandbox_id = new_sandbox_id()
    with pytest.raises(ImageNotFound, match="none:1"):
        await backend.create(sandbox_id, missing)
    wait_until_gone(api, installed, sandbox_id)
    quotas = "/api/v1/namespaces/default/resourcequotas"
    api.ask("POST", quotas, {"metadata": {"name": "full"}, "spec": {"hard": {"pods": "0"}}})
    try:
        wait_for(
            lambda: api.ask("GET", f"{quotas}/full"),
            lambda quota: "hard" in quota["status"],
            lambda quota: f"the quota is not in force: {quota}",
        )
        with pytest.raises(QuotaExceeded, match="full"):
            await backend.create(sandbox_id, SPEC)
    finally:
        api.ask("DELETE", f"{quotas}/full")
    wait_until_gone(api, installed, sandbox_id)
