"""The capabilities of backend e2b. Imports nothing of the provider."""

from __future__ import annotations

from typing import Final

from sandkasten.model.backends.backend_features import BackendFeatures
from sandkasten_cloud.cloud_capabilities import machine_capabilities

E2B: Final = machine_capabilities(
    BackendFeatures(
        summary="machines of E2B, or of a service with its protocol",
        sessions=True,
        networks=("none", "full"),
        notes=(
            "An image is a template of E2B, which decides about processors, memory and disk.",
            "E2B ends a sandbox after backends.e2b.lifetime_seconds.",
        ),
    )
)
