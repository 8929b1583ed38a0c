"""How long a daemon that was there may be away: one that is killed is back within seconds.

Who follows a command or sits at a terminal waits for it and goes on where it was; who has never
reached it is told so at once.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from sandkasten.errors import BackendUnavailable

AWAY_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0


class Patience:
    def __init__(self) -> None:
        self.reached = False
        self._since: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    def there(self) -> None:
        """It answers (again)."""
        self.reached = True
        self._since = None
        self._pause_s = _FIRST_PAUSE_S

    async def wait(self, what: str, hint: str, cause: BaseException | None) -> None:
        """A moment before the next try; BackendUnavailable when it has been away for too long."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since > AWAY_S or not self.reached:
            raise BackendUnavailable(what, hint=hint) from cause
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
