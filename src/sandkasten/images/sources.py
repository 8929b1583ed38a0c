"""Where images come from besides archives: registries, Debian's packages, recipes of steps.

Keeps what each of them needs from the settings, and imports one only when it is used: most
processes never fetch or build anything. Blocking; an event calls it off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from sandkasten.images.auth import Access
    from sandkasten.images.bootstrap import Built
    from sandkasten.images.store import LayerStore, StoredImage
    from sandkasten.model.images import ImageProgress

    Report = Callable[[ImageProgress], None]

# A bootstrap downloads as much as a large image.
BUILD_TIMEOUT_S = 3600.0


class Sources:
    """`registries` says how each registry is reached, by host."""

    def __init__(
        self,
        store: LayerStore,
        *,
        registries: Mapping[str, Access] | None = None,
        pull_timeout_s: float = 3600.0,
    ) -> None:
        self._store = store
        self._registries = dict(registries or {})
        self._pull_timeout_s = pull_timeout_s

    def pull(
        self, name: str, platform: str | None, report: Report, called_off: threading.Event
    ) -> StoredImage:
        from sandkasten.images.auth import Keyring
        from sandkasten.images.connections import Patience
        from sandkasten.images.pull import Puller

        puller = Puller(
            self._store, Keyring(self._registries), patience=Patience(whole_s=self._pull_timeout_s)
        )
        return puller.pull(name, platform=platform, progress=report, called_off=called_off)

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
        from sandkasten.images.bootstrap import Bootstrap, debian_recipe

        recipe = debian_recipe(suite, include, variant, mirror)
        return Bootstrap(self._store, timeout_s=BUILD_TIMEOUT_S).build(
            name, recipe, refresh=refresh, progress=report, called_off=called_off
        )
