"""Create an object of the cluster once, also when the answer of the API server is lost."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import BackendUnavailable, Conflict
from sandkasten_kubernetes import pod_names, refusals
from sandkasten_kubernetes.api.cluster_client import ApiRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.ids import SandboxId
    from sandkasten_kubernetes.api.cluster_client import ClusterClient

_ANSWER_S: Final = 15.0


async def create_first(
    client: ClusterClient, sandbox_id: SandboxId, kind: str, body: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Create the first object of a sandbox. From then on, no other create can use its name."""
    try:
        return await create_once(client, kind, body)
    except ApiRefused as exc:
        if exc.exists:
            raise Conflict(
                f"the cluster has a sandbox {sandbox_id} already", hint="use another id"
            ) from exc
        raise refusals.unmade(sandbox_id, exc) from exc


async def create_once(
    client: ClusterClient, kind: str, body: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Create an object. If the answer is lost, ask once more: one that exists by then and has the
    mark of this attempt is ours.
    """
    asking = asyncio.ensure_future(_asked_twice(client, kind, body))
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        # What the API server works on cannot be stopped: wait, so that it can be removed.
        await asyncio.wait([asking], timeout=_ANSWER_S)
        if asking.done() and not asking.cancelled():
            asking.exception()
        raise


async def _asked_twice(
    client: ClusterClient, kind: str, body: Mapping[str, Any]
) -> Mapping[str, Any]:
    with contextlib.suppress(BackendUnavailable):
        return await client.create(kind, body)
    try:
        return await client.create(kind, body)
    except ApiRefused as exc:
        # A quota is looked at before the name: the first try may have used the last of it.
        if not exc.exists and not exc.over_quota:
            raise
        try:
            resource = await client.get(kind, body["metadata"]["name"])
        except ApiRefused:
            raise exc from None
        if pod_names.attempt_of(resource) != pod_names.attempt_of(body):
            raise
        return resource
