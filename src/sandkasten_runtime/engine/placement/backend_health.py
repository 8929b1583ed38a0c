"""Remember which backends did not answer, so that requests do not wait for one.

Some backends hold their sandboxes through an engine that can stop, restart or hang while the daemon
and the sandboxes live on. A missing answer shows nothing about any sandbox: it raises
BackendUnavailable and never counts as an end. Background checks call `check` first, which lets one
through at a time; a client's request always tries. Backends without an engine are never recorded
here. The event sink is called once when a backend becomes unreachable and once when it answers
again.

One of several `ports.Places` of a backend can be unreachable while the others answer: an error with
`place` in its details does not affect the others.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable, SandboxLost, SandkastenError
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from sandkasten.ports import Backend, Clock, EventSink

# An engine on the same machine answers in milliseconds, a remote one in a few hundred.
LOOK_TIMEOUT_S = 5.0
# A list is longer the more sandboxes there are: that of 10,000 Pods has 40 pages, each of which the
# backend bounds by itself.
LIST_TIMEOUT_S = 30.0
# The interval of the watch; the return of an engine is noticed this soon.
QUIET_S = 2.0
_AT_ONCE = 4
_Site = tuple[str, str]
"""A backend and one of its places; an empty place stands for all of the backend."""


@dataclass(slots=True)
class _Silence:
    error: BackendUnavailable
    until: float


class BackendHealth:
    def __init__(
        self, backends: Mapping[str, Backend], clock: Clock, events: EventSink | None
    ) -> None:
        self._backends = backends
        self._clock = clock
        self._events = events
        self._silent: dict[_Site, _Silence] = {}
        self._turns: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_AT_ONCE))

    def is_external(self, backend: str) -> bool:
        """Return whether a platform holds its sandboxes, which can be unreachable while they live
        on. True for a backend that left the settings.
        """
        configured = self._backends.get(backend)
        return configured is None or configured.capabilities.external

    def check(self, backend: str, place: str = "") -> None:
        """Raise BackendUnavailable while the backend, or this place of it, is known not to answer,
        or another check is running.
        """
        silence = self._silent.get((backend, "")) or self._silent.get((backend, place))
        if silence is None:
            return
        now = self._clock.boottime()
        if now < silence.until:
            raise _copy(silence.error)
        # This caller makes the check of this round.
        silence.until = now + LOOK_TIMEOUT_S + QUIET_S

    def knows(self, error: SandkastenError) -> bool:
        """Return whether the error only repeats that a backend is unreachable."""
        return (
            isinstance(error, BackendUnavailable)
            and _site(str(error.details.get("backend")), error) in self._silent
        )

    def names(self) -> list[str]:
        """Return the backends of which all places are unreachable."""
        return sorted(backend for backend, place in self._silent if not place)

    def errors(self) -> list[BackendUnavailable]:
        """Return the latest error of each unreachable backend or place."""
        return [_copy(entry.error) for _, entry in sorted(self._silent.items())]

    def away(self, backend: str, error: BackendUnavailable) -> None:
        if self.is_external(backend):
            error.details.setdefault("backend", backend)
            site = _site(backend, error)
            if site not in self._silent and self._events is not None:
                self._events.emit(
                    "backend.away", {**_named(site), "reason": error.operator_message}
                )
            until = self._clock.boottime() + QUIET_S
            self._silent[site] = _Silence(_copy(error), until)

    def back(self, backend: str, place: str = "") -> None:
        # A place that answers shows that the backend does.
        for site in {(backend, ""), (backend, place)}:
            if self._silent.pop(site, None) is not None and self._events is not None:
                self._events.emit("backend.back", _named(site))

    def looking(self, backend: str, timeout_s: float, place: str = "") -> _Asking:
        """Guard a background check: few at a time, and none right after a failed one."""
        if not self.is_external(backend):
            return self.asking(backend, timeout_s)
        return _Asking(self, (backend, place), LOOK_TIMEOUT_S, self._turns[backend])

    def listing(self, backend: str) -> _Asking:
        """Guard a list of everything that a backend has, as `looking` does."""
        turns = self._turns[backend] if self.is_external(backend) else None
        return _Asking(self, (backend, ""), LIST_TIMEOUT_S, turns)

    def asking(self, backend: str, timeout_s: float, place: str = "") -> _Asking:
        """Record whether the backend answers. TimeoutError passes through for backends without an
        engine.
        """
        return _Asking(self, (backend, place), timeout_s, None)


class _Asking:
    """A class, not a generator: generators cannot be started while a loop shuts down."""

    def __init__(
        self, health: BackendHealth, site: _Site, timeout_s: float, turns: asyncio.Semaphore | None
    ) -> None:
        self._health = health
        self._backend, self._place = site
        self._timeout_s = timeout_s
        self._turns = turns
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        if self._turns is not None:
            await self._turns.acquire()
        try:
            if self._turns is not None:
                self._health.check(self._backend, self._place)
            self._timeout = asyncio.timeout(self._timeout_s)
            await self._timeout.__aenter__()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as exc:
            error = exc
            if not self._health.is_external(self._backend):
                raise
        finally:
            self._leave()
        if isinstance(error, TimeoutError) and self._health.is_external(self._backend):
            late = no_answer_error(self._backend, self._timeout_s)
            self._health.away(self._backend, late)
            raise late from error
        if isinstance(error, BackendUnavailable):
            self._health.away(self._backend, error)
        elif error is None or isinstance(error, SandboxLost):
            # A dead sandbox is an answer, too.
            self._health.back(self._backend, self._place)

    def _leave(self) -> None:
        if self._turns is not None:
            self._turns.release()


def _site(backend: str, error: BackendUnavailable) -> _Site:
    return backend, str(error.details.get("place") or "")


def _named(site: _Site) -> dict[str, str]:
    backend, place = site
    return {"backend": backend, **({"place": place} if place else {})}


def no_answer_error(backend: str, timeout_s: float) -> BackendUnavailable:
    return BackendUnavailable(
        f"backend {backend} did not answer within {timeout_s:g} s",
        hint="its engine hangs or is unreachable; retry later (its sandboxes are not affected)",
        backend=backend,
    )


def _copy(error: BackendUnavailable) -> BackendUnavailable:
    """Copy the error: an exception raised in two tasks would collect both tracebacks."""
    copy = BackendUnavailable(error.message, hint=error.hint, **error.details)
    for note in getattr(error, "__notes__", ()):
        copy.add_note(note)
    return copy
