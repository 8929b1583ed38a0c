"""Sources of images besides archives: registries, Debian packages, recipes of steps.

Keeps their settings, and imports each one only when it is used: most processes never fetch or build
anything. A bootstrap is blocking, and an event cancels it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sandkasten.errors import UnsupportedByBackend

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from sandkasten.images.builder.debian_bootstrap import Built
    from sandkasten.images.builder.recipe import Recipe
    from sandkasten.images.layers.image_store import LayerStore, StoredImage
    from sandkasten.images.registry.registry_credentials import Access
    from sandkasten.model.images.image_info import ImageProgress
    from sandkasten.ports import Workbench

    Report = Callable[[ImageProgress], None]

# A bootstrap downloads as much as a large image.
BUILD_TIMEOUT_S = 3600.0


class Sources:
    """`registries` are the settings of each registry, by host; `read_recipe` reads YAML."""

    def __init__(
        self,
        store: LayerStore,
        *,
        registries: Mapping[str, Access] | None = None,
        pull_timeout_s: float = 3600.0,
        read_recipe: Callable[[Path], object] | None = None,
    ) -> None:
        self._store = store
        self._read_recipe = read_recipe
        self._registries = dict(registries or {})
        self._pull_timeout_s = pull_timeout_s

    async def pull(self, name: str, platform: str | None, progress: Report | None) -> StoredImage:
        from sandkasten.images.registry.puller import Puller
        from sandkasten.images.registry.registry_credentials import Keyring
        from sandkasten.images.registry.registry_http import Patience

        puller = Puller(
            self._store, Keyring(self._registries), patience=Patience(whole_s=self._pull_timeout_s)
        )
        return await puller.pull(name, platform=platform, progress=progress)

    def debian(
        self,
        name: str,
        *,
        suite: str,
        include: Sequence[str],
        variant: str,
        mirror: str | None,
        refresh: bool,
        report: Report,
        called_off: threading.Event,
    ) -> Built:
        from sandkasten.images.builder.debian_bootstrap import Bootstrap, debian_recipe

        recipe = debian_recipe(suite, include, variant, mirror)
        return Bootstrap(self._store, timeout_s=BUILD_TIMEOUT_S).build(
            name, recipe, refresh=refresh, progress=report, called_off=called_off
        )

    async def recipe(self, file: Path) -> Recipe:
        """Read and check a whole recipe of steps."""
        from sandkasten.images.builder.recipe import parse_recipe

        if self._read_recipe is None:
            raise UnsupportedByBackend(
                "recipes cannot be read here", hint="use the embedded engine"
            )
        return parse_recipe(await asyncio.to_thread(self._read_recipe, file))

    async def steps(
        self,
        name: str,
        base: StoredImage,
        recipe: Recipe,
        context: Path,
        *,
        bench: Workbench,
        refresh: bool,
        progress: Report | None,
    ) -> Built:
        from sandkasten.images.builder.step_builder import StepBuilder

        return await StepBuilder(self._store, bench).build(
            name, base, recipe, context, refresh=refresh, progress=progress
        )
