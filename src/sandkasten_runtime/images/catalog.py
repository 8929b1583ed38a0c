"""Images by name: resolve what a user asks for, and the operations on the store.

Implements `ports.ImageSource` and `ports.ImageLibrary`. An alias set by the operator wins; then an
image of that exact name, then the usual alias, and last, for an alias only, the host image.
Everything that reads or writes the disk runs in a thread; if its caller is cancelled, it stops at
its next step. Most processes only resolve a name, so the operations import what they need
themselves.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sandkasten.disk.os_errors import translated
from sandkasten.errors import (
    Cancelled,
    InvalidImage,
    PolicyDenied,
    RegistryUnavailable,
    SandkastenError,
    Unauthorized,
    UntrustedImage,
)
from sandkasten.model.images.known_images import known_image
from sandkasten.model.images.pull_rules import may_pull
from sandkasten.model.images.resolved_image import Image, Lookup
from sandkasten_runtime.images.host_image import HostImages
from sandkasten_runtime.images.image_config import machine_architecture
from sandkasten_runtime.images.image_names import HOST, all_aliases, canonical_name, in_full, is_id
from sandkasten_runtime.images.image_sources import Sources
from sandkasten_runtime.images.installed_parts import no_builder
from sandkasten_runtime.images.layers.image_store import LayerStore, StoredImage, not_in_store
from sandkasten_runtime.images.layers.skeleton import home_is_free
from sandkasten_runtime.images.registry.image_reference import parse_reference

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from sandkasten.model.images.image_info import (
        BootstrapRequest,
        BuildRequest,
        BuiltImage,
        CollectedImages,
        Exported,
        ExportRequest,
        ImageInfo,
        ImageProgress,
        ImageUsage,
        ImportRequest,
        OnProgress,
        PullRequest,
        RemovedImage,
    )
    from sandkasten.model.images.known_images import KnownImage
    from sandkasten.model.images.pull_rules import PullMode
    from sandkasten.ports import EventSink, Workbench
    from sandkasten_runtime.images.image_plugins import ImageBuilder

T = TypeVar("T")
# A streamed archive is collected up to this size before a thread writes it.
_PIECE_BYTES = 1024 * 1024


class Images:
    """`aliases` are the operator's own; `usr` is where the host's programs are looked for.

    `pull`: whether resolving a name may ask its registry. Pulls for requests are reported as
    `events`. `open_builder` is called at the first build, and raises UnsupportedByBackend if this
    installation builds no images.
    """

    def __init__(
        self,
        store: LayerStore,
        *,
        allowed: Sequence[str] | None = None,
        strict: bool = False,
        aliases: Mapping[str, str] | None = None,
        usr: Path = Path("/usr"),
        sources: Sources | None = None,
        pull: PullMode = "never",
        events: EventSink | None = None,
        open_builder: Callable[[], ImageBuilder] = no_builder,
    ) -> None:
        self.store = store
        self._open_builder = open_builder
        self._sources = Sources(store) if sources is None else sources
        self._pull = pull
        self._events = events
        self._pulling: dict[str, asyncio.Lock] = {}
        self._own = dict(aliases or {})
        self._host = HostImages(
            allowed=allowed,
            strict=strict,
            usr=usr,
            aliases=all_aliases(self._own),
            stored=self._stored_names,
        )

    def _stored_names(self) -> Sequence[str]:
        return sorted(name for image in self.store.list() for name in image.names)

    # ---- ports.ImageSource

    async def resolve(self, name: str, *, fetch: bool = True) -> Image:
        lookup = await self.look_up(name, fetch=fetch)
        if lookup.image is not None:
            return lookup.image
        targets = self._host.meaning(name)
        is_known = known_image(targets[0]) is not None
        if self._pull == "named" and len(targets) == 1 and not lookup.in_full and not is_known:
            why = self._why_not_pulled(targets[0])
            raise await asyncio.to_thread(self._host.missing, targets, "", why)
        # The error for an unknown image reads the names of all images in the store.
        return await asyncio.to_thread(self._host.instead_of, targets)

    async def look_up(self, name: str, *, fetch: bool = False) -> Lookup:
        targets = self._host.check(name)
        names = self._host.candidates(targets, self._own)
        if targets[-1] == HOST:
            return Lookup(names, Image(HOST))
        full = self._in_full(targets)
        unknown = not is_id(targets[-1]) and known_image(targets[-1]) is None
        pulls = may_pull(self._pull, in_full=full) and unknown
        if pulls and self._pull == "always":
            await self._pull_or_fall_back(targets, names)
        image = self._found(names)
        if image is None and fetch and pulls and self._pull != "always":
            await self._pull_or_fall_back(targets, names)
            image = self._found(names)
        return Lookup(
            tuple(_spelled(spelling) for spelling in names),
            image,
            full,
            pulls,
            self._sources.trust is not None,
        )

    def spellings(self, name: str) -> Sequence[str]:
        """See `ports.SpellsImages`."""
        stored = self.store.find(name) if is_id(name) else None
        return self._host.spellings(name, *(() if stored is None else stored.names))

    def _in_full(self, targets: Sequence[str]) -> bool:
        """Return whether the name determines one image of one registry, and requests may
        use that registry: otherwise a request could make this machine connect anywhere.
        """
        name = targets[0]
        if len(targets) > 1 or not in_full(name):
            return False
        return self._host.lists(name) or self._sources.knows_registry(name)

    def _why_not_pulled(self, name: str) -> str:
        if is_id(name):
            return "an image named by its id is not pulled"
        if not in_full(name):
            return f"a name with its tag (such as {canonical_name(name)}) is pulled"
        registry = parse_reference(name).registry
        return f"it is pulled if allowed_images lists it or images.registries lists {registry}"

    def _found(self, names: Sequence[str]) -> Image | None:
        # A handful of small files that the kernel has cached: a thread would cost more.
        for name in names:
            image = self.store.lookup(name)
            if image is not None:
                return self._shown(name, image)
        return None

    async def _pull_or_fall_back(self, targets: Sequence[str], names: Sequence[str]) -> None:
        """Pull the image. The host may stand in for one that cannot be pulled."""
        target = targets[-1]
        try:
            # One caller pulls, and the others find the image.
            async with self._pulling.setdefault(target, asyncio.Lock()):
                if self._pull == "always" or self._found(names) is None:
                    await self._pull_for_request(target)
        except UntrustedImage:
            raise
        except (InvalidImage, PolicyDenied, RegistryUnavailable, Unauthorized) as exc:
            if await asyncio.to_thread(self._host.stands_in, targets):
                return
            if isinstance(exc, RegistryUnavailable):
                raise self._host.unreachable(targets, exc.message) from exc
            raise
        finally:
            if target in self._pulling and not self._pulling[target].locked():
                del self._pulling[target]

    async def _pull_for_request(self, name: str) -> None:
        self._emit("image.pull_started", image=name)
        started = time.monotonic()

        def report(update: ImageProgress) -> None:
            step, done, total = update.step, update.done, update.total
            self._emit("image.pull_progress", image=name, step=step, done=done, total=total)

        try:
            image = await self._sources.pull_for_request(name, report)
        except SandkastenError as exc:
            self._emit("image.pull_failed", image=name, code=exc.code)
            raise
        seconds = round(time.monotonic() - started, 3)
        self._emit("image.pulled", image=name, bytes=image.bytes, seconds=seconds)

    def _emit(self, event: str, **fields: str | int | float | None) -> None:
        if self._events is not None:
            self._events.emit(event, fields)

    async def present(self, image: Image) -> bool:
        """Return whether the image still exists; called after its use was recorded."""
        return image.kind != "layers" or self.store.there(image.id)

    def _shown(self, name: str, image: StoredImage) -> Image:
        machine = machine_architecture()
        if image.config.architecture != machine:
            raise InvalidImage(
                f"image {name} is made for {image.config.platform}, "
                f"and this machine is linux/{machine}",
                hint="import or pull it for this machine",
                image=name,
            )
        self._check_trust(name, image)
        return Image(
            name=name if name == image.id else canonical_name(name),
            kind="layers",
            layers=(trees := self.store.trees(image)),
            id=image.id,
            env=image.config.env,
            home_is_free=home_is_free(trees),
        )

    def _check_trust(self, name: str, image: StoredImage) -> None:
        """Raise UntrustedImage unless the image has a signature that the operator accepts."""
        trust = self._sources.trust
        if trust is not None:
            trust.check(name, self.store.signatures(image.id))

    # ---- ports.ImageLibrary

    async def list(self) -> Sequence[ImageInfo]:
        return await asyncio.to_thread(self._list)

    async def inspect(self, name: str) -> ImageInfo:
        return await asyncio.to_thread(lambda: self._info(self._get(name)))

    async def import_archive(
        self, path: str, request: ImportRequest, *, progress: OnProgress | None = None
    ) -> Sequence[ImageInfo]:
        def work(report: OnProgress) -> Sequence[ImageInfo]:
            from sandkasten_runtime.images.archives.archive_import import Import, import_file

            order = Import(Path(path), request.name, request.platform, report)
            return [self._info(image) for image in import_file(self.store, order)]

        return await in_thread(work, progress)

    async def import_stream(
        self, data: AsyncIterable[bytes], request: ImportRequest
    ) -> Sequence[ImageInfo]:
        async with _spooled(self.store, data) as path:
            return await self.import_archive(str(path), request)

    async def export(
        self, request: ExportRequest, *, progress: OnProgress | None = None
    ) -> Exported:
        def work(report: OnProgress) -> Exported:
            from sandkasten_runtime.images.archives.archive_export import export_file

            with self.store.working():
                image = self._named_only(request.name)
                return export_file(self.store, image, Path(request.path), request.format, report)

        return await in_thread(work, progress)

    async def pull(self, request: PullRequest, *, progress: OnProgress | None = None) -> ImageInfo:
        """Pull an image; an alias is pulled as its target."""
        target = self._host.meaning(request.name)[-1]
        image = await self._sources.pull(replace(request, name=target), progress=progress)
        return await asyncio.to_thread(self._info, image)

    async def build_debian(
        self, request: BootstrapRequest, *, progress: OnProgress | None = None
    ) -> BuiltImage:
        from sandkasten.model.images.image_info import BuiltImage

        called_off = threading.Event()

        def work(report: OnProgress) -> BuiltImage:
            builder = self._open_builder()
            built = builder.bootstrap(request, progress=report, called_off=called_off)
            return BuiltImage(self._info(built.image), cached=built.cached)

        return await in_thread(work, progress, called_off)

    async def known(self, name: str) -> KnownImage:
        builder = await asyncio.to_thread(self._open_builder)
        return builder.known(name)

    async def build(
        self, request: BuildRequest, *, bench: Workbench, progress: OnProgress | None = None
    ) -> BuiltImage:
        from sandkasten.model.images.image_info import BuiltImage

        # In a thread: it imports what builds.
        builder = await asyncio.to_thread(self._open_builder)
        built = await builder.build(request, bench=bench, find_base=self._base, progress=progress)
        info = await asyncio.to_thread(self._info, built.image)
        return BuiltImage(info, cached=built.cached, warnings=built.warnings)

    async def tag(self, name: str, new: str) -> ImageInfo:
        return await asyncio.to_thread(lambda: self._info(self.store.tag(name, new)))

    async def remove(self, name: str, *, in_use: AbstractSet[str]) -> RemovedImage:
        """Remove a name, and the image with its last name; its layers are removed by `collect`."""

        def work() -> RemovedImage:
            from sandkasten.model.images.image_info import RemovedImage

            removed = self.store.remove(name, in_use=in_use)
            return RemovedImage(removed.id, removed.names, deleted=not self.store.there(removed.id))

        return await asyncio.to_thread(work)

    async def collect(self, *, in_use: AbstractSet[str], wait_s: float = 30.0) -> CollectedImages:
        def work() -> CollectedImages:
            from sandkasten.model.images.image_info import CollectedImages

            collected = self.store.collect(in_use, wait_s=wait_s)
            return CollectedImages(collected.images, collected.layers, collected.bytes)

        return await asyncio.to_thread(work)

    async def usage(self, *, in_use: AbstractSet[str]) -> ImageUsage:
        return await asyncio.to_thread(self._usage, in_use)

    # ---- within

    async def _base(self, name: str) -> StoredImage:
        """Return the base image of a build; pull it if the operator allows that."""
        from sandkasten.model.images.image_info import PullRequest

        targets = self._host.meaning(name)
        if targets[-1] == HOST:
            raise InvalidImage(
                "the host image cannot be used as a base: it is this machine's own /usr",
                hint="take an image of the store as base (sandkasten image ls)",
                image=name,
            )
        pulls = may_pull(self._pull, in_full=self._in_full(targets))
        if pulls and self.store.lookup(targets[-1]) is None:
            await self._sources.pull(PullRequest(targets[-1]))
        image = await asyncio.to_thread(self._get, name)
        self._check_trust(name, image)
        return image

    def _get(self, name: str) -> StoredImage:
        """Find an image by name, by id, or by alias."""
        image = self.store.find(name)
        if image is None:
            targets = self._host.meaning(name)
            image = self.store.find(targets[-1]) if len(targets) > 1 else None
        if image is None:
            raise not_in_store(name)
        return image

    def _named_only(self, name: str) -> StoredImage:
        """Find an image as `_get` does, with no other names than the given one.

        An archive with all its names would move those names wherever it is loaded. An image that is
        found by its id keeps no name.
        """
        image = self._get(name)
        targets = {canonical_name(spelling) for spelling in self._host.meaning(name)}
        return replace(
            image, names=tuple(spelling for spelling in image.names if spelling in targets)
        )

    def _list(self) -> Sequence[ImageInfo]:
        images = self.store.list()
        shared = _counted(images)
        return [self._info(image, shared) for image in images]

    def _info(self, image: StoredImage, shared: Mapping[str, int] | None = None) -> ImageInfo:
        from sandkasten.model.images.image_info import ImageInfo, ImageLayer

        shared = _counted(self.store.list()) if shared is None else shared
        config = image.config
        layers = [
            ImageLayer(layer.diff_id, layer.bytes, layer.files, shared.get(layer.diff_id, 1))
            for diff_id in image.layers
            if (layer := self.store.layer(diff_id)) is not None
        ]
        return ImageInfo(
            id=image.id,
            names=image.names,
            bytes=image.bytes,
            architecture=config.architecture,
            os=config.os,
            variant=config.variant,
            created_at=image.created_at,
            source=image.source,
            layers=tuple(layers),
            env=config.env,
            user=config.user,
            entrypoint=config.entrypoint,
            cmd=config.cmd,
            workdir=config.workdir,
            labels=config.labels,
            created=config.created,
        )

    def _usage(self, in_use: AbstractSet[str]) -> ImageUsage:
        from sandkasten.model.images.image_info import ImageUsage

        images = self.store.list()
        sizes = {layer.diff_id: layer.bytes for layer in self.store.layers()}
        needed = {
            diff_id
            for image in images
            if image.names or image.id in in_use
            for diff_id in image.layers
        }
        return ImageUsage(
            images=len(images),
            layers=len(sizes),
            bytes=sum(sizes.values()),
            separate_bytes=sum(image.bytes for image in images),
            reclaimable_bytes=sum(size for diff_id, size in sizes.items() if diff_id not in needed),
        )


def _spelled(name: str) -> str:
    """Return the spelling that the allow-list compared: to an engine, another spelling can be
    another image. With its tag it cannot be taken for a prefix of an id either.
    """
    return name if is_id(name) else canonical_name(name)


def _counted(images: Sequence[StoredImage]) -> dict[str, int]:
    """Return how many images have each layer."""
    counts: dict[str, int] = {}
    for image in images:
        for diff_id in set(image.layers):
            counts[diff_id] = counts.get(diff_id, 0) + 1
    return counts


@asynccontextmanager
async def _spooled(store: LayerStore, data: AsyncIterable[bytes]) -> AsyncIterator[Path]:
    """Write a streamed archive to a scratch file of the store for as long as it is read.

    A full disk raises QuotaExceeded and leaves nothing.
    """
    place = store.place()
    path = (await asyncio.to_thread(place.__enter__)) / "archive"
    try:
        await _written(path, data)
        yield path
    except SandkastenError as exc:
        # The scratch path is private, and gone.
        exc.message = exc.message.replace(str(path), "the archive")
        raise
    finally:
        await asyncio.shield(asyncio.to_thread(place.__exit__, None, None, None))


async def _written(path: Path, data: AsyncIterable[bytes]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        gathered = bytearray()
        async for piece in data:
            gathered += piece
            if len(gathered) >= _PIECE_BYTES:
                await asyncio.to_thread(_write, fd, gathered)
                gathered = bytearray()
        await asyncio.to_thread(_write, fd, gathered)
    finally:
        os.close(fd)


def _write(fd: int, data: bytearray) -> None:
    view = memoryview(data)
    with translated("keep the archive"):
        while view:
            view = view[os.write(fd, view) :]


async def in_thread(
    work: Callable[[OnProgress], T],
    progress: OnProgress | None,
    given_up: threading.Event | None = None,
) -> T:
    """Run blocking work that reports progress; reports arrive on the event loop.

    If the caller is cancelled, `given_up` is set and the next report ends the work with Cancelled.
    """
    loop = asyncio.get_running_loop()
    given_up = threading.Event() if given_up is None else given_up

    def report(update: ImageProgress) -> None:
        if given_up.is_set():
            raise Cancelled("the image operation was cancelled", hint="retry")
        if progress is not None:
            loop.call_soon_threadsafe(progress, update)

    try:
        return await asyncio.to_thread(work, report)
    except asyncio.CancelledError:
        given_up.set()
        raise
