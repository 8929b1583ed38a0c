"""The capabilities of backend docker. Imports nothing of the backend itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten.model.backends.backend_features import ALL_LIMITS, ALL_NETWORKS, BackendFeatures
from sandkasten.model.backends.capabilities import Capabilities

if TYPE_CHECKING:
    from sandkasten_docker.docker_options import DockerOptions

BACKEND: Final = "docker"
NAMED: Final = f"{BACKEND}/"
"""The beginning of the names of the backends of `backends.docker.engines`."""
DOCKER: Final = Capabilities(
    strength=1,
    external=True,
    platform="Docker Engine",
    named_by="engines",
    own_images=True,
    pull_command="docker pull",
    own_workspaces=True,
    remote=True,
    refuses_networks=True,
    features=BackendFeatures(
        summary="containers of a Docker Engine",
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
        gpus=True,
        notes=(
            "Volumes have no size: the limit workspace requires workspace_mode bind, as root.",
            "Host mounts require a Docker Engine that sees the files of the daemon's machine.",
            "Secrets require a socket or TLS between the daemon and the Docker Engine.",
        ),
    ),
)


def docker_capabilities(options: DockerOptions) -> Capabilities:
    return replace(DOCKER, pulls=options.pull)
