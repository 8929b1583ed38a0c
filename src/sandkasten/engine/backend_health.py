"""Which backends did not answer lately, so that nobody queues up at one that is away.

Some backends hold their sandboxes through an engine that can stop, restart or hang while we and
the sandboxes live on. Not answering is no news of any sandbox: it is BackendUnavailable, and never
an end. Whoever looks on nobody's behalf asks `check` first, which lets one look through at a time;
a request of somebody always tries. Backends without such an engine are never noted here. That one
went away, and that it is back, is told to the event sink once each.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable, SandboxLost, SandkastenError
from sandkasten.model.sandbox.isolation_levels import has_engine

if TYPE_CHECKING:
    from types import TracebackType

    from sandkasten.ports import Clock, EventSink

# An engine on the same machine answers in milliseconds, one elsewhere in a few hundred.
LOOK_TIMEOUT_S = 5.0
# As often as the watch goes round; an engine that is back is found that soon.
QUIET_S = 2.0
_AT_ONCE = 4


@dataclass(slots=True)
class _Silence:
    error: BackendUnavailable
    until: float


class Reach:
    def __init__(self, clock: Clock, events: EventSink | None) -> None:
        self._clock = clock
        self._events = events
        self._silent: dict[str, _Silence] = {}
        self._turns: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_AT_ONCE))

    def check(self, backend: str) -> None:
        """BackendUnavailable while it is known not to answer, or somebody else is asking."""
        silence = self._silent.get(backend)
        if silence is None:
            return
        now = self._clock.boottime()
        if now < silence.until:
            raise _copy(silence.error)
        # Ours is the look of this round.
        silence.until = now + LOOK_TIMEOUT_S + QUIET_S

    def knows(self, error: SandkastenError) -> bool:
        """Whether this only says what was told already: that a backend is away."""
        return (
            isinstance(error, BackendUnavailable) and error.details.get("backend") in self._silent
        )

    def names(self) -> list[str]:
        return sorted(self._silent)

    def silent(self) -> list[BackendUnavailable]:
        """What the last one to ask each of them was told."""
        return [_copy(one.error) for _, one in sorted(self._silent.items())]

    def away(self, backend: str, error: BackendUnavailable) -> None:
        if has_engine(backend):
            error.details.setdefault("backend", backend)
            if backend not in self._silent and self._events is not None:
                self._events.emit("backend.away", {"backend": backend, "reason": error.message})
            until = self._clock.boottime() + QUIET_S
            self._silent[backend] = _Silence(_copy(error), until)

    def back(self, backend: str) -> None:
        if self._silent.pop(backend, None) is not None and self._events is not None:
            self._events.emit("backend.back", {"backend": backend})

    def looking(self, backend: str, timeout_s: float) -> _Asking:
        """`asking`, on nobody's behalf: few at a time, and not where it was in vain just now."""
        if not has_engine(backend):
            return self.asking(backend, timeout_s)
        return _Asking(self, backend, LOOK_TIMEOUT_S, self._turns[backend])

    def asking(self, backend: str, timeout_s: float) -> _Asking:
        """Notes whether it answers. TimeoutError passes where there is no engine to be blamed."""
        return _Asking(self, backend, timeout_s, None)


class _Asking:
    """No generator: what is closed when a loop winds down may begin none any more."""

    def __init__(
        self, reach: Reach, backend: str, timeout_s: float, turns: asyncio.Semaphore | None
    ) -> None:
        self._reach = reach
        self._backend = backend
        self._timeout_s = timeout_s
        self._turns = turns
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        if self._turns is not None:
            await self._turns.acquire()
        try:
            if self._turns is not None:
                self._reach.check(self._backend)
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
            if not has_engine(self._backend):
                raise
        finally:
            self._leave()
        if isinstance(error, TimeoutError) and has_engine(self._backend):
            late = silent(self._backend, self._timeout_s)
            self._reach.away(self._backend, late)
            raise late from error
        if isinstance(error, BackendUnavailable):
            self._reach.away(self._backend, error)
        elif error is None or isinstance(error, SandboxLost):
            # That it is gone is an answer, too.
            self._reach.back(self._backend)

    def _leave(self) -> None:
        if self._turns is not None:
            self._turns.release()


def silent(backend: str, timeout_s: float) -> BackendUnavailable:
    return BackendUnavailable(
        f"backend {backend} did not answer within {timeout_s:g} s",
        hint="its engine hangs or cannot be reached; its sandboxes are left as they are: try again",
        backend=backend,
    )


def _copy(error: BackendUnavailable) -> BackendUnavailable:
    """An exception raised in two tasks would collect both their tracebacks."""
    return BackendUnavailable(error.message, hint=error.hint, **error.details)
