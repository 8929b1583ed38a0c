"""Operator options for the Docker Engine: data only, checked where settings are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from sandkasten.model.images.pull_rules import PullMode

EngineMode = Literal["auto", "docker_socket", "sidecar", "remote"]
WorkspaceMode = Literal["auto", "bind", "volume", "shared", "archive"]

ENGINE_MODES: Final = ("auto", "docker_socket", "sidecar", "remote")
WORKSPACE_MODES: Final = ("auto", "bind", "volume", "shared", "archive")
SHARED_VOLUME: Final = "station-sandboxes"


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """Options. An empty `host` means that DOCKER_HOST is not set either, and the usual sockets
    are tried.
    """

    host: str = ""
    """`unix:///path`, `tcp://host:port` or `ssh://[user@]host[:port][/path/to/socket]`."""
    engine: EngineMode = "auto"
    """What the operator expects to find there; `auto` accepts anything."""
    workspace: WorkspaceMode = "auto"
    workspace_dir: str = ""
    """Directory of the engine's machine in which workspaces are stored; empty: none."""
    shared_volume: str = SHARED_VOLUME
    require_workspace_limit: bool = False
    """Refuse a Docker Engine that cannot enforce the size of workspaces."""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    """Paths. A tcp address without them is refused unless it is loopback or a sidecar."""
    insecure: bool = False
    """Allow plain tcp to an engine beyond loopback."""
    pull: PullMode = "named"
    """Whether the engine may pull an image that it does not have."""
    timeout_s: float = 60.0
    """Deadline of one request to the engine."""
