"""Images by name: resolve what a user asks for, and the operations on the store.

Implements `ports.ImageSource` and `ports.ImageLibrary`. An alias set by the operator wins; then an
image of that exact name, then the usual alias, and last, for an alias only, the host image.
Everything that reads or writes the disk runs in a thread; if its caller is cancelled, it stops at
its next step. Most processes only resolve a name, so the operations import what they need
themselves.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sandkasten.errors import (
    Cancelled,
    InvalidImage,
    PolicyDenied,
    RegistryUnavailable,
    SandkastenError,
    Unauthorized,
    UntrustedImage,
)
from sandkasten.images.host_image import HostImages
from sandkasten.images.image_config import machine_architecture
from sandkasten.images.image_names import HOST, all_aliases, canonical_name, in_full, is_id
from sandkasten.images.image_sources import Sources
from sandkasten.images.layers.image_store import LayerStore, StoredImage, not_in_store
from sandkasten.images.layers.skeleton import home_is_free
from sandkasten.images.registry.image_reference import parse_reference
from sandkasten.model.images.known_images import known_image
from sandkasten.model.images.pull_rules import may_pull
from sandkasten.model.images.resolved_image import Image, Lookup

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from sandkasten.model.images.image_info import (
        ArchiveFormat,
        BuildRequest,
        BuiltImage,
        CollectedImages,
        Exported,
        ImageInfo,
        ImageProgress,
        ImageUsage,
        RemovedImage,
    )
    from sandkasten.model.images.pull_rules import PullMode
    from sandkasten.ports import EventSink, Workbench

T = TypeVar("T")


class Images:
    """`aliases` are the operator's own; `usr` is where the host's programs are looked for.

    `pull`: whether resolving a name may ask its registry. Pulls for requests are reported as
    `events`.
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
    ) -> None:
        self.store = store
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
        meant = self._host.meaning(name)
        known = known_image(meant[0]) is not None
        if self._pull == "named" and len(meant) == 1 and not lookup.in_full and not known:
            why = self._why_not_pulled(meant[0])
            raise await asyncio.to_thread(self._host.missing, meant, "", why)
        # The error for an unknown image reads the names of all images in the store.
        return await asyncio.to_thread(self._host.instead_of, meant)

    async def look_up(self, name: str, *, fetch: bool = False) -> Lookup:
        meant = self._host.check(name)
        names = self._host.candidates(meant, self._own)
        if meant[-1] == HOST:
            return Lookup(names, Image(HOST))
        full = self._in_full(meant)
        unknown = not is_id(meant[-1]) and known_image(meant[-1]) is None
        pulls = may_pull(self._pull, in_full=full) and unknown
        if pulls and self._pull == "always":
            await self._pull_or_fall_back(meant, names)
        found = self._found(names)
        if found is None and fetch and pulls and self._pull != "always":
            await self._pull_or_fall_back(meant, names)
            found = self._found(names)
        return Lookup(
            tuple(_spelled(one) for one in names),
            found,
            full,
            pulls,
            self._sources.trust is not None,
        )

    def spellings(self, name: str) -> Sequence[str]:
        """See `ports.SpellsImages`."""
        found = self.store.find(name) if is_id(name) else None
        return self._host.spellings(name, *(() if found is None else found.names))

    def _in_full(self, meant: Sequence[str]) -> bool:
        """Return whether the name says which image of which registry is meant, and requests may
        use that registry: otherwise a request could make this machine connect anywhere.
        """
        name = meant[0]
        if len(meant) > 1 or not in_full(name):
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
        for one in names:
            image = self.store.lookup(one)
            if image is not None:
                return self._shown(one, image)
        return None

    async def _pull_or_fall_back(self, meant: Sequence[str], names: Sequence[str]) -> None:
        """Pull the image. The host may stand in for one that cannot be pulled."""
        target = meant[-1]
        try:
            # One caller pulls, and the others find the image.
            async with self._pulling.setdefault(target, asyncio.Lock()):
                if self._pull == "always" or self._found(names) is None:
                    await self._pull_for_request(target)
        except UntrustedImage:
            raise
        except (InvalidImage, PolicyDenied, RegistryUnavailable, Unauthorized) as exc:
            if await asyncio.to_thread(self._host.stands_in, meant):
                return
            if isinstance(exc, RegistryUnavailable):
                raise self._host.unreachable(meant, exc.message) from exc
            raise
        finally:
            if target in self._pulling and not self._pulling[target].locked():
                del self._pulling[target]

    async def _pull_for_request(self, name: str) -> None:
        self._emit("image.pull_started", image=name)
        started = time.monotonic()

        def report(told: ImageProgress) -> None:
            step, done, total = told.step, told.done, told.total
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
        self,
        path: str,
        *,
        name: str | None = None,
        platform: str | None = None,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> Sequence[ImageInfo]:
        def work(report: Callable[[ImageProgress], None]) -> Sequence[ImageInfo]:
            from sandkasten.images.archives.archive_import import Import, import_file

            order = Import(Path(path), name=name, platform=platform, progress=report)
            return [self._info(one) for one in import_file(self.store, order)]

        return await in_thread(work, progress)

    async def import_stream(
        self,
        data: AsyncIterable[bytes],
        *,
        name: str | None = None,
        platform: str | None = None,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> Sequence[ImageInfo]:
        from sandkasten.images.archive_spool import spooled

        async with spooled(self.store, data) as path:
            return await self.import_archive(
                str(path), name=name, platform=platform, progress=progress
            )

    async def export(
        self,
        name: str,
        path: str,
        *,
        format: ArchiveFormat = "docker",
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> Exported:
        def work(report: Callable[[ImageProgress], None]) -> Exported:
            from sandkasten.images.archives.archive_export import export_file

            with self.store.working():
                image = self._named_only(name)
                return export_file(self.store, image, Path(path), format, report)

        return await in_thread(work, progress)

    async def pull(
        self,
        name: str,
        *,
        platform: str | None = None,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> ImageInfo:
        """Pull an image; an alias is pulled as its target."""
        image = await self._pulled(self._host.meaning(name)[-1], platform, progress)
        return await asyncio.to_thread(self._info, image)

    async def build_debian(
        self,
        name: str,
        suite: str,
        *,
        include: Sequence[str] = (),
        variant: str = "minbase",
        mirror: str | None = None,
        refresh: bool = False,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> BuiltImage:
        from sandkasten.model.images.image_info import BuiltImage

        called_off = threading.Event()

        def work(report: Callable[[ImageProgress], None]) -> BuiltImage:
            built = self._sources.debian(
                name,
                suite=suite,
                include=include,
                variant=variant,
                mirror=mirror,
                refresh=refresh,
                report=report,
                called_off=called_off,
            )
            return BuiltImage(self._info(built.image), cached=built.cached)

        return await in_thread(work, progress, called_off)

    async def build(
        self,
        request: BuildRequest,
        *,
        bench: Workbench,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> BuiltImage:
        from sandkasten.model.images.image_info import BuiltImage

        base, recipe = await self._sources.recipe(request, bench, self._base)
        built = await self._sources.steps(request, base, recipe, bench=bench, progress=progress)
        info = await asyncio.to_thread(self._info, built.image)
        return BuiltImage(info, cached=built.cached, warnings=built.warnings)

    async def tag(self, name: str, new: str) -> ImageInfo:
        return await asyncio.to_thread(lambda: self._info(self.store.tag(name, new)))

    async def remove(self, name: str, *, in_use: AbstractSet[str]) -> RemovedImage:
        """Remove a name, and the image with its last name; its layers are removed by `collect`."""

        def work() -> RemovedImage:
            from sandkasten.model.images.image_info import RemovedImage

            gone = self.store.remove(name, in_use=in_use)
            return RemovedImage(gone.id, gone.names, deleted=not self.store.there(gone.id))

        return await asyncio.to_thread(work)

    async def collect(self, *, in_use: AbstractSet[str], wait_s: float = 30.0) -> CollectedImages:
        def work() -> CollectedImages:
            from sandkasten.model.images.image_info import CollectedImages

            found = self.store.collect(in_use, wait_s=wait_s)
            return CollectedImages(found.images, found.layers, found.bytes)

        return await asyncio.to_thread(work)

    async def usage(self, *, in_use: AbstractSet[str]) -> ImageUsage:
        return await asyncio.to_thread(self._usage, in_use)

    # ---- within

    async def _pulled(
        self,
        name: str,
        platform: str | None = None,
        progress: Callable[[ImageProgress], None] | None = None,
    ) -> StoredImage:
        return await self._sources.pull(name, platform, progress)

    async def _base(self, name: str) -> StoredImage:
        """Return the base image of a build; pull it if the operator allows that."""
        meant = self._host.meaning(name)
        if meant[-1] == HOST:
            raise InvalidImage(
                "the host image cannot be used as a base: it is this machine's own /usr",
                hint="take an image of the store as base (sandkasten image ls)",
                image=name,
            )
        pulls = may_pull(self._pull, in_full=self._in_full(meant))
        if pulls and self.store.lookup(meant[-1]) is None:
            await self._pulled(meant[-1])
        found = await asyncio.to_thread(self._get, name)
        self._check_trust(name, found)
        return found

    def _get(self, name: str) -> StoredImage:
        """Find an image by name, by id, or by alias."""
        found = self.store.find(name)
        if found is None:
            meant = self._host.meaning(name)
            found = self.store.find(meant[-1]) if len(meant) > 1 else None
        if found is None:
            raise not_in_store(name)
        return found

    def _named_only(self, name: str) -> StoredImage:
        """Find an image as `_get` does, with no other names than the given one.

        An archive with all its names would move those names wherever it is loaded. An image that is
        found by its id keeps no name.
        """
        image = self._get(name)
        meant = {canonical_name(one) for one in self._host.meaning(name)}
        return replace(image, names=tuple(one for one in image.names if one in meant))

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
            reclaimable_bytes=sum(size for one, size in sizes.items() if one not in needed),
        )


def _spelled(name: str) -> str:
    """Return the spelling that the allow-list compared: to an engine, another spelling can be
    another image. With its tag it cannot be taken for a prefix of an id either.
    """
    return name if is_id(name) else canonical_name(name)


def _counted(images: Sequence[StoredImage]) -> dict[str, int]:
    """Return how many images have each layer."""
    found: dict[str, int] = {}
    for image in images:
        for diff_id in set(image.layers):
            found[diff_id] = found.get(diff_id, 0) + 1
    return found


async def in_thread(
    work: Callable[[Callable[[ImageProgress], None]], T],
    progress: Callable[[ImageProgress], None] | None,
    given_up: threading.Event | None = None,
) -> T:
    """Run blocking work that reports progress; reports arrive on the event loop.

    If the caller is cancelled, `given_up` is set and the next report ends the work with Cancelled.
    """
    loop = asyncio.get_running_loop()
    given_up = threading.Event() if given_up is None else given_up

    def report(told: ImageProgress) -> None:
        if given_up.is_set():
            raise Cancelled("the image operation was cancelled", hint="retry")
        if progress is not None:
            loop.call_soon_threadsafe(progress, told)

    try:
        return await asyncio.to_thread(work, report)
    except asyncio.CancelledError:
        given_up.set()
        raise
