"""The capabilities of the backends oci and gvisor. Imports nothing of the backends themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sandkasten.model.backends.backend_features import ALL_LIMITS, ALL_NETWORKS, BackendFeatures
from sandkasten.model.backends.capabilities import Capabilities

OCI: Final = Capabilities(
    strength=1,
    counts_after_end=True,
    copies_files=True,
    features=BackendFeatures(
        summary="kernel features, set up by runc or crun",
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
        gpus=True,
        notes=("It requires root on the host.",),
    ),
)
GVISOR: Final = replace(
    OCI,
    strength=2,
    writable_mounts=False,
    features=replace(
        OCI.features,
        summary="a second kernel, gVisor",
        gpus=False,
        notes=(
            "Host mounts are read-only.",
            "The limit of processes counts what gVisor needs on the host.",
        ),
    ),
)
