"""What the backend modal can do. Nothing of the provider is imported here."""

from __future__ import annotations

from typing import Final

from sandkasten.backends.cloud.cloud_capabilities import machine
from sandkasten.model.backends.backend_features import BackendFeatures

MODAL: Final = machine(
    BackendFeatures(
        summary="sandboxes of Modal",
        sessions=True,
        networks=("none", "full"),
        limits=("cpu", "memory"),
        snapshots=True,
        notes=(
            "Images are those for linux/amd64 in a registry that Modal can read.",
            "Modal ends a sandbox after backends.modal.lifetime_seconds.",
        ),
    )
)
