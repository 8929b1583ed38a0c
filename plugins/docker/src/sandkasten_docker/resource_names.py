"""Names, labels and inner paths of our resources in an engine. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from sandkasten.model.ids import SandboxId

LABEL: Final = "sandkasten"
"""On each of our resources; its value is the kind: cell, runner, content, workspace, probe."""
LABEL_ID: Final = "sandkasten.id"
LABEL_SESSION: Final = "sandkasten.session_id"
"""The same, under the name that tools for other implementations filter by."""
LABEL_OWNER: Final = "sandkasten.owner"
"""The installation (a data directory) that owns the resource: no other installation removes it."""
LABEL_SOURCE: Final = "sandkasten.source"
"""On a copy of one of our directories: where it came from."""
LABEL_NAME: Final = "sandkasten.name"
"""On a named workspace."""
LABEL_IMAGE: Final = "sandkasten.image"
LABEL_VERSION: Final = "sandkasten.version"

CELL: Final = "cell"
RUNNER: Final = "runner"
PROBE: Final = "probe"
CONTENT: Final = "content"
WORKSPACE: Final = "workspace"

STORE_REPOSITORY: Final = "sandkasten-store"
"""Images of our store as the engine names them: `sandkasten-store:<hex of the id>`."""

_VOLUME = "station-sandbox-"
_ID = re.compile(r"[a-z]+_[0-9a-f]{16,64}\Z")

RUNNER_DIR: Final = "/run/sandkasten"
BIN_DIR: Final = f"{RUNNER_DIR}/bin"
RUNNER_PATH: Final = f"{BIN_DIR}/runner"
STATE_DIR: Final = f"{RUNNER_DIR}/state"
LISTEN_DIR: Final = f"{RUNNER_DIR}/listen"
SOCKET: Final = "socket"
SOCKET_PATH: Final = f"{LISTEN_DIR}/{SOCKET}"


def container_name(sandbox_id: SandboxId) -> str:
    return str(sandbox_id)


def volume_name(sandbox_id: SandboxId) -> str:
    """Return the name of a session's own volume: its workspace."""
    return f"{_VOLUME}{sandbox_id}"


def home_volume_name(sandbox_id: SandboxId) -> str:
    return f"{_VOLUME}{sandbox_id}-home"


def image_volume_name(sandbox_id: SandboxId, number: int) -> str:
    """Return the name of a volume that the image declares."""
    return f"{_VOLUME}{sandbox_id}-image{number}"


def egress_volume_name(sandbox_id: SandboxId) -> str:
    return f"{_VOLUME}{sandbox_id}-egress"


def trust_volume_name(sandbox_id: SandboxId) -> str:
    """Return the name of the volume with the certificates of an inspected sandbox."""
    return f"{_VOLUME}{sandbox_id}-tls"


def network_containers(sandbox_id: SandboxId) -> tuple[str, str]:
    """Return the names of the containers that `egress_containers` makes: outside and inside."""
    return f"{sandbox_id}-egress", f"{sandbox_id}-inside"


def runner_volume_name(digest: str) -> str:
    """Return the volume name. `digest` is the sha256 of the runner, so that older sandboxes
    keep theirs.
    """
    return f"sandkasten-runner-{digest[:16]}"


def kept_volume_names(owner: str, workspace: str) -> tuple[str, str]:
    """Return the volumes of a named workspace: its files and its home.

    A digest, because a tenant's name has characters that no volume's name may have.
    """
    digest = hashlib.sha256(f"{owner} {workspace}".encode()).hexdigest()
    return f"sandkasten-workspace-{digest[:32]}", f"sandkasten-workspace-{digest[:32]}-home"


def content_volume_name(owner: str, content: str) -> str:
    """Return the name of the volume with a copy of this content; other installations have
    their own.
    """
    digest = hashlib.sha256(f"{owner} {content}".encode()).hexdigest()
    return f"sandkasten-content-{digest[:32]}"


def store_reference(image_id: str) -> str:
    return f"{STORE_REPOSITORY}:{image_id.removeprefix('sha256:')[:64]}"


def id_in(text: str) -> SandboxId | None:
    """Return the id in a label; None if it is not a valid one."""
    return SandboxId(text) if _ID.match(text) else None
