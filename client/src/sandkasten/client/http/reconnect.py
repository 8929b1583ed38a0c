"""How long a known daemon may be unreachable: after a crash it is back within seconds.

A client that follows a command or uses a terminal waits and then continues. A client that has never
reached the daemon gets the error at once.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from sandkasten.errors import BackendUnavailable
from sandkasten.model.retries import Backoff

AWAY_S: Final = 30.0
_BACKOFF: Final = Backoff(first_s=0.1, max_s=1.0)


class Patience:
    def __init__(self) -> None:
        self.reached = False
        self._since: float | None = None
        self._failures = 0

    def there(self) -> None:
        """Note that the daemon answers, for the first time or again."""
        self.reached = True
        self._since = None
        self._failures = 0

    async def wait(self, what: str, hint: str, cause: BaseException | None) -> None:
        """Pause before the next attempt; BackendUnavailable if it was unreachable for too long."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > AWAY_S or not self.reached:
            raise BackendUnavailable(what, hint=hint) from cause
        self._failures += 1
        await asyncio.sleep(_BACKOFF.pause_s(self._failures))
