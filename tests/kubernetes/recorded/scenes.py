"""What the backend does with an API server, and what it makes of the answers.

The same scenes are played on a real cluster, where their calls are recorded, and on the recording.
`Outside` is what other clients and the cluster do meanwhile. Each scene leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from sandkasten.errors import (
    BackendUnavailable,
    Busy,
    Conflict,
    ImageNotFound,
    InvalidRequest,
    PayloadTooLarge,
    QuotaExceeded,
    RegistryUnavailable,
    SandboxLost,
)
from sandkasten.model.ids import SandboxId
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.limits import MIB, Limits
from sandkasten_kubernetes import (
    object_watch,
    pod_manifest,
    pod_names,
    pod_network,
    pod_status,
)
from sandkasten_kubernetes.backend import KubernetesBackend
from sandkasten_runtime.assembly.backend_registry import read_nested
from sandkasten_runtime.wire.channel import Channel
from tests.kubernetes import cluster_images
from tests.kubernetes.recorded import local_server
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from pathlib import Path

    from sandkasten_kubernetes.cell import KubernetesCell

    Scene = Callable[["Stage"], Awaitable[None]]

NAMESPACE = "recorded"
DAEMON, STRANGER, UNKNOWN = "daemon", "stranger", "unknown"
"""Tokens: of a client with every right, of one without any, and of nobody."""
ID = SandboxId("sbx_0123456789abcdef")
NAME = pod_names.pod_name(ID)
IMAGE = Image(cluster_images.reference("busybox"), "engine")
SPEC = CellSpec(image=IMAGE, limits=Limits(memory_bytes=64 * MIB))
# More than any node has, also divided by `overcommit`.
HUGE = replace(SPEC, limits=Limits(memory_bytes=1 << 58))


class Outside(Protocol):
    async def fill_quota(self) -> None:
        """Give the namespace a quota without room for a Pod, until the end of the scene."""
        ...

    async def delete_pod(self, name: str) -> None: ...

    async def forget_history(self) -> None:
        """Restart the API server: it has no events from before."""
        ...

    async def cause_bookmark(self) -> None:
        """Change another Pod. Watches of this scene ask for bookmarks then, and end soon."""
        ...


@dataclass(slots=True)
class Stage:
    url: str
    place: Path
    port: int
    outside: Outside
    _opened: list[KubernetesBackend] = field(default_factory=list)

    def backend(self, who: str = DAEMON, **changes: Any) -> KubernetesBackend:
        """Open a backend, as a process of its own would."""
        config = local_server.kubeconfig(self.place / f"{who}.json", self.url, who, NAMESPACE)
        usual: dict[str, Any] = {"installation": "recorded", "port": self.port}
        options = replace(cluster_images.options(config), **{**usual, **changes})
        made = KubernetesBackend(self.place, options, read_nested)
        # The self-test runs commands in Pods, which a recording does not have.
        made._tried.add(pod_network.CLOSED)
        self._opened.append(made)
        return made

    async def aclose(self) -> None:
        for one in self._opened:
            await one.aclose()


async def _ping(cell: KubernetesCell) -> None:
    channel = await Channel.open(await cell.dial())
    try:
        assert await channel.call("ping", timeout_s=PATIENCE_S) == {}
    finally:
        await channel.aclose()


async def _refused(
    backend: KubernetesBackend, error: type[Exception], about: str, spec: CellSpec = SPEC
) -> None:
    """Check the error of a create, and that nothing is left of it."""
    with pytest.raises(error, match=about) as raised:
        await backend.create(ID, spec)
    assert raised.type is error
    assert raised.value.hint  # type: ignore[attr-defined]
    assert list(await backend.owned()) == []


async def a_sandbox_from_create_to_destroy(stage: Stage) -> None:
    backend, other = stage.backend(), stage.backend()
    assert (await backend.probe()).ready
    cell = await backend.create(ID, SPEC)
    await _ping(cell)
    assert list(await backend.owned()) == [ID]
    with pytest.raises(Conflict):
        await other.create(ID, SPEC)
    await _ping(await other.attach(ID))
    await cell.destroy()
    assert list(await backend.owned()) == []
    with pytest.raises(SandboxLost):
        await cell.dial()
    with pytest.raises(SandboxLost):
        await other.attach(ID)
    await cell.destroy()


async def another_installation_has_no_part_in_a_sandbox(stage: Stage) -> None:
    cell = await stage.backend().create(ID, SPEC)
    stranger = stage.backend(installation="others")
    assert list(await stranger.owned()) == []
    with pytest.raises(SandboxLost, match="another installation"):
        await stranger.attach(ID)
    await stranger.discard(ID)
    await _ping(cell)
    await cell.destroy()


async def a_pod_that_another_client_deletes_is_lost(stage: Stage) -> None:
    backend = stage.backend()
    cell = await backend.create(ID, SPEC)
    await (await cell.dial()).aclose()
    await stage.outside.delete_pod(NAME)
    with pytest.raises(SandboxLost, match="its Pod is gone"):
        await cell.check_alive()
    with pytest.raises(SandboxLost):
        await backend.attach(ID)
    # Its Secret is how it is found.
    assert list(await backend.owned()) == [ID]
    await backend.discard(ID)
    assert list(await backend.owned()) == []


async def an_image_that_no_node_has_is_named(stage: Stage) -> None:
    absent = Image("localhost/sandkasten/absent:1", "engine")
    about = "does not have image localhost/sandkasten/absent:1"
    await _refused(stage.backend(), ImageNotFound, about, replace(SPEC, image=absent))


async def a_registry_that_does_not_answer_is_named(stage: Stage) -> None:
    away = Image("localhost:1/away:1", "engine")
    backend = stage.backend(pull_policy="IfNotPresent")
    await _refused(backend, RegistryUnavailable, "localhost:1/away:1", replace(SPEC, image=away))


async def a_name_that_no_image_can_have_is_the_callers_matter(stage: Stage) -> None:
    spec = replace(SPEC, image=Image(" ", "engine"))
    await _refused(stage.backend(), InvalidRequest, "image", spec)


async def an_environment_that_the_cluster_cannot_store_is_the_callers_matter(stage: Stage) -> None:
    # Too large for etcd, for a message to etcd, and for a request.
    for size, about in ((1600 << 10, "too large"), (2 << 20, "than max"), (4 << 20, "too large")):
        spec = replace(SPEC, env={"LONG": "x" * size})
        await _refused(stage.backend(), PayloadTooLarge, about, spec)


async def a_full_quota_is_named(stage: Stage) -> None:
    await stage.outside.fill_quota()
    await _refused(stage.backend(), QuotaExceeded, "exceeded quota: boxes")


async def a_namespace_that_does_not_exist_is_named(stage: Stage) -> None:
    with pytest.raises(BackendUnavailable, match='"absent" not found') as raised:
        await stage.backend(namespace="absent").create(ID, SPEC)
    assert raised.value.hint == "check backends.kubernetes.namespace"


async def an_account_without_rights_is_told_which_ones_are_missing(stage: Stage) -> None:
    backend = stage.backend(STRANGER)
    readiness = await backend.probe()
    assert not readiness.ready
    assert "missing: create pods, get pods" in readiness.reason
    for asked in (backend.create(ID, SPEC), backend.attach(ID), backend.owned()):
        with pytest.raises(BackendUnavailable, match="cannot .* resource") as raised:
            await asked
        assert "Role" in raised.value.hint


async def a_token_that_is_not_valid_is_an_error_of_the_credentials(stage: Stage) -> None:
    with pytest.raises(BackendUnavailable, match="credentials"):
        await stage.backend(UNKNOWN).owned()


async def a_pod_without_room_is_watched_until_it_is_deleted(stage: Stage) -> None:
    async with _pending(stage) as (pod, following):
        bookmarked = False
        async for what, pod in following:
            scheduled = pod_status.condition(pod, "PodScheduled") or {}
            if scheduled.get("status") == "False":
                assert isinstance(found := pod_status.overdue(ID, pod, 1), Busy)
                assert "Insufficient memory" in found.message
            bookmarked = bookmarked or what == "BOOKMARK"
            if what != "BOOKMARK" and bookmarked:
                # The server has ended the watch, and the backend has looked again.
                assert what == "MODIFIED"
                break
            if not bookmarked:
                await stage.outside.cause_bookmark()
        await stage.outside.delete_pod(NAME)
        async for what, _ in following:
            if what == "DELETED":
                break


async def a_watch_from_a_version_that_is_too_old_goes_on_from_a_fresh_state(stage: Stage) -> None:
    async with _pending(stage, version="1") as (made, following):
        await stage.outside.forget_history()
        seen = [await anext(following) for _ in range(3)]
        # The third is what the next watch begins with.
        assert [what for what, _ in seen] == ["FOUND", "MODIFIED", "ADDED"]
        assert {pod["metadata"]["uid"] for _, pod in seen} == {made["metadata"]["uid"]}
        await stage.outside.delete_pod(NAME)
        async for what, _ in following:
            if what == "DELETED":
                break


@contextlib.asynccontextmanager
async def _pending(
    stage: Stage, version: str = ""
) -> AsyncGenerator[
    tuple[Mapping[str, Any], AsyncGenerator[tuple[str, Mapping[str, Any]], None]], None
]:
    """Make a Pod that no node takes, and follow it."""
    backend = stage.backend()
    manifest = pod_manifest.pod(ID, HUGE, backend._options, await backend._whose(), "attempt")
    pod = await backend._client.create("pods", manifest)
    if version:
        pod = {**pod, "metadata": {**pod["metadata"], "resourceVersion": version}}
    async with asyncio.timeout(PATIENCE_S):
        async with contextlib.aclosing(
            object_watch.follow(backend._client, "pods", pod)
        ) as following:
            yield pod, following


async def a_sandbox_object_from_create_to_destroy(stage: Stage) -> None:
    backend, other = (stage.backend(agent_sandbox="require") for _ in range(2))
    cell = await backend.create(ID, SPEC)
    await _ping(cell)
    assert list(await backend.owned()) == [ID]
    with pytest.raises(Conflict):
        await other.create(ID, SPEC)
    await _ping(await other.attach(ID))
    await cell.destroy()


async def a_quota_that_is_full_for_the_controller_is_named(stage: Stage) -> None:
    await stage.outside.fill_quota()
    backend = stage.backend(agent_sandbox="require")
    with pytest.raises(QuotaExceeded, match="exceeded quota: boxes"):
        await backend.create(ID, SPEC)


SCENES: tuple[Scene, ...] = (
    a_sandbox_from_create_to_destroy,
    another_installation_has_no_part_in_a_sandbox,
    a_pod_that_another_client_deletes_is_lost,
    an_image_that_no_node_has_is_named,
    a_registry_that_does_not_answer_is_named,
    a_name_that_no_image_can_have_is_the_callers_matter,
    an_environment_that_the_cluster_cannot_store_is_the_callers_matter,
    a_full_quota_is_named,
    a_namespace_that_does_not_exist_is_named,
    an_account_without_rights_is_told_which_ones_are_missing,
    a_token_that_is_not_valid_is_an_error_of_the_credentials,
    a_pod_without_room_is_watched_until_it_is_deleted,
    a_watch_from_a_version_that_is_too_old_goes_on_from_a_fresh_state,
)
AGENT_SANDBOX_SCENES: tuple[Scene, ...] = (
    a_sandbox_object_from_create_to_destroy,
    a_quota_that_is_full_for_the_controller_is_named,
)
