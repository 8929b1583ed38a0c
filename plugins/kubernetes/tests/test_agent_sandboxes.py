"""Sandbox objects of agent-sandbox: an API server that is scripted, with real gates and runners.

`tests/cluster/test_agent_sandbox.py` has the real controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from sandkasten.errors import (
    BackendUnavailable,
    Conflict,
    InvalidRequest,
    SandboxLost,
)
from sandkasten.model.ids import SandboxId, new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten_kubernetes import agent_sandboxes, pod_manifest, pod_names
from sandkasten_kubernetes.kubernetes_options import KubernetesOptions
from sandkasten_runtime.wire.channel import Channel
from tests.kubernetes.fake_cluster import TOKEN, FakeCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from sandkasten_kubernetes.backend import KubernetesBackend

SPEC = CellSpec(image=Image("example.org/python:3.11", "engine"))
ID = SandboxId("sbx_0123456789abcdef")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FakeCluster]:
    async with FakeCluster(tmp_path, agent_sandbox=True) as fake:
        yield fake


def kinds(cluster: FakeCluster) -> list[str]:
    return sorted(kind for kind, _ in cluster.objects)


async def delete(cluster: FakeCluster, kind: str, name: str) -> None:
    """Delete an object as another client of the cluster does."""
    root = "/apis/agents.x-k8s.io/v1beta1" if kind == "sandboxes" else "/api/v1"
    url = f"{cluster.url}{root}/namespaces/boxes/{kind}/{name}"
    async with (
        aiohttp.ClientSession() as session,
        session.delete(url, headers={"Authorization": f"Bearer {TOKEN}"}) as answer,
    ):
        assert answer.status == 200


def test_a_sandbox_object_has_our_pod_a_gate_and_an_end():
    options = KubernetesOptions(runner_image="r", lifetime_s=60.0)
    pod = pod_manifest.pod(ID, SPEC, options, "mine", "attempt")
    sandbox = agent_sandboxes.sandbox(pod, options)
    template = sandbox["spec"]["podTemplate"]
    assert template["spec"] == {**pod["spec"], "schedulingGates": [{"name": pod_names.START_GATE}]}
    assert template["metadata"]["labels"] == pod["metadata"]["labels"]
    assert sandbox["metadata"]["name"] == pod["metadata"]["name"]
    assert sandbox["metadata"]["labels"] == pod["metadata"]["labels"]
    assert sandbox["spec"]["shutdownPolicy"] == "Delete"
    assert sandbox["spec"]["shutdownTime"].endswith("Z")
    # The Service would be a second way in.
    assert sandbox["spec"]["service"] is False


@pytest.mark.promise("P108")
async def test_a_sandbox_from_create_to_destroy(backend: KubernetesBackend, cluster: FakeCluster):
    sandbox_id = new_sandbox_id()
    cell = await backend.create(sandbox_id, SPEC)
    await (await Channel.open(await cell.dial())).aclose()
    name = pod_names.pod_name(sandbox_id)
    assert kinds(cluster) == ["pods", "sandboxes", "secrets"]
    uid = cluster.objects["sandboxes", name]["metadata"]["uid"]
    for kind in ("pods", "secrets"):
        (owner,) = cluster.objects[kind, name]["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Sandbox", uid)
    assert list(await backend.owned()) == [sandbox_id]
    await cell.destroy()
    assert cluster.objects == {}
    assert list(await backend.owned()) == []


@pytest.mark.promise("P108")
async def test_a_pod_that_the_controller_replaced_is_lost_and_not_started(
    backend: KubernetesBackend, opened: Callable[..., KubernetesBackend], cluster: FakeCluster
):
    cell = await backend.create(new_sandbox_id(), SPEC)
    await (await cell.dial()).aclose()
    name = pod_names.pod_name(cell.id)
    await delete(cluster, "pods", name)
    assert cluster.objects["pods", name]["spec"]["schedulingGates"]
    with pytest.raises(SandboxLost):
        await cell.dial()
    with pytest.raises(SandboxLost, match="another one, which is not started"):
        await opened().attach(cell.id)
    assert list(await backend.owned()) == [cell.id]
    await backend.discard(cell.id)
    assert cluster.objects == {}


@pytest.mark.promise("P108")
async def test_what_the_controller_was_refused_is_named_and_leaves_nothing(
    backend: KubernetesBackend, cluster: FakeCluster
):
    message = 'Pod "x" is invalid: spec.containers[1].image'
    cluster.script.refusal = (422, "Invalid", message)
    with pytest.raises(InvalidRequest, match='"x" is invalid'):
        await backend.create(new_sandbox_id(), SPEC)
    assert cluster.objects == {}


@pytest.mark.promise("P108")
async def test_without_a_controller_a_create_says_so_and_leaves_nothing(
    opened: Callable[..., KubernetesBackend], cluster: FakeCluster
):
    cluster.script.controller = False
    with pytest.raises(BackendUnavailable, match="made no Pod") as raised:
        await opened(start_s=0.2).create(new_sandbox_id(), SPEC)
    assert "agent_sandbox: never" in raised.value.hint
    assert cluster.objects == {}


async def test_a_create_whose_answer_is_lost_finds_what_it_made(
    backend: KubernetesBackend, cluster: FakeCluster
):
    cluster.script.lost_answers = 2
    cell = await backend.create(new_sandbox_id(), SPEC)
    await (await Channel.open(await cell.dial())).aclose()
    assert len(cluster.objects) == 3


async def test_an_id_that_exists_is_a_conflict_in_either_form(
    backend: KubernetesBackend, opened: Callable[..., KubernetesBackend], cluster: FakeCluster
):
    bare = await opened(agent_sandbox="never").create(new_sandbox_id(), SPEC)
    with pytest.raises(Conflict):
        await backend.create(bare.id, SPEC)
    assert kinds(cluster) == ["pods", "secrets"]
    await (await Channel.open(await bare.dial())).aclose()
    await bare.destroy()
    cell = await backend.create(new_sandbox_id(), SPEC)
    with pytest.raises(Conflict):
        await backend.create(cell.id, SPEC)
    await (await Channel.open(await cell.dial())).aclose()


async def test_a_sandbox_is_removed_with_its_object_after_agent_sandbox_is_switched_off(
    backend: KubernetesBackend, opened: Callable[..., KubernetesBackend], cluster: FakeCluster
):
    cell = await backend.create(new_sandbox_id(), SPEC)
    await (await cell.dial()).aclose()
    await opened(agent_sandbox="never").discard(cell.id)
    assert cluster.objects == {}


async def test_the_setting_decides_whether_sandbox_objects_are_used(
    opened: Callable[..., KubernetesBackend], cluster: FakeCluster, tmp_path: Path
):
    async def line(**changes: Any) -> Any:
        lines = (await opened(**changes).probe()).requirements
        return next(entry for entry in lines if entry.name == "agent-sandbox")

    assert "used: agents.x-k8s.io/v1beta1" in (await line()).state
    assert (await line(agent_sandbox="never")).state == "not used"
    (tmp_path / "plain").mkdir()
    async with FakeCluster(tmp_path / "plain") as plain:
        kubeconfig = plain.kubeconfig()
        assert (await opened(kubeconfig=kubeconfig).probe()).ready
        required = opened(kubeconfig=kubeconfig, agent_sandbox="require")
        assert not (await required.probe()).ready
        with pytest.raises(BackendUnavailable, match="not installed"):
            await required.create(new_sandbox_id(), SPEC)
        assert plain.objects == {}
