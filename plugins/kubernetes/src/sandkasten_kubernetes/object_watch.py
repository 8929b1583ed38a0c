"""Follow one object of the cluster until its reader has seen enough."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import BackendUnavailable, SandkastenError
from sandkasten_kubernetes import pod_status, refusals
from sandkasten_kubernetes.api.cluster_client import ApiRefused

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from sandkasten_kubernetes.api.cluster_client import ClusterClient

# A server, or something before it, may cut every watch off at once.
_PAUSE_S: Final = 0.2
# A kubelet looks at its containers once a second, and reports the end of a Pod at the next look.
_EXPLAINED_S: Final = 3.0


async def follow(
    client: ClusterClient, kind: str, resource: Mapping[str, Any]
) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
    """Yield (what happened, the object) without end: first as it was found, and again from a fresh
    state when a watch breaks off. BackendUnavailable if that cannot be had.
    """
    name = str(resource["metadata"]["name"])
    # One that was found and not made may be as its reader wants it already.
    what, version = "FOUND", _version(resource)
    while True:
        yield what, resource
        too_old = False
        try:
            async with contextlib.aclosing(client.watch(kind, name, version)) as events:
                async for what, resource in events:
                    yield what, resource
        except ApiRefused as exc:
            if not exc.too_old:
                raise refusals.translated(exc, f"{kind} cannot be watched") from exc
            too_old = True
        except BackendUnavailable:
            await asyncio.sleep(_PAUSE_S)
        try:
            what, resource = "MODIFIED", await client.get(kind, name)
            # An object that has not changed since the server forgot its history has a version that
            # is too old again. From version 0, a watch begins with the object as it is.
            version = "0" if too_old else _version(resource)
        except ApiRefused as exc:
            if not exc.not_there:
                raise refusals.translated(exc, f"{kind} cannot be looked at") from exc
            what = "DELETED"


def _version(resource: Mapping[str, Any]) -> str:
    return str((resource.get("metadata") or {}).get("resourceVersion") or "")


async def explained(client: ClusterClient, pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the Pod as soon as its node has reported why it ended, or as it is after a while."""
    if not pod_status.is_unexplained(pod):
        return pod
    following = follow(client, "pods", pod)
    with contextlib.suppress(SandkastenError, TimeoutError):
        async with asyncio.timeout(_EXPLAINED_S), contextlib.aclosing(following):
            async for what, pod in following:
                if what == "DELETED" or not pod_status.is_unexplained(pod):
                    break
    return pod
