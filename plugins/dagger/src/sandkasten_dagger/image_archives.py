"""Archives of store images, from which a session gives them to an engine.

An archive is written once for each image and engine-independent; the engine keeps what it imported
by content. The least recently used archives are removed. Raises InvalidImage and QuotaExceeded.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

from sandkasten.disk.os_errors import translated
from sandkasten.errors import InvalidImage, UnsupportedByBackend

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.model.images.resolved_image import Image
    from sandkasten.ports import ImagePacker

_KEPT: Final = 8


class ImageArchives:
    def __init__(self, folder: Path, packer: ImagePacker | None) -> None:
        self._folder = folder
        self._packer = packer
        self._writing: dict[str, asyncio.Lock] = {}

    async def path(self, image: Image) -> Path:
        """Return the archive of an image of the store, which exists when this returns."""
        if self._packer is None or image.kind != "layers":
            raise UnsupportedByBackend(
                f"backend dagger cannot use image {image.name}",
                hint="name an image of the store (sandkasten image ls) or of a registry",
                image=image.name,
            )
        if not image.id:
            raise InvalidImage(f"image {image.name} has no id", hint="import it again")
        name = image.id.replace(":", "-")
        path = self._folder / f"{name}.tar"
        async with self._writing.setdefault(name, asyncio.Lock()):
            if not await asyncio.to_thread(_touched, path):
                await self._write(self._packer, image, path)
                await asyncio.to_thread(self._remove_old)
        return path

    async def _write(self, packer: ImagePacker, image: Image, path: Path) -> None:
        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            with translated("write the archive of an image"):
                with partial.open("wb") as file:
                    async with aclosing(
                        packer.archive(image, f"sandkasten/{image.name}")
                    ) as pieces:
                        async for piece in pieces:
                            await asyncio.to_thread(file.write, piece)
                partial.rename(path)
        finally:
            partial.unlink(missing_ok=True)

    def _remove_old(self) -> None:
        archives = sorted(self._folder.glob("*.tar"), key=lambda archive: -archive.stat().st_atime)
        for old in archives[_KEPT:]:
            with suppress(OSError):
                old.unlink()


def _touched(path: Path) -> bool:
    """Return whether the file exists, and mark it as used."""
    try:
        # The time of the last change stays: a session sends a file again that has another one.
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    except FileNotFoundError:
        return False
    return True
