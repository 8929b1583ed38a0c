"""Images in an engine: ours are loaded into it once, its own are used as they are.

An image of our store is loaded under a name made from its id, with the layer that defines the
sandbox's user. Raises InvalidImage, UnsupportedByBackend, QuotaExceeded, RegistryUnavailable.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from sandkasten.errors import (
    BackendUnavailable,
    ImageNotFound,
    InvalidImage,
    PayloadTooLarge,
    RegistryUnavailable,
    SandkastenError,
    Unauthorized,
    UnsupportedByBackend,
)
from sandkasten.model.images.resolved_image import Image
from sandkasten_docker import container_config, resource_names
from sandkasten_docker.docker_engine.docker_client import DockerClient, Refused, translated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.images.pull_rules import PullMode
    from sandkasten.ports import EventSink, ImagePacker
    from sandkasten.ports.pull_limits import PullLimits

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_VALUE_CHARS = 32 * 1024
_REMEMBERED = 256
# Architectures that a machine runs natively, in the engine's terms.
_RUNS = {"amd64": ("amd64", "386"), "arm64": ("arm64", "arm")}
_DENIED = ("denied", "unauthorized", "authentication required", "no basic auth credentials")
_UNKNOWN = ("not found", "manifest unknown", "does not exist", "no such image")


class DockerImages:
    def __init__(
        self,
        api: DockerClient,
        packer: ImagePacker | None,
        *,
        pull: PullMode,
        limits: PullLimits,
        events: EventSink | None,
    ) -> None:
        self._api = api
        self._pull = pull
        self._limits = limits
        self._events = events
        self._packer = packer
        self._loading: dict[str, asyncio.Lock] = {}
        self._given: dict[str, str] = {}
        self._volumes: dict[str, tuple[str, ...]] = {}
        self._machine = ""

    async def reference(self, image: Image) -> str:
        """Return the name for making a container; the image exists when this returns."""
        if image.kind == "engine":
            return image.id or image.name
        if image.kind == "host":
            raise UnsupportedByBackend(
                "the docker backend does not support the host image",
                hint="name an image of the store (sandkasten image ls) or of the Docker Engine",
                image=image.name,
            )
        reference = resource_names.store_reference(image.id)
        async with self._loading.setdefault(reference, asyncio.Lock()):
            image_id = self._given.get(reference) or await self._has(image, reference)
            if not image_id:
                image_id = await self._load(image, reference)
            self._given[reference] = image_id
        return image_id

    def forget(self, image: Image, image_id: str) -> bool:
        """Forget what `reference` returned, because it is gone. Return whether it can be loaded
        again.
        """
        if image.kind != "layers":
            return False
        reference = resource_names.store_reference(image.id)
        # Another caller may have noticed before and loaded it already.
        if self._given.get(reference) == image_id:
            del self._given[reference]
        return True

    async def check_links(self, container: str, image: Image) -> None:
        """Raise InvalidImage if a symlink of the image would redirect a volume, for example
        over our runner.
        """
        for path in await self.volumes(image, await self.reference(image)):
            above = [str(parent) for parent in PurePosixPath(path).parents if str(parent) != "/"]
            for place in (path, *above):
                if await self._api.is_link(container, place):
                    raise InvalidImage(
                        f"image {image.name} declares a volume at {path[:200]}, and {place} is a "
                        "link",
                        hint="build it without that VOLUME, or use another image",
                        image=image.name,
                    )

    async def volumes(self, image: Image, reference: str) -> tuple[str, ...]:
        """Return the volumes the image declares; our own images declare none."""
        if image.kind != "engine":
            return ()
        cached = self._volumes.get(reference)
        if cached is not None:
            return cached
        details = await self._known(reference)
        if details is None:
            raise gone(image, "no such image")
        declared = container_config.image_volumes(
            image.name, (details.get("Config") or {}).get("Volumes") or ()
        )
        # An id never changes its image; a name may.
        if reference.startswith("sha256:"):
            if len(self._volumes) >= _REMEMBERED:
                del self._volumes[next(iter(self._volumes))]
            self._volumes[reference] = declared
        return declared

    async def _has(self, image: Image, reference: str) -> str:
        """Return the engine's own id of it, which always means this content; empty if it has
        none. Any user of the engine can move a name; the label names its owner.
        """
        details = await self._known(reference) or {}
        labels = (details.get("Config") or {}).get("Labels") or {}
        is_ours = bool(image.id) and labels.get(resource_names.LABEL_IMAGE) == image.id
        return str(details.get("Id") or "") if is_ours else ""

    async def _load(self, image: Image, reference: str) -> str:
        if self._packer is None:
            raise UnsupportedByBackend(
                f"image {image.name} is in the store and cannot be loaded into this Docker Engine",
                hint="use an image that the Docker Engine has",
                image=image.name,
            )
        if not image.id:
            raise InvalidImage(f"image {image.name} has no id", hint="import it again")
        try:
            async with aclosing(self._packer.archive(image, reference)) as archive:
                await self._api.load(archive)
        except Refused as exc:
            what = f"image {image.name} could not be given to the Docker Engine"
            raise translated(exc, what) from exc
        except BackendUnavailable as exc:
            raise _first_cause(exc) from exc
        image_id = await self._has(image, reference)
        if not image_id:
            raise InvalidImage(
                f"the Docker Engine took image {image.name} but does not list it",
                hint="see the Docker Engine's own log",
                image=image.name,
            )
        return image_id

    async def find(self, wanted: Sequence[str], *, fetch: bool) -> Image | None:
        """Implement `ports.KeepsImages`."""
        if not fetch or self._pull != "always":
            for name in wanted:
                details = await self._known(name)
                if details is not None:
                    return await self._checked(name, details)
        if not fetch or not wanted:
            return None
        name = wanted[-1]
        await self._pulled(name)
        details = await self._known(name)
        return None if details is None else await self._checked(name, details)

    async def _checked(self, name: str, details: Mapping[str, Any]) -> Image:
        """Raise InvalidImage if the engine cannot run its programs."""
        if not self._machine:
            self._machine = str((await self._api.version()).get("Arch", ""))
        made_for = str(details.get("Architecture") or "")
        if made_for and self._machine and made_for not in _RUNS.get(self._machine, self._machine):
            raise InvalidImage(
                f"image {tagged(name)} is made for {made_for}, and the Docker Engine's machine is "
                f"{self._machine}",
                hint=f"pull or build it for that machine (--platform linux/{self._machine})",
                image=name,
            )
        return _shown(name, details)

    async def _known(self, name: str) -> Mapping[str, Any] | None:
        try:
            return await self._api.image(name)
        except Refused as exc:
            # An invalid name; ours was checked, but engines have their own rules.
            raise InvalidImage(
                f"the Docker Engine has no image {name}: {exc.message}", hint="check its name"
            ) from exc

    async def _pulled(self, name: str) -> None:
        self._emit("image.pull_started", image=name)
        try:
            async with self._loading.setdefault(name, asyncio.Lock()):
                await self._pull_in_time(name)
        except SandkastenError as exc:
            self._emit("image.pull_failed", image=name, code=exc.code)
            raise
        finally:
            if not self._loading[name].locked():
                del self._loading[name]
        self._emit("image.pulled", image=name)

    async def _pull_in_time(self, name: str) -> None:
        sizes: dict[str, int] = {}

        def report(step: str, done: int, total: int) -> None:
            sizes[step] = total
            if sum(sizes.values()) > self._limits.image_bytes:
                raise PayloadTooLarge(
                    f"the layers of image {name} take more than {self._limits.image_bytes} bytes",
                    hint="use a smaller image, or raise images.pull_max_bytes",
                    image=name,
                )
            self._emit("image.pull_progress", image=name, step=step, done=done, total=total)

        try:
            async with asyncio.timeout(self._limits.seconds):
                await self._api.pull(tagged(name), report)
        except TimeoutError as exc:
            raise RegistryUnavailable(
                f"the Docker Engine did not pull {name} within {self._limits.seconds:g} s",
                hint="try again, or raise images.pull_timeout_seconds",
                image=name,
            ) from exc
        except Refused as exc:
            message = exc.message.lower()
            if any(words in message for words in _DENIED):
                raise Unauthorized(
                    f"the Docker Engine may not pull {name}: {exc.message}",
                    hint="log the Docker Engine in to that registry, or check the name",
                ) from exc
            if any(words in message for words in _UNKNOWN):
                raise ImageNotFound(
                    f"no registry has {name}: {exc.message}", hint="check its name", image=name
                ) from exc
            raise RegistryUnavailable(
                f"the Docker Engine could not pull {name}: {exc.message}",
                hint="check that the Docker Engine's machine reaches the registry; or run docker "
                "pull and docker save elsewhere and docker load there, or sandkasten image import "
                "here",
                image=name,
            ) from exc

    def _emit(self, event: str, **fields: str | int) -> None:
        if self._events is not None:
            self._events.emit(event, fields)


def gone(image: Image, why: str) -> ImageNotFound:
    return ImageNotFound(
        f"the Docker Engine has no image {image.name}: {why}",
        hint="it was removed meanwhile; import or pull it again",
        image=image.name,
    )


def _shown(name: str, details: Mapping[str, Any]) -> Image:
    entries = (details.get("Config") or {}).get("Env") or ()
    pairs = (entry.split("=", 1) for entry in entries if "=" in entry)
    # Untrusted: skip what no shell can express, and what is a file rather than a value.
    env = {key: value for key, value in pairs if _NAME.match(key) and len(value) <= _VALUE_CHARS}
    return Image(name=tagged(name), kind="engine", id=str(details.get("Id", "")), env=env)


def tagged(name: str) -> str:
    """Return the name with the tag that an engine assumes."""
    if "@" in name or name.startswith("sha256:") or ":" in name.rpartition("/")[2]:
        return name
    return f"{name}:latest"


def _first_cause(exc: BaseException) -> BaseException:
    """Return the error that ended an upload: it may come from reading the source, not from
    sending.
    """
    at: BaseException | None = exc.__cause__
    while at is not None:
        if isinstance(at, SandkastenError):
            return at
        at = at.__cause__ or at.__context__
    return exc
