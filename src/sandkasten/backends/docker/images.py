"""Images as the engine has them: ours are given to it once, its own are used as they are.

An image of our store is loaded under a name made of its id, with the layer that knows the sandbox's
user. Raises InvalidImage, UnsupportedByBackend, QuotaExceeded, RegistryUnavailable.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sandkasten.errors import (
    InvalidImage,
    RegistryUnavailable,
    Unauthorized,
    UnsupportedByBackend,
)
from sandkasten.model.image import Image

from . import names
from .client import EngineClient, Refused, translated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.ports import ImagePacker

    from .options import Options

_DENIED = ("denied", "unauthorized", "authentication required")
_UNKNOWN = ("not found", "manifest unknown", "does not exist", "no such image")


class EngineImages:
    def __init__(self, engine: EngineClient, options: Options, packer: ImagePacker | None) -> None:
        self._engine = engine
        self._pull = options.pull
        self._packer = packer
        self._loading: dict[str, asyncio.Lock] = {}

    async def reference(self, image: Image) -> str:
        """What to call it when a container is made; it is there when this returns."""
        if image.kind == "engine":
            return image.id or image.name
        if image.kind == "host":
            raise UnsupportedByBackend(
                "the host image cannot be had on docker: an engine has images of its own",
                hint="name an image of the store (sandkasten image ls) or of the engine",
                image=image.name,
            )
        reference = names.store_reference(image.id)
        async with self._loading.setdefault(reference, asyncio.Lock()):
            if await self._known(reference) is None:
                await self._load(image, reference)
        return reference

    async def _load(self, image: Image, reference: str) -> None:
        if self._packer is None:
            raise UnsupportedByBackend(
                f"image {image.name} is in our store and cannot be given to the engine here",
                hint="use an image that the engine has",
                image=image.name,
            )
        if not image.id:
            raise InvalidImage(f"image {image.name} has no id", hint="import it again")
        try:
            await self._engine.load(self._packer.archive(image, reference))
        except Refused as exc:
            raise translated(exc, f"image {image.name} could not be given to the engine") from exc
        if await self._known(reference) is None:
            raise InvalidImage(
                f"the engine took image {image.name} and does not know it",
                hint="look into the engine's own log",
                image=image.name,
            )

    async def find(self, wanted: Sequence[str]) -> Image | None:
        """See `ports.KeepsImages`."""
        if self._pull != "always":
            for name in wanted:
                found = await self._known(name)
                if found is not None:
                    return _shown(name, found)
        if self._pull == "never" or not wanted:
            return None
        name = wanted[-1]
        await self._pulled(name)
        found = await self._known(name)
        return None if found is None else _shown(name, found)

    async def _known(self, name: str) -> Mapping[str, Any] | None:
        try:
            return await self._engine.image(name)
        except Refused as exc:
            # A name that cannot be one; ours was checked, but engines have their own rules.
            raise InvalidImage(
                f"the engine knows no image {name}: {exc.message}", hint="check its name"
            ) from exc

    async def _pulled(self, name: str) -> None:
        try:
            await self._engine.pull(name if ":" in name.rpartition("/")[2] else f"{name}:latest")
        except Refused as exc:
            told = exc.message.lower()
            if any(words in told for words in _DENIED):
                raise Unauthorized(
                    f"the engine may not pull {name}: {exc.message}",
                    hint="log the engine in to that registry, or check the name",
                ) from exc
            if any(words in told for words in _UNKNOWN):
                raise InvalidImage(
                    f"no registry has {name}: {exc.message}", hint="check its name", image=name
                ) from exc
            raise RegistryUnavailable(
                f"the engine could not pull {name}: {exc.message}",
                hint="see whether the engine's machine reaches the registry",
            ) from exc


def _shown(name: str, found: Mapping[str, Any]) -> Image:
    told = (found.get("Config") or {}).get("Env") or ()
    env = dict(one.split("=", 1) for one in told if "=" in one)
    return Image(name=name, kind="engine", id=str(found.get("Id", "")), env=env)
