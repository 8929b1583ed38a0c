"""Remove the objects of a sandbox from the cluster, and none of another installation or create."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from sandkasten_kubernetes import agent_sandboxes, object_watch, pod_names, pod_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sandkasten_kubernetes.api.cluster_client import ClusterClient

# How long a removal is watched: half of the engine's DESTROY_TIMEOUT_S. After that time the engine
# would consider the whole cluster unreachable, though only one node does not answer. Such a
# node removes its Pods when it is back; one that has many to remove needs longer.
REMOVED_S: Final = 10.0
_GRACE_S: Final = 1


class ObjectRemoval:
    """`owner` returns the label of what is ours."""

    def __init__(
        self,
        client: ClusterClient,
        sandboxes: agent_sandboxes.AgentSandboxes,
        owner: Callable[[], Awaitable[str]],
    ) -> None:
        self._client = client
        self._sandboxes = sandboxes
        self._owner = owner

    async def remove(self, name: str, attempt: str | None = None) -> None:
        """Remove what has this name. Twice is fine.

        Wait until the Pod is gone, but not for long: a removal that the API server has accepted
        cannot be undone, and the cluster finishes it. One that it accepted before is not waited
        for.
        `attempt`: only what this create has made; another one may have used the name since.
        """
        until = asyncio.get_running_loop().time() + REMOVED_S
        pod = await self._client.find("pods", name)
        # First, because its controller replaces a Pod that is gone.
        if await self._sandboxes.used() or (pod and agent_sandboxes.has_sandbox(pod)):
            await self._delete(agent_sandboxes.KIND, name, attempt)
        if pod is not None and await self._may_remove(pod, attempt):
            await self._client.delete("pods", name, grace_s=_GRACE_S, uid=_uid(pod))
            if not pod_status.is_ending(pod):
                with contextlib.suppress(TimeoutError):
                    # An API server with many removals takes seconds for each request, too.
                    async with asyncio.timeout_at(until):
                        await self._gone(pod)
        # Last, so that what is left of a removal is found by it.
        await self._delete("secrets", name, attempt)

    async def is_mine(self, resource: Mapping[str, Any]) -> bool:
        """Return whether this installation has made the object."""
        labels = (resource.get("metadata") or {}).get("labels") or {}
        return labels.get(pod_names.LABEL_OWNER) == await self._owner()

    async def _may_remove(self, resource: Mapping[str, Any], attempt: str | None) -> bool:
        if not await self.is_mine(resource):
            return False
        return attempt is None or pod_names.attempt_of(resource) == attempt

    async def _delete(self, kind: str, name: str, attempt: str | None) -> None:
        resource = await self._client.find(kind, name)
        if resource is not None and await self._may_remove(resource, attempt):
            await self._client.delete(kind, name, uid=_uid(resource))

    async def _gone(self, pod: Mapping[str, Any]) -> None:
        following = object_watch.follow(self._client, "pods", pod)
        async with contextlib.aclosing(following):
            async for what, current in following:
                if what == "DELETED" or _uid(current) != _uid(pod):
                    return


def _uid(resource: Mapping[str, Any]) -> str:
    return str((resource.get("metadata") or {}).get("uid") or "")
