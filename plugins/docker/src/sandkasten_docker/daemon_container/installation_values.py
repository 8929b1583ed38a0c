"""A daemon that runs as a container on an engine: requests and results of `up` and `down`."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

Begun = Literal["created", "replaced", "running"]


@dataclass(frozen=True, slots=True)
class InstallationRequest:
    """What `up` was asked for; empty fields come from the settings or the engine."""

    image: str = ""
    mode: str = "docker_socket"
    socket: str = ""
    """Of the engine, on the engine's machine."""
    docker_engine_image: str = ""
    """In mode sidecar."""
    docker_host: str = ""
    docker_certs: str = ""
    """In mode remote: the other engine, and the directory of our certificate for it."""
    agents: str | None = None
    workflows: str | None = None
    """Directories to mount; None: `agents` and `workflows` here, if they exist. Empty: none."""
    env: Mapping[str, str] = field(default_factory=dict)
    recreate: bool = False
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Installed:
    begun: Begun
    url: str
    image: str
    mode: str
    machine: str = ""
    """The engine's address, where its machine is another."""
    api_key: str | None = field(default=None, repr=False)
    """Only if it was just created: it is never shown twice."""
    changed: bool = False
    """It was running already, and not as it was asked for now."""
    notes: tuple[str, ...] = ()
    """What it did not get, and how to give it."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What would be made."""

    document: Mapping[str, Any]
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    state: str
    """As the engine calls it; `absent` when there is no container."""
    ready: bool = False
    reason: str = ""
    remedy: str = ""
    url: str = ""
    image: str = ""
    mode: str = ""
    version: str = ""
    started_at: str = ""
    sandboxes: int = 0


@dataclass(frozen=True, slots=True)
class Removed:
    """Names of what was removed; empty where there was nothing."""

    containers: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """Our volumes that are still there."""
