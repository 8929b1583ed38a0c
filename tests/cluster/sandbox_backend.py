"""The product's backend on the test cluster, and what a test does with its sandboxes."""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.limits import MIB, Limits
from sandkasten_kubernetes.backend import KubernetesBackend
from sandkasten_runtime.assembly.backend_registry import read_nested
from sandkasten_runtime.wire.call import OutputChunk
from sandkasten_runtime.wire.channel import Channel
from tests.kubernetes import cluster_images

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sandkasten_kubernetes.cell import KubernetesCell
    from tests.cluster.cluster import Cluster

SPEC = CellSpec(
    image=Image(cluster_images.reference("busybox"), "engine"),
    limits=Limits(memory_bytes=64 * MIB, workspace_bytes=16 * MIB, tmp_bytes=4 * MIB),
)
_STDOUT = 1


@asynccontextmanager
async def opened(cluster: Cluster, place: Path, **changes: Any) -> AsyncIterator[KubernetesBackend]:
    """Yield a backend, and remove its sandboxes."""
    options = replace(
        cluster_images.options(str(cluster.kubeconfig)), network_policy="checked", **changes
    )
    backend = KubernetesBackend(place, options, read_nested)
    try:
        yield backend
    finally:
        for one in await backend.owned():
            await backend.discard(one)
        await backend.aclose()


async def output(cell: KubernetesCell, *argv: str) -> str:
    """Run a command in a sandbox; return what it writes."""
    channel = await Channel.open(await cell.dial())
    found = b""
    try:
        # A start with an id that is known answers with that command's output.
        name = secrets.token_hex(8)
        fields: dict[str, Any] = {"exec_id": name, "argv": list(argv), "follow": True}
        async with channel.stream("exec.start", fields) as call:
            async for item in call:
                if isinstance(item, OutputChunk) and item.source == _STDOUT:
                    found += item.data
    finally:
        await channel.aclose()
    return found.decode()
