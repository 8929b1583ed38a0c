"""What the routes of one daemon share: the engine, the stores and the rules.

Created by the composition root; opens and closes nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sandkasten.api.request.authentication import Doorkeeper
    from sandkasten.engine.engine import Engine
    from sandkasten.ports import Clock, EventSink, FileStore, Journal, Keys, TenantAgents

MIB = 1 << 20


class Exposition(Protocol):
    """Metrics as text for a collector."""

    def render(self, sessions: Mapping[tuple[str, str], int]) -> tuple[bytes, str]:
        """Return the text and its content type. `sessions` counts them by state and backend."""
        ...


@dataclass(frozen=True, slots=True)
class HttpRules:
    """The operator's settings for HTTP."""

    allowed_hosts: tuple[str, ...] = ()
    """Names besides loopback ones that a `Host` header may carry; `*`: any."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of pages that may speak to us; none by default."""
    max_json_bytes: int = 16 * MIB
    """A file of 10 MB in base64, with room around it."""
    max_upload_bytes: int = 10 << 30
    """Of one streamed body; the sandbox's quota stops it earlier."""
    body_timeout_s: float = 8.0
    """Between two pieces of a JSON body; and all of it together beyond what its size allows."""
    upload_timeout_s: float = 60.0
    """Between two pieces of a streamed body; ten times that in all, beyond what its size allows."""
    header_timeout_s: float = 8.0
    """From the connection, or the first byte of a request, to the end of its headers."""
    write_timeout_s: float = 60.0
    """How long somebody who reads an answer may take nothing of it."""
    max_header_bytes: int = 32 * 1024
    max_headers: int = 100
    metrics_open: bool = False
    """`/metrics` without a key; otherwise it takes the scope `metrics`."""


@dataclass(slots=True)
class Server:
    engine: Engine
    doorkeeper: Doorkeeper
    clock: Clock
    rules: HttpRules = field(default_factory=HttpRules)
    journal: Journal | None = None
    keys: Keys | None = None
    files: FileStore | None = None
    agents: TenantAgents | None = None
    open_agents: Callable[[], Awaitable[TenantAgents]] | None = None
    """Puts them together when they are first asked for; UnsupportedByBackend says why it cannot."""
    events: EventSink | None = None
    metrics: Exposition | None = None
    version: str = ""
    draining: bool = False
    """Set on SIGTERM: `/readyz` says so, and nothing new is begun."""
    probing: asyncio.Lock = field(default_factory=asyncio.Lock)
    probed: tuple[float, str | None] | None = None
    """When the backend was last looked at, and what was wrong with it."""
