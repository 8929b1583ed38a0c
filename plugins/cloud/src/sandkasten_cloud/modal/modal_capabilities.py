"""The capabilities of backend modal. Imports nothing of the provider."""

from __future__ import annotations

from typing import Final

from sandkasten.model.backends.backend_features import BackendFeatures
from sandkasten_cloud.cloud_capabilities import machine_capabilities

MODAL: Final = machine_capabilities(
    BackendFeatures(
        summary="sandboxes of Modal",
        sessions=True,
        networks=("none", "full"),
        limits=("cpu", "memory"),
        notes=(
            "Images are those for linux/amd64 in a registry that Modal can read.",
            "Modal ends a sandbox after backends.modal.lifetime_seconds.",
        ),
    )
)
