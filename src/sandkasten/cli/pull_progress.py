"""Show on stderr that a command waits for an image that is being pulled.

An engine in this process reports its pulls as log events. A daemon does not, so after a while the
command says what it waits for.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from sandkasten.cli.output import say, visible

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from sandkasten.cli.state import State
    from sandkasten.model.images.image_info import ImageProgress

# Longer than a create without a pull takes on a busy machine.
_QUIET_S: Final = 3.0


@asynccontextmanager
async def pull_progress(state: State, image: str | None) -> AsyncIterator[None]:
    """Show pulls while the block creates a sandbox of this image."""
    if state.place.url is None:
        with _listening():
            yield
        return
    waiting = None
    if image is not None and ":" in image:
        text = f"waiting for the daemon, which may be pulling {visible(image)}"
        waiting = asyncio.get_running_loop().call_later(_QUIET_S, say, text)
    try:
        yield
    finally:
        if waiting is not None:
            waiting.cancel()


class _listening(logging.Handler):
    """A log handler for as long as a block takes. Imports nothing before the first pull."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._logger = logging.getLogger("sandkasten")
        self._level = logging.NOTSET
        self._bar: Any = None
        self._show: Callable[[ImageProgress], None] | None = None

    def __enter__(self) -> None:
        self._level = self._logger.level
        self._logger.setLevel(logging.DEBUG)
        self._logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        self._close()

    def emit(self, record: logging.LogRecord) -> None:
        fields: Mapping[str, Any] = getattr(record, "sandkasten", {})
        match record.getMessage():
            case "image.pull_started":
                say(f"pulling {visible(str(fields['image']))}")
                self._open()
            case "image.pull_progress" if self._show is not None:
                from sandkasten.model.images.image_info import ImageProgress

                self._show(ImageProgress(fields["step"], fields["done"], fields["total"]))
            case "image.pulled":
                self._close()
                say(f"pulled {visible(str(fields['image']))}")
            case "image.pull_failed":
                self._close()
            case _ if record.levelno >= logging.WARNING and logging.lastResort is not None:
                # Without this handler, that one would show it.
                logging.lastResort.handle(record)

    def _open(self) -> None:
        from sandkasten.cli.commands.images import progress_bar

        self._close()
        self._bar = progress_bar()
        self._show = self._bar.__enter__()

    def _close(self) -> None:
        bar, self._bar, self._show = self._bar, None, None
        if bar is not None:
            bar.__exit__(None, None, None)
