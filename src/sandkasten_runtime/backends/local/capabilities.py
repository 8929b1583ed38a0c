"""The capabilities of backend local. Imports nothing of the backend itself."""

from __future__ import annotations

from typing import Final

from sandkasten.model.backends.backend_features import ALL_LIMITS, ALL_NETWORKS, BackendFeatures
from sandkasten.model.backends.capabilities import Capabilities

LOCAL: Final = Capabilities(
    strength=1,
    counts_after_end=True,
    reads_changes=True,
    copies_files=True,
    features=BackendFeatures(
        summary="kernel features, set up with bubblewrap",
        sessions=True,
        networks=ALL_NETWORKS,
        network_updates=True,
        secrets=True,
        limits=ALL_LIMITS,
        workspaces=True,
        mounts=True,
        packages=True,
        dev_profile=True,
        pause=True,
        snapshots=True,
        resize=True,
        notes=(
            "Without root on the host: no dev profile, pause and resize, fewer limits, and no "
            "writable host mounts.",
            "It alone can build images, as root.",
        ),
    ),
)
