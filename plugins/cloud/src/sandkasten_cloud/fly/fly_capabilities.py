"""The capabilities of backend fly. Imports nothing of the provider."""

from __future__ import annotations

from typing import Final

from sandkasten.model.backends.backend_features import BackendFeatures
from sandkasten_cloud.cloud_capabilities import machine_capabilities

FLY: Final = machine_capabilities(
    BackendFeatures(
        summary="microVMs of Fly (Fly Machines)",
        sessions=True,
        networks=("none", "full"),
        notes=(
            "Images are those of a registry that Fly reaches, with the programs of Sandkasten.",
            "Processors and memory are those of the next size that Fly has.",
            "The gate in a machine ends it after backends.fly.lifetime_seconds.",
        ),
    )
)
