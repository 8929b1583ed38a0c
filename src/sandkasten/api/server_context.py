"""What the routes of one daemon share: the engine, its stores and the limits of requests.

Created by `daemon.daemon_assembly`; opens and closes nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from sandkasten.api.dashboard.browser_logins import Logins
from sandkasten.api.http_limits import HttpLimits
from sandkasten.api.request.large_bodies import LargeBodies
from sandkasten.api.response.large_answers import LargeAnswers
from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports import UNTRACED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from sandkasten.api.previews.preview_access import Previews
    from sandkasten.api.request.authentication import Doorkeeper
    from sandkasten.engine.engine import Engine
    from sandkasten.model.sandbox.network_policy import NetworkCounts
    from sandkasten.ports import (
        AuditLog,
        Clock,
        EventSink,
        FileStore,
        Journal,
        Keys,
        TenantAgents,
        Tracing,
    )


class Exposition(Protocol):
    """Metrics as text for a collector."""

    def render(
        self, sessions: Mapping[tuple[str, str], int], network: NetworkCounts
    ) -> tuple[bytes, str]:
        """Return the text and its content type. `sessions` counts them by state and backend."""
        ...


@dataclass(slots=True)
class Server:
    engine: Engine
    doorkeeper: Doorkeeper
    clock: Clock
    rules: HttpLimits = field(default_factory=HttpLimits)
    journal: Journal | None = None
    audit: AuditLog | None = None
    keys: Keys | None = None
    files: FileStore | None = None
    previews: Previews | None = None
    logins: Logins = field(default_factory=Logins)
    large_bodies: LargeBodies = field(default_factory=LargeBodies)
    large_answers: LargeAnswers = field(default_factory=LargeAnswers)
    agents: TenantAgents | None = None
    open_agents: Callable[[], Awaitable[TenantAgents]] | None = None
    """Puts them together when they are first asked for; UnsupportedByBackend says why it cannot."""
    events: EventSink | None = None
    metrics: Exposition | None = None
    tracing: Tracing = UNTRACED
    version: str = ""
    settings: tuple[Mapping[str, Any], ...] = ()
    """Each setting in force: name, value and origin; secrets are masked."""
    draining: bool = False
    """Set on SIGTERM: `/readyz` says so, and nothing new is begun."""
    probing: asyncio.Lock = field(default_factory=asyncio.Lock)
    probed: tuple[float, str | None] | None = None
    """When the backend was last looked at, and what was wrong with it."""
    examining: asyncio.Lock = field(default_factory=asyncio.Lock)
    examined: tuple[float, Mapping[str, Any]] | None = None
    surveying: asyncio.Lock = field(default_factory=asyncio.Lock)
    surveyed: tuple[float, Sequence[Mapping[str, Any]]] | None = None
    """When all backends were last looked at, and their reports."""
    """When `/v1/doctor` last looked at the machine, and what it answered."""
