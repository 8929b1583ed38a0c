"""Rechecks the key of a stream or terminal that stays open.

A key is checked when a request arrives. A key that is revoked or expires must not live on in what
it opened. Cancels the task that serves the request, which reports the reason.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sandkasten.errors import SandkastenError

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_EVERY_S: Final = 2.0


class Held:
    """Created by the task that serves the request; always call `end`."""

    def __init__(self, check: Callable[[], object]) -> None:
        """Start. `check` raises when the principal is no longer admitted."""
        self.lost: SandkastenError | None = None
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        try:
            self._check()
        except SandkastenError as exc:
            self.lost = exc
            self._task.cancel()
            return
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)

    def end(self) -> None:
        self._timer.cancel()
