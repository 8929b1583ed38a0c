"""What the routes of one daemon share: the engine, its stores and the limits of requests.

Created by `daemon.daemon_assembly`; opens and closes nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from sandkasten.lazy_dataclass import dataclass
from sandkasten.ports import UNTRACED
from sandkasten_server.api.dashboard.browser_logins import Logins
from sandkasten_server.api.http_limits import HttpLimits
from sandkasten_server.api.request.large_bodies import LargeBodies

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from sandkasten.model.sandbox.network_policy import NetworkCounts
    from sandkasten.ports import (
        AuditLog,
        Clock,
        EventSink,
        FileStore,
        Journal,
        Keys,
        Tracing,
    )
    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_server.api.previews.preview_access import Previews
    from sandkasten_server.api.request.authentication import Doorkeeper

T = TypeVar("T")


class Exposition(Protocol):
    """Metrics as text for a collector."""

    def render(
        self, sessions: Mapping[tuple[str, str], int], network: NetworkCounts
    ) -> tuple[bytes, str]:
        """Return the text and its content type. `sessions` counts them by state and backend."""
        ...


@dataclass(slots=True)
class Stores:
    """The records of a daemon; None for those that it does not keep."""

    journal: Journal | None = None
    audit: AuditLog | None = None
    keys: Keys | None = None
    files: FileStore | None = None


@dataclass(slots=True)
class DaemonFacts:
    """What a daemon reports about itself."""

    version: str = ""
    settings: tuple[Mapping[str, Any], ...] = ()
    """Each setting in force: name, value and origin; secrets are masked."""
    metrics: Exposition | None = None
    plugin_problems: Callable[[], Sequence[str]] = tuple
    """Returns one sentence for each plugin that cannot be used. Blocking: imports plugins."""


class Observation(Generic[T]):
    """A result of looking at the machine that all clients share for some seconds."""

    def __init__(self) -> None:
        self._looking = asyncio.Lock()
        self._last: tuple[float, T] | None = None

    async def get(self, clock: Clock, max_age_s: float, look: Callable[[], Awaitable[T]]) -> T:
        """Return the last result, or that of `look` if the last one is too old."""
        now = clock.boottime()
        async with self._looking:
            # A caller that waited for the look of another one uses its result.
            if self._last is None or now - self._last[0] > max_age_s:
                result = await look()
                self._last = (clock.boottime(), result)
            return self._last[1]


@dataclass(slots=True)
class ObservedHealth:
    not_ready: Observation[str | None] = field(default_factory=Observation)
    """Why no sandbox can be created on the default backend; None if one can."""
    machine: Observation[Mapping[str, Any]] = field(default_factory=Observation)
    """The answer of `/v1/doctor`, without the backends."""
    backends: Observation[Sequence[Mapping[str, Any]]] = field(default_factory=Observation)


@dataclass(slots=True)
class Server:
    """The parts of one daemon that routes use."""

    engine: Engine
    doorkeeper: Doorkeeper
    clock: Clock
    rules: HttpLimits = field(default_factory=HttpLimits)
    stores: Stores = field(default_factory=Stores)
    previews: Previews | None = None
    logins: Logins = field(default_factory=Logins)
    large_bodies: LargeBodies = field(default_factory=LargeBodies)
    services: dict[type[Any], Any] = field(default_factory=dict)
    """What plugins have opened for their routes, by its class."""
    events: EventSink | None = None
    tracing: Tracing = UNTRACED
    facts: DaemonFacts = field(default_factory=DaemonFacts)
    health: ObservedHealth = field(default_factory=ObservedHealth)
    draining: bool = False
    """Set on SIGTERM: `/readyz` says so, and nothing new is begun."""

    def service(self, kind: type[T]) -> T | None:
        """Return what a plugin has opened for its routes; None if it has opened nothing."""
        service: T | None = self.services.get(kind)
        return service
