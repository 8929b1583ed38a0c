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
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable, SandboxLost, SandkastenError
from sandkasten.model.isolation import has_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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

    @asynccontextmanager
    async def looking(self, backend: str, timeout_s: float) -> AsyncIterator[None]:
        """`asking`, on nobody's behalf: few at a time, and not where it was in vain just now."""
        if not has_engine(backend):
            async with self.asking(backend, timeout_s):
                yield
            return
        async with self._turns[backend]:
            self.check(backend)
            async with self.asking(backend, LOOK_TIMEOUT_S):
                yield

    @asynccontextmanager
    async def asking(self, backend: str, timeout_s: float) -> AsyncIterator[None]:
        """Notes whether it answers. TimeoutError passes where there is no engine to be blamed."""
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except BackendUnavailable as exc:
            self.away(backend, exc)
            raise
        except TimeoutError as exc:
            if not has_engine(backend):
                raise
            error = silent(backend, timeout_s)
            self.away(backend, error)
            raise error from exc
        except SandboxLost:
            # An answer.
            self.back(backend)
            raise
        self.back(backend)


def silent(backend: str, timeout_s: float) -> BackendUnavailable:
    return BackendUnavailable(
        f"backend {backend} did not answer within {timeout_s:g} s",
        hint="its engine hangs or cannot be reached; its sandboxes are left as they are: try again",
        backend=backend,
    )


def _copy(error: BackendUnavailable) -> BackendUnavailable:
    """An exception raised in two tasks would collect both their tracebacks."""
    return BackendUnavailable(error.message, hint=error.hint, **error.details)
