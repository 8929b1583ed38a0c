"""The verbs of the backend on an API server that is scripted, with real gates and runners.

`test_recorded_calls.py` has the answers of a real one; here is what those do not show.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    IsolationRefused,
    QuotaExceeded,
    SandboxLost,
)
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten_kubernetes import cell as cell_module
from sandkasten_kubernetes import (
    object_removal,
    object_watch,
    pod_manifest,
    pod_names,
    selftest,
)
from sandkasten_kubernetes.api import cluster_client
from sandkasten_kubernetes.kubernetes_options import KubernetesOptions
from sandkasten_runtime.engine.lifecycle.sandboxes import DESTROY_TIMEOUT_S
from sandkasten_runtime.wire.channel import Channel
from tests.kubernetes.fake_cluster import FakeCluster
from tests.loopback_port import free_port
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from sandkasten_kubernetes.backend import KubernetesBackend

# More than requests have connections.
MANY = 130
SPEC = CellSpec(image=Image("example.org/python:3.11", "engine"))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FakeCluster]:
    async with FakeCluster(tmp_path) as fake:
        yield fake


async def test_probe_names_what_it_needs(opened: Callable[..., KubernetesBackend]):
    assert (await opened().probe()).ready
    without = await opened(runner_image="").probe()
    assert not without.ready
    assert "runner_image" in without.remedy


async def test_a_look_at_a_sandbox_does_not_read_its_key(
    backend: KubernetesBackend, opened: Callable[..., KubernetesBackend], cluster: FakeCluster
):
    cell = await backend.create(new_sandbox_id(), SPEC)
    attached = await opened().attach(cell.id)
    assert (cluster.counts["get pods"], cluster.counts["get secrets"]) == (1, 0)
    for _ in range(2):
        await (await Channel.open(await attached.dial())).aclose()
    assert (cluster.counts["get pods"], cluster.counts["get secrets"]) == (1, 1)


@pytest.mark.parametrize("what", ["damaged", "gone"])
async def test_a_sandbox_whose_key_cannot_be_used_is_lost(
    backend: KubernetesBackend,
    opened: Callable[..., KubernetesBackend],
    cluster: FakeCluster,
    what: str,
):
    cell = await backend.create(new_sandbox_id(), SPEC)
    place = ("secrets", pod_names.pod_name(cell.id))
    if what == "gone":
        del cluster.objects[place]
    else:
        cluster.objects[place]["data"]["token"] = ""
    attached = await opened().attach(cell.id)
    with pytest.raises(SandboxLost, match=what):
        await attached.dial()


@pytest.mark.promise("P100")
@pytest.mark.parametrize("lost", [1, 2])
async def test_a_create_whose_answer_is_lost_finds_what_it_made(
    backend: KubernetesBackend, cluster: FakeCluster, lost: int
):
    cluster.script.lost_answers = lost
    cell = await backend.create(new_sandbox_id(), SPEC)
    await (await Channel.open(await cell.dial())).aclose()
    assert len(cluster.objects) == 2


@pytest.mark.promise("P100")
async def test_a_create_whose_answer_is_lost_finds_the_last_object_of_a_quota(
    backend: KubernetesBackend, cluster: FakeCluster
):
    cluster.script.lost_answers = 2
    cluster.script.quota = {"secrets": 1, "pods": 1}
    cell = await backend.create(new_sandbox_id(), SPEC)
    await (await Channel.open(await cell.dial())).aclose()
    with pytest.raises(QuotaExceeded):
        await backend.create(new_sandbox_id(), SPEC)
    assert len(cluster.objects) == 2


async def test_a_watch_that_is_cut_off_goes_on_from_a_fresh_state(
    backend: KubernetesBackend, cluster: FakeCluster
):
    cluster.script.status = {"phase": "Pending"}
    sandbox_id = new_sandbox_id()
    body = pod_manifest.pod(sandbox_id, SPEC, KubernetesOptions(), await backend._whose(), "a")
    pod = await backend._client.create("pods", body)
    cluster.script.cut_watches = 3
    async with asyncio.timeout(PATIENCE_S):
        following = object_watch.follow(backend._client, "pods", pod)
        async with contextlib.aclosing(following):
            assert (await anext(following))[0] == "FOUND"
            assert (await anext(following))[0] == "MODIFIED"
            cluster.show(pod_names.pod_name(sandbox_id), phase="Running")
            async for _, pod in following:
                if pod["status"]["phase"] == "Running":
                    break


async def test_a_watch_that_says_nothing_more_goes_on_from_a_fresh_state(
    backend: KubernetesBackend, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cluster_client, "_SILENT_S", 0.1)
    cluster.script.status = {"phase": "Pending"}
    body = pod_manifest.pod(new_sandbox_id(), SPEC, KubernetesOptions(), "o", "a")
    pod = await backend._client.create("pods", body)
    async with asyncio.timeout(PATIENCE_S):
        async with contextlib.aclosing(object_watch.follow(backend._client, "pods", pod)) as events:
            assert (await anext(events))[0] == "FOUND"
            # The connection is open, and its other end is gone.
            assert (await anext(events))[0] == "MODIFIED"


async def test_a_pod_that_is_reached_in_no_way_is_busy(
    opened: Callable[..., KubernetesBackend],
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(cell_module, "_DIRECT_S", 0.1)
    monkeypatch.setattr(cell_module, "_START_S", 0.1)
    both: list[Any] = [{"name": name, "state": {"running": {}}} for name in ("gate", "sandbox")]
    cluster.script.status = {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": both}
    # Nothing listens at the port, and this API server refuses streams.
    with pytest.raises(Busy, match="does not answer"):
        await opened(reach="auto").create(new_sandbox_id(), SPEC)
    assert cluster.objects == {}


async def test_one_gate_that_was_slow_does_not_close_the_direct_way_for_good(
    opened: Callable[..., KubernetesBackend],
):
    backend = opened(reach="auto")
    # As after such a gate. This API server refuses streams.
    backend._ways.direct = False
    cell = await backend.create(new_sandbox_id(), SPEC)
    assert backend._ways.direct is True
    await (await Channel.open(await cell.dial())).aclose()


async def test_the_list_of_our_objects_is_metadata_only_and_read_in_pages(
    backend: KubernetesBackend, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cluster_client, "_PAGE", 2)
    cluster.script.status = {"phase": "Failed", "message": "long " * 1000}
    ids = [new_sandbox_id() for _ in range(5)]
    for the_id in ids:
        body = pod_manifest.pod(the_id, SPEC, KubernetesOptions(), await backend._whose(), "a")
        await backend._client.create("pods", body)
    assert list(await backend.owned()) == sorted(ids)
    assert cluster.counts["list pods"] == 3
    # Spec and status are most of a Pod, and nothing of them is needed.
    assert cluster.counts["list pods bytes"] < 5 * 1000


async def test_a_pod_that_no_node_takes_is_busy(
    opened: Callable[..., KubernetesBackend], cluster: FakeCluster
):
    unschedulable = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes"}
    cluster.script.status = {"phase": "Pending", "conditions": [unschedulable]}
    with pytest.raises(Busy, match="0/2 nodes"):
        await opened(start_s=0.2).create(new_sandbox_id(), SPEC)
    assert cluster.objects == {}


@pytest.mark.promise("P100")
async def test_a_pod_that_was_evicted_is_lost(backend: KubernetesBackend, cluster: FakeCluster):
    cell = await backend.create(new_sandbox_id(), SPEC)
    await (await cell.dial()).aclose()
    name = pod_names.pod_name(cell.id)
    cluster.kill(name)
    cluster.show(name, phase="Failed", reason="Evicted", message="low on memory")
    with pytest.raises(SandboxLost, match="evicted it: low on memory"):
        await cell.dial()
    with pytest.raises(SandboxLost, match="evicted"):
        await backend.attach(cell.id)
    # It is never replaced, and still ours to remove.
    assert list(await backend.owned()) == [cell.id]
    await backend.discard(cell.id)
    assert cluster.objects == {}


@pytest.mark.promise("P100")
@pytest.mark.parametrize("by", ["dial", "attach"])
async def test_an_eviction_that_is_reported_after_the_end_of_its_containers_has_its_reason(
    backend: KubernetesBackend, cluster: FakeCluster, by: str
):
    cell = await backend.create(new_sandbox_id(), SPEC)
    await (await cell.dial()).aclose()
    name = pod_names.pod_name(cell.id)
    watched = cluster.counts["watch pods"]
    cluster.kill(name)
    ended = {"name": "sandbox", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    cluster.show(name, containerStatuses=[ended])
    asking = asyncio.ensure_future(cell.dial() if by == "dial" else backend.attach(cell.id))
    async with asyncio.timeout(PATIENCE_S):
        while cluster.counts["watch pods"] == watched and not asking.done():
            await asyncio.wait([asking], timeout=0.01)
        full = 'Usage of EmptyDir volume "workspace" exceeds the limit "16Mi".'
        cluster.show(name, phase="Failed", reason="Evicted", message=full)
        with pytest.raises(SandboxLost, match='evicted it: Usage of EmptyDir volume "workspace"'):
            await asking
    await backend.discard(cell.id)


@pytest.mark.promise("P100")
async def test_sandboxes_live_on_while_the_api_server_is_away(
    backend: KubernetesBackend, cluster: FakeCluster
):
    cell = await backend.create(new_sandbox_id(), SPEC)
    await (await cell.dial()).aclose()
    cluster.script.away = True
    channel = await Channel.open(await cell.dial())
    assert await channel.call("ping", timeout_s=PATIENCE_S) == {}
    await channel.aclose()
    for operation in (
        backend.create(new_sandbox_id(), SPEC),
        backend.attach(cell.id),
        backend.owned(),
    ):
        with pytest.raises(BackendUnavailable) as raised:
            await operation
        assert raised.value.hint
        assert raised.value.details["backend"] == "kubernetes"
    assert not (await backend.probe()).ready
    cluster.script.away = False
    assert list(await backend.owned()) == [cell.id]


@dataclass(slots=True)
class HeldAnswers:
    """A Pace that answers the first create of a Secret only when it is told to."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    told: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, verb: str, kind: str, items: int) -> None:
        if (verb, kind) == ("create", "secrets") and not self.asked.is_set():
            self.asked.set()
            await self.told.wait()


async def test_a_create_that_is_cancelled_while_its_secret_is_made_leaves_nothing(
    backend: KubernetesBackend, cluster: FakeCluster
):
    cluster.pace = pace = HeldAnswers()
    creating = asyncio.ensure_future(backend.create(new_sandbox_id(), SPEC))
    async with asyncio.timeout(PATIENCE_S):
        await pace.asked.wait()
        creating.cancel()
        asyncio.get_running_loop().call_soon(pace.told.set)
        with pytest.raises(asyncio.CancelledError):
            await creating
    assert cluster.objects == {}


@pytest.mark.promise("P100")
async def test_a_create_that_is_cancelled_leaves_what_another_one_made_with_its_id(
    opened: Callable[..., KubernetesBackend], cluster: FakeCluster
):
    sandbox_id, other = new_sandbox_id(), opened()
    cluster.pace = pace = HeldAnswers()
    creating = asyncio.ensure_future(opened().create(sandbox_id, SPEC))
    async with asyncio.timeout(PATIENCE_S):
        await pace.asked.wait()
        # Another replica takes it for what a dead process left, and makes it again.
        await other.discard(sandbox_id)
        cell = await other.create(sandbox_id, SPEC)
        creating.cancel()
        asyncio.get_running_loop().call_soon(pace.told.set)
        with pytest.raises(asyncio.CancelledError):
            await creating
    assert len(cluster.objects) == 2
    await (await Channel.open(await cell.dial())).aclose()


async def test_pods_that_are_being_started_keep_no_request_waiting(
    opened: Callable[..., KubernetesBackend], cluster: FakeCluster
):
    backend = opened(timeout_s=PATIENCE_S / 4)
    cluster.script.status = {"phase": "Pending"}
    # Each is watched over a connection of its own.
    starting = [asyncio.ensure_future(backend.create(new_sandbox_id(), SPEC)) for _ in range(MANY)]
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len(await backend.owned()) < MANY:
                pass
    finally:
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
    assert cluster.objects == {}


@pytest.mark.promise("P100")
async def test_a_sandbox_on_a_node_that_is_away_is_removed_when_the_cluster_has_accepted_it(
    backend: KubernetesBackend, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    cell = await backend.create(new_sandbox_id(), SPEC)
    cluster.script.node_away = True
    # The engine does not wait longer, and takes a cluster that is late for one that is away.
    assert object_removal.REMOVED_S <= DESTROY_TIMEOUT_S / 2
    with monkeypatch.context() as soon:
        soon.setattr(object_removal, "REMOVED_S", 0.1)
        await cell.destroy()
    assert list(cluster.objects) == [("pods", pod_names.pod_name(cell.id))]
    assert list(await backend.owned()) == []
    # What is being removed is not waited for a second time.
    monkeypatch.setattr(object_removal, "REMOVED_S", 10 * PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        await backend.discard(cell.id)


@pytest.mark.promise("P100")
async def test_what_a_killed_process_tried_out_is_removed_with_the_sandbox_it_was_for(
    opened: Callable[..., KubernetesBackend],
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
):
    backend, other = opened(), opened()
    backend._tried.clear()
    trying = asyncio.Event()

    async def examine(*_: object) -> None:
        trying.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(selftest, "examine", examine)
    sandbox_id = new_sandbox_id()
    making = asyncio.create_task(backend.create(sandbox_id, SPEC))
    await trying.wait()
    # From now on, `backend` is as a process that is dead: `other` has to find all of it.
    assert list(await other.owned()) == [sandbox_id]
    with pytest.raises(SandboxLost):
        await other.attach(sandbox_id)
    await other.discard(sandbox_id)
    assert cluster.objects == {}
    making.cancel()
    await asyncio.wait([making])


@pytest.mark.promise("P100")
async def test_creates_that_wait_for_a_trial_share_its_failure(
    opened: Callable[..., KubernetesBackend],
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
):
    backend = opened(network_policy="assumed")
    backend._tried.clear()
    images: list[str] = []

    async def examine(*_: object) -> None:
        images.extend(
            container["image"]
            for (kind, _), resource in cluster.objects.items()
            if kind == "pods"
            for container in resource["spec"]["containers"]
        )
        if len(images) == 2:
            raise IsolationRefused("too open", hint="close it")

    monkeypatch.setattr(selftest, "examine", examine)
    creates = [backend.create(new_sandbox_id(), SPEC) for _ in range(3)]
    for error in await asyncio.gather(*creates, return_exceptions=True):
        assert isinstance(error, IsolationRefused)
        assert (error.message, error.hint) == ("too open", "close it")
    # One trial, without the image of a caller, which a node may have to pull.
    assert images == ["r", "r"]
    assert cluster.objects == {}
    await backend.create(new_sandbox_id(), SPEC)
    assert images == ["r"] * 4


async def test_a_create_has_time_for_each_pod_that_it_may_start(
    opened: Callable[..., KubernetesBackend],
):
    checked = opened(start_s=100.0).capabilities.create_timeout_s
    assumed = opened(start_s=100.0, network_policy="assumed").capabilities.create_timeout_s
    assert (assumed, checked) == (260.0, 360.0)


@pytest.mark.promise("P119")
async def test_an_error_of_a_cluster_that_is_away_has_its_reason_and_doctor_its_address(
    cluster: FakeCluster, opened: Callable[..., KubernetesBackend]
):
    cluster.url = f"http://127.0.0.1:{free_port()}"
    backend = opened(kubeconfig=cluster.kubeconfig())
    with pytest.raises(BackendUnavailable, match="API server of the cluster does not") as caught:
        await backend.owned()
    assert "Connect call failed" in caught.value.message
    assert "kubeconfig" in caught.value.hint
    assert "127.0.0.1" not in f"{caught.value} {caught.value.details}"
    assert cluster.url in caught.value.operator_message
    assert cluster.url in (await backend.probe()).reason
