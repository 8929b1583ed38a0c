"""Pack an image of the store as a docker archive while it is being read.

Implements `ports.ImagePacker`. One layer at a time is written to a scratch file of the store, to
learn its digest and size, and is sent from there: an archive is never whole in memory or on disk.
Nothing is written faster than it is read. The same image gives the same bytes in every store. If
the reader leaves or is cancelled, packing ends at the next piece and leaves nothing. Raises
InvalidImage for an image that is gone or that no engine accepts, QuotaExceeded if the disk is full.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from sandkasten.disk.os_errors import translated
from sandkasten.errors import Cancelled, InvalidImage
from sandkasten_runtime.images.archives.archive_export import (
    DOCKER_LAYER,
    Hashing,
    WrittenBlob,
    docker_ending,
    member_header,
)
from sandkasten_runtime.images.image_config import ImageConfig, machine_architecture
from sandkasten_runtime.images.layers.layer_tar import write_layer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from pathlib import Path

    from sandkasten.model.images.resolved_image import Image
    from sandkasten_runtime.images.layers.image_store import LayerStore

PIECE_BYTES: Final = 1024 * 1024
# The number of layers that engines accept, minus the container's own.
MAX_DOCKER_LAYERS: Final = 125
LABEL: Final = "sandkasten.image"


class StorePacker:
    def __init__(self, store: LayerStore) -> None:
        self._store = store
        self._closing: set[asyncio.Task[None]] = set()

    async def archive(self, image: Image, reference: str) -> AsyncGenerator[bytes, None]:
        """Yield a docker archive of all of `image.layers`, our skeleton on top, under that
        reference.
        """
        _check(image)
        given_up = threading.Event()
        pieces = self._pieces(image, reference, given_up)
        loop = asyncio.get_running_loop()
        step: asyncio.Future[bytes | None] | None = None
        try:
            while True:
                step = loop.run_in_executor(None, next, pieces, None)
                # A thread cannot be cancelled: wait for it before its files are closed.
                piece = await asyncio.shield(step)
                if piece is None:
                    return
                yield piece
        finally:
            given_up.set()
            closing = asyncio.create_task(_close(pieces, step))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            await asyncio.shield(closing)

    def _pieces(
        self, image: Image, reference: str, given_up: threading.Event
    ) -> Generator[bytes, None, None]:
        """Yield the pieces. Each step runs in a thread, never two at once."""

        def advance(_: int) -> None:
            if given_up.is_set():
                raise Cancelled("packing the image was cancelled", hint="retry")

        # Nothing is collected meanwhile, even if no sandbox uses the image yet.
        with self._store.working(), self._store.place() as place, translated("pack an image"):
            written: dict[str, WrittenBlob] = {}
            contents: set[str] = set()
            for tree in image.layers:
                if tree in written:
                    continue
                spool = place / "layer"
                try:
                    with spool.open("wb") as file:
                        hashing = Hashing(file)
                        # The skeleton was made here, so its times are not those of the image.
                        mtime = 0 if tree == image.layers[-1] else None
                        write_layer(tree, cast("BinaryIO", hashing), advance, mtime=mtime)
                except FileNotFoundError as exc:
                    raise InvalidImage(
                        f"image {image.name} is missing a layer in the store",
                        hint="import it again",
                        image=image.name,
                    ) from exc
                blob = written[tree] = hashing.written
                if blob.digest not in contents:
                    contents.add(blob.digest)
                    yield member_header(DOCKER_LAYER.format(hex=blob.hex), blob.size)
                    yield from _read(spool)
            config = ImageConfig(
                architecture=machine_architecture(), env=image.env, labels={LABEL: image.id}
            )
            yield docker_ending(config, [written[tree] for tree in image.layers], [reference])


def _check(image: Image) -> None:
    if image.kind != "layers" or not image.layers:
        raise InvalidImage(f"image {image.name} has no layers to pack", hint="import it again")
    if len(image.layers) > MAX_DOCKER_LAYERS:
        raise InvalidImage(
            f"image {image.name} has {len(image.layers)} layers with ours, "
            f"and a container engine takes at most {MAX_DOCKER_LAYERS}",
            hint="rebuild it with fewer layers, or use another backend",
            image=image.name,
        )


def _read(spool: Path) -> Generator[bytes, None, None]:
    with spool.open("rb", buffering=0) as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


async def _close(
    pieces: Generator[bytes, None, None], step: asyncio.Future[bytes | None] | None
) -> None:
    if step is not None:
        await asyncio.wait({step})
        # The error was already delivered, or the reader has gone.
        with suppress(asyncio.CancelledError):
            step.exception()
    await asyncio.to_thread(pieces.close)
