"""The capabilities of backend dagger. Imports nothing of the backend itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten.model.backends.backend_features import BackendFeatures
from sandkasten.model.backends.capabilities import Capabilities

if TYPE_CHECKING:
    from sandkasten_dagger.dagger_options import DaggerOptions

DAGGER: Final = Capabilities(
    strength=1,
    external=True,
    platform="Dagger Engine",
    run_once=True,
    own_images=True,
    refuses_networks=True,
    features=BackendFeatures(
        summary="containers of a Dagger Engine",
        networks=("none", "full"),
        packages=True,
        notes=(
            "It runs one-shots alone, and their output comes when they have ended.",
            "A network is that of an engine: backends.dagger.engines.none and .egress.",
            "Processors, memory, processes and disk are limited for the whole engine.",
            "Packages are installed by backend local, for images of the store.",
        ),
    ),
)


def dagger_capabilities(options: DaggerOptions) -> Capabilities:
    return replace(DAGGER, pulls=options.pull)
