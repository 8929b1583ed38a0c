"""Named workspaces in the cluster: made, found again, copied, enlarged and removed.

Implements the verbs of `ports.KeepsWorkspaces` and `MaintainsWorkspaces`. The record of a workspace
is the engine's; it is written before anything is made here, and a claim that exists is used as it
is: another process made it, and was perhaps killed. The daemon touches no file: our Pods, which
have the volume and nothing else, copy and erase. Such a Pod is removed last, so it marks work that
was interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Any, Final

from sandkasten.disk.cleanup import finish
from sandkasten.errors import BackendUnavailable, Conflict, SandkastenError
from sandkasten.model.sandbox.workspace import plain_name
from sandkasten_kubernetes import (
    object_creation,
    object_watch,
    pod_names,
    pod_status,
    refusals,
    workspace_manifest,
)
from sandkasten_kubernetes.api.cluster_client import ApiRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from sandkasten_kubernetes.api.cluster_client import ClusterClient
    from sandkasten_kubernetes.kubernetes_options import (
        KubernetesOptions,
    )

CLAIMS: Final = "persistentvolumeclaims"
NEEDED: Final = (
    *((verb, CLAIMS, "") for verb in ("create", "get", "watch", "patch", "delete")),
    ("list", "events", ""),
)
_WAITING: Final = ("WaitForFirstConsumer", "WaitForPodScheduled")
_REMOVED_S: Final = 20.0
_ATTEMPT_BYTES: Final = 8
_SAID_CHARS: Final = 300


class KeptClaims:
    """`whose` returns the owner label of this installation."""

    def __init__(
        self,
        client: ClusterClient,
        options: KubernetesOptions,
        whose: Callable[[], Awaitable[str]],
    ) -> None:
        self._client = client
        self._options = options
        self._whose = whose

    @property
    def options(self) -> KubernetesOptions:
        """Raise UnsupportedByBackend if the operator keeps no workspaces."""
        if not self._options.keeps_workspaces:
            raise refusals.workspaces()
        return self._options

    @property
    def needed(self) -> tuple[tuple[str, str, str], ...]:
        """Return the rights that named workspaces need besides those of every sandbox."""
        options = self._options
        return NEEDED if options.keeps_workspaces and not options.workspace_claim else ()

    # ---- for a sandbox

    async def prepare(self, workspace: str, size_bytes: int) -> None:
        """Make the claim of a workspace unless it exists, before a Pod uses it. Raise Busy if
        something may still write to it that is not a sandbox of a living record.
        """
        try:
            await self._end_users(workspace)
            if not self.options.workspace_claim:
                await self._make(workspace, size_bytes)
        except ApiRefused as exc:
            raise refusals.unmade_claim(workspace, exc) from exc

    async def trouble(self, workspace: str, pod: Mapping[str, Any]) -> SandkastenError | None:
        """Return why a Pod with this workspace has not started, if its volume is the reason."""
        owner = await self._whose()
        with contextlib.suppress(ApiRefused, SandkastenError):
            if not self.options.workspace_claim:
                name = pod_names.workspace_key(owner, workspace)
                claim = await self._client.get(CLAIMS, name)
                if not _bound(claim):
                    reason = why_unbound(await self._client.events(name))
                    if reason is None:
                        return None
                    return refusals.no_volume(workspace, await self._client.namespace(), reason)
            elif reason := pod_status.missing_claim(pod):
                return refusals.no_claim(workspace, self.options.workspace_claim, reason)
            scheduled = pod_status.condition(pod, "PodScheduled") or {}
            if scheduled.get("status") == "True":
                events = await self._client.events(str(pod["metadata"]["name"]))
                mounting = [
                    event for event in events if "Volume" in event[0] or "Mount" in event[0]
                ]
                if mounting:
                    return refusals.not_mounted(workspace, _newest(mounting))
        return None

    async def release(self, workspace: str) -> None:
        """Remove a claim that no volume was found for, after a create that failed: it has no files,
        and other settings may help the next one.
        """
        if self.options.workspace_claim:
            return
        name = pod_names.workspace_key(await self._whose(), workspace)
        with contextlib.suppress(ApiRefused, SandkastenError):
            claim = await self._client.get(CLAIMS, name)
            if not _bound(claim) and await self._is_mine(claim):
                # Refused by the server if it has changed, such as by a volume that was found.
                version = str(claim["metadata"]["resourceVersion"])
                await self._client.delete(CLAIMS, name, version=version)

    async def _make(self, workspace: str, size: int | str) -> None:
        owner = await self._whose()
        name = pod_names.workspace_key(owner, workspace)
        claim = await self._client.find(CLAIMS, name)
        if claim is None:
            attempt = secrets.token_hex(_ATTEMPT_BYTES)
            body = workspace_manifest.claim(owner, workspace, size, self.options, attempt)
            try:
                claim = await object_creation.create_once(self._client, CLAIMS, body)
            except ApiRefused as exc:
                if not exc.exists:
                    raise
                claim = await self._client.get(CLAIMS, name)
        if not await self._is_mine(claim):
            namespace = await self._client.namespace()
            raise Conflict(
                f"namespace {namespace} has a claim {name} that this installation did not make",
                hint=f"if its files are not needed: kubectl -n {namespace} delete pvc {name}",
            )
        if pod_status.is_ending(claim):
            raise refusals.still_removed(workspace, await self._client.namespace(), name)

    async def _end_users(self, workspace: str) -> None:
        """End what an interrupted copy or removal left, and wait for Pods that are being removed: a
        node that does not answer may still run them.
        """
        selector = pod_names.user_selector(await self._whose(), workspace)
        for user in await self._client.list("pods", selector):
            if _kind(user) == pod_names.TASK:
                await self._client.delete("pods", user["metadata"]["name"])
            elif not pod_status.is_ending(user):
                continue
            if not await self._is_gone("pods", user):
                pod = str(user["metadata"]["name"])
                raise refusals.still_used(workspace, await self._client.namespace(), pod)

    # ---- for the engine; the caller holds the lock of the name

    async def copy(self, source: str, target: str) -> None:
        """Copy all files, or raise and leave no target. The Pod that did it is left: it is removed
        by `clear`, when the copy is recorded.
        """
        try:
            await self._copy(source, target)
        except ApiRefused as exc:
            await finish(self._removed_quietly(target))
            raise refusals.unmade_claim(target, exc) from exc
        except BaseException:
            await finish(self._removed_quietly(target))
            raise

    async def _copy(self, source: str, target: str) -> None:
        owner = await self._whose()
        await self._remove(target)
        if not self.options.workspace_claim:
            name = pod_names.workspace_key(owner, source)
            claim = await self._client.find(CLAIMS, name)
            if claim is None:
                # It has never been used.
                return
            size = claim["spec"]["resources"]["requests"]["storage"]
        # First, so that it marks what follows.
        task = workspace_manifest.copy_task(owner, source, target, self._options)
        pod = await object_creation.create_once(self._client, "pods", task)
        if not self.options.workspace_claim:
            await self._make(target, size)
        await self._done(target, pod)

    async def resize(self, workspace: str, size_bytes: int) -> None:
        """Ask for a larger volume, if the workspace has one of its own."""
        if self.options.workspace_claim:
            return
        name = pod_names.workspace_key(await self._whose(), workspace)
        body = {"spec": {"resources": {"requests": {"storage": str(size_bytes)}}}}
        try:
            await self._client.change(CLAIMS, name, body)
        except ApiRefused as exc:
            if not exc.not_there:
                raise refusals.not_enlarged(workspace, exc) from exc

    async def remove(self, workspace: str) -> None:
        """Remove all files. Twice is fine. Raise Busy if a Pod still uses them."""
        try:
            await self._remove(workspace)
        except ApiRefused as exc:
            what = f"workspace {plain_name(workspace)} could not be removed"
            raise refusals.translated(exc, what) from exc

    async def _remove(self, workspace: str) -> None:
        owner = await self._whose()
        await self._end_users(workspace)
        if self.options.workspace_claim:
            task = workspace_manifest.erase_task(owner, workspace, self._options)
            pod = await object_creation.create_once(self._client, "pods", task)
            try:
                await self._done(workspace, pod)
            finally:
                await finish(self._end_task(pod))
            return
        name = pod_names.workspace_key(owner, workspace)
        claim = await self._client.find(CLAIMS, name)
        if claim is None or not await self._is_mine(claim):
            return
        await self._client.delete(CLAIMS, name)
        if not await self._is_gone(CLAIMS, claim):
            raise refusals.still_removed(workspace, await self._client.namespace(), name)

    async def exists(self, workspace: str) -> bool:
        """Return whether there is a claim of its own for the workspace."""
        if self.options.workspace_claim:
            return False
        name = pod_names.workspace_key(await self._whose(), workspace)
        try:
            return await self._client.find(CLAIMS, name) is not None
        except ApiRefused as exc:
            raise refusals.translated(exc, "our claims cannot be looked at") from exc

    async def interrupted(self) -> Sequence[str]:
        """Return the workspaces that a copy or a removal may have left incomplete."""
        if not self._options.keeps_workspaces:
            return ()
        try:
            pods = await self._client.list("pods", pod_names.task_selector(await self._whose()))
        except ApiRefused as exc:
            raise refusals.translated(exc, "our Pods cannot be listed") from exc
        names = (((pod["metadata"].get("annotations")) or {}).get(pod_names.NAME) for pod in pods)
        return sorted({name for name in names if isinstance(name, str)})

    async def clear(self, workspace: str, *, recorded: bool) -> None:
        """Remove what interrupted work left: all files of a workspace that is not recorded."""
        owner = await self._whose()
        selector = pod_names.user_selector(owner, workspace)
        try:
            users = await self._client.list("pods", selector)
            tasks = [task for task in users if _kind(task) == pod_names.TASK]
            if not tasks:
                return
            if not recorded:
                copies = workspace_manifest.task_name(owner, workspace, workspace_manifest.COPY)
                if any(task["metadata"]["name"] == copies for task in tasks):
                    await self._remove(workspace)
                    return
            for task in tasks:
                await self._end_task(task)
        except ApiRefused as exc:
            what = f"workspace {plain_name(workspace)} could not be cleared"
            raise refusals.translated(exc, what) from exc

    # ---- Our Pods

    async def _done(self, workspace: str, pod: Mapping[str, Any]) -> None:
        """Wait until a task has ended well. Raise why it has not."""
        following = object_watch.follow(self._client, "pods", pod)
        name = plain_name(workspace)
        async with contextlib.aclosing(following):
            try:
                async with asyncio.timeout(self._options.start_s) as starting:
                    async for what, pod in following:
                        if what == "DELETED":
                            raise BackendUnavailable(
                                f"the Pod that worked on workspace {name} was removed",
                                hint="try again",
                            )
                        phase = (pod.get("status") or {}).get("phase")
                        if phase == "Succeeded":
                            return
                        if phase == "Failed":
                            raise refusals.failed_task(workspace, pod_status.words(pod))
                        if phase == "Running":
                            starting.reschedule(None)
            except TimeoutError as exc:
                trouble = await self.trouble(workspace, pod)
                if trouble is None:
                    what = f"the Pod that works on workspace {name}"
                    trouble = pod_status.overdue_task(what, pod, self._options.start_s)
                raise trouble from exc

    async def _end_task(self, pod: Mapping[str, Any]) -> None:
        await self._client.delete("pods", str(pod["metadata"]["name"]))
        await self._is_gone("pods", pod)

    async def _removed_quietly(self, workspace: str) -> None:
        with contextlib.suppress(ApiRefused, SandkastenError):
            await self._remove(workspace)

    # ---- objects

    async def _is_gone(self, kind: str, resource: Mapping[str, Any]) -> bool:
        """Wait until an object that is being removed is gone; return False after a while."""
        following = object_watch.follow(self._client, kind, resource)
        uid = (resource.get("metadata") or {}).get("uid")
        try:
            async with asyncio.timeout(_REMOVED_S), contextlib.aclosing(following):
                async for what, current in following:
                    if what == "DELETED" or (current.get("metadata") or {}).get("uid") != uid:
                        return True
        except TimeoutError:
            return False
        return True

    async def _is_mine(self, resource: Mapping[str, Any]) -> bool:
        labels = (resource.get("metadata") or {}).get("labels") or {}
        return labels.get(pod_names.LABEL_OWNER) == await self._whose()


def _bound(claim: Mapping[str, Any]) -> bool:
    return (claim.get("status") or {}).get("phase") == "Bound"


def _kind(resource: Mapping[str, Any]) -> object:
    return ((resource.get("metadata") or {}).get("labels") or {}).get(pod_names.LABEL)


def why_unbound(events: Sequence[tuple[str, str]]) -> str | None:
    """Return what a cluster reports about a claim without a volume; None if the claim only waits
    for its Pod to be placed.
    """
    failed = [event for event in events if event[0] not in _WAITING]
    return None if events and not failed else _newest(failed)


def _newest(events: Sequence[tuple[str, str]]) -> str:
    return " ".join(events[-1][1].split())[:_SAID_CHARS] if events else ""
