"""What an operator may say about the Docker Engine: data alone, checked where settings are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

EngineMode = Literal["auto", "docker_socket", "sidecar", "remote"]
WorkspaceMode = Literal["auto", "bind", "volume", "shared", "archive"]

ENGINE_MODES: Final = ("auto", "docker_socket", "sidecar", "remote")
WORKSPACE_MODES: Final = ("auto", "bind", "volume", "shared", "archive")
SHARED_VOLUME: Final = "station-sandboxes"


@dataclass(frozen=True, slots=True)
class Options:
    """`host` empty: DOCKER_HOST was not set either, and the usual sockets are looked for."""

    host: str = ""
    """`unix:///path`, `tcp://host:port` or `ssh://[user@]host[:port][/path/to/socket]`."""
    engine: EngineMode = "auto"
    """What the operator expects to find there; `auto` takes it as it is."""
    workspace: WorkspaceMode = "auto"
    shared_volume: str = SHARED_VOLUME
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    """Paths. A tcp address without them is refused unless it is loopback or a sidecar."""
    insecure: bool = False
    """Speak to an engine over plain tcp beyond loopback all the same."""
    pull: Literal["never", "missing", "always"] = "never"
    """Whether the engine may ask a registry for an image that it has not."""
    timeout_s: float = 60.0
    """How long one request to the engine may take."""
