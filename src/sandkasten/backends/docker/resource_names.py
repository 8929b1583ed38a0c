"""What our things are called in an engine: names, labels and places inside. Pure."""

from __future__ import annotations

import re
from typing import Final

from sandkasten.model.ids import SandboxId

LABEL: Final = "sandkasten"
"""On everything of ours; its value is the kind of thing: cell, runner, probe, image."""
LABEL_ID: Final = "sandkasten.id"
LABEL_OWNER: Final = "sandkasten.owner"
"""The installation (a data directory) that it belongs to: nobody else takes it away."""
LABEL_IMAGE: Final = "sandkasten.image"
LABEL_VERSION: Final = "sandkasten.version"

CELL: Final = "cell"
RUNNER: Final = "runner"
PROBE: Final = "probe"

STORE_REPOSITORY: Final = "sandkasten-store"
"""Images of our own store, as they are called in the engine: `sandkasten-store:<hex of the id>`."""

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
    """Of a session's own volume: its workspace."""
    return f"{_VOLUME}{sandbox_id}"


def home_volume_name(sandbox_id: SandboxId) -> str:
    return f"{_VOLUME}{sandbox_id}-home"


def image_volume_name(sandbox_id: SandboxId, number: int) -> str:
    """Of one that the image declares."""
    return f"{_VOLUME}{sandbox_id}-image{number}"


def runner_volume_name(digest: str) -> str:
    """`digest`: sha256 of the runner, so that an older runner's sandboxes keep theirs."""
    return f"sandkasten-runner-{digest[:16]}"


def store_reference(image_id: str) -> str:
    return f"{STORE_REPOSITORY}:{image_id.removeprefix('sha256:')[:64]}"


def id_in(text: str) -> SandboxId | None:
    """An id from a label; None when it can be none of ours."""
    return SandboxId(text) if _ID.match(text) else None
