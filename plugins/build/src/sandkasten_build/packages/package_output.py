"""Bring what a sandbox made to this machine, as a tar that is unpacked without trusting it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.disk.os_errors import translated
from sandkasten.errors import InvalidImage, ProvisioningFailed
from sandkasten_runtime.images.layers.layer_unpack import Caps, unpack_layer
from sandkasten_runtime.images.thread_work import to_the_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path


async def receive(
    data: AsyncIterator[bytes], archive: Path, max_bytes: int, specs: Sequence[str]
) -> None:
    """Write a tar to a file. Raise ProvisioningFailed if it is larger than `max_bytes`."""
    size = 0
    with translated("keep packages"), archive.open("wb") as file:
        async for piece in data:
            size += len(piece)
            if size > max_bytes:
                raise ProvisioningFailed(
                    f"packages {', '.join(specs)} take more than {max_bytes} bytes once they are "
                    "installed",
                    hint="request less, or raise packages.max_bytes",
                    packages=list(specs),
                )
            await to_the_end(file.write, piece)


def unpack(archive: Path, tree: Path, max_bytes: int) -> None:
    """Unpack with the program that drops its privileges: the archive is untrusted. Blocking."""
    try:
        with archive.open("rb") as file:
            unpack_layer(file, tree, caps=Caps(bytes=max_bytes, entries=1_000_000))
    except InvalidImage as exc:
        raise ProvisioningFailed(
            f"the installed packages cannot be stored: {exc.message}",
            hint="request other packages, or build an image with them",
        ) from exc
