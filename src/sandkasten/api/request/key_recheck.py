"""A stream or a terminal that stays open, looked at now and then: is its key still one?

A key is checked when a request comes. One that is revoked, or ends, must not go on through what
it opened before. Knows no route; ends the task that serves the request, which says the rest.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sandkasten.errors import SandkastenError

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_EVERY_S: Final = 2.0


class Held:
    """Made by the task that serves the request; `end` it in any case."""

    def __init__(self, check: Callable[[], object]) -> None:
        """`check` raises when whoever opened it may no longer come in."""
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
