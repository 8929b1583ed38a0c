"""The backend and the image that a run of the contract is about."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sandkasten.errors import ImageNotFound, InvalidRequest
from sandkasten.model.images.resolved_image import Image
from sandkasten_runtime.assembly.backend_registry import open_backing
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.images.layers.image_store import LayerStore
from sandkasten_runtime.telemetry.log_events import LogEvents

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.ports import Backend
    from sandkasten_runtime.assembly.settings.resolver import Settings


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    backend: str
    image: str = "host"
    lacks: frozenset[str] = frozenset()
    """Programs that the image does not have."""
    settings: Settings = field(default_factory=load)

    def open_backend(self, scratch: Path) -> Backend:
        """Open the backend with `scratch` as its data directory. Raise InvalidRequest for a name
        that is not installed.
        """
        settings = replace(self.settings, data_dir=scratch)
        backends = open_backing(settings, self._images, LogEvents()).backends
        if self.backend not in backends:
            raise InvalidRequest(
                f"no backend {self.backend} is installed",
                hint=f"installed are: {', '.join(backends)}",
                field="backend",
            )
        return backends[self.backend]

    def resolved_image(self, backend: Backend) -> Image:
        if self.image == "host":
            return Image("host")
        if backend.capabilities.own_images:
            return Image(self.image, kind="engine")
        image = self._images.find(self.image)
        if image is None:
            raise ImageNotFound(
                f"the store has no image {self.image}", hint="sandkasten image ls lists them"
            )
        layers, env = self._images.trees(image), dict(image.config.env)
        return Image(self.image, kind="layers", id=image.id, layers=layers, env=env)

    @property
    def _images(self) -> LayerStore:
        return LayerStore(self.settings.data_dir.absolute() / "images")

    @property
    def traits(self) -> frozenset[str]:
        """The words by which markers of tests name this platform."""
        return frozenset({self.backend, "host" if self.image == "host" else "image", "hardened"})

    def provides(self, program: str) -> bool:
        return program not in self.lacks


chosen: SuiteOptions | None = None
"""Set by the command, read by the fixtures of the suite."""
