"""Show on stderr what creating a sandbox waits for: an image that is pulled, packages.

An engine in this process reports both as log events. A daemon does not, so after a while the
command prints what it waits for.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from sandkasten_server.cli.output import say, visible

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from sandkasten.model.images.image_info import ImageProgress
    from sandkasten_server.cli.state import State

# Longer than a create without a pull or an installation takes on a busy machine.
_QUIET_S: Final = 3.0


@asynccontextmanager
async def create_progress(
    state: State, options: Mapping[str, Any]
) -> AsyncIterator[Callable[[], None]]:
    """Show what creating a sandbox with these options of the client waits for in the block.

    Yields a function to call when the sandbox is there, if the block goes on after that.
    """
    if state.place.url is None:
        with _listening():
            yield lambda: None
        return
    waiting = None
    image = options.get("image")
    packages = [*(options.get("pip_packages") or ()), *(options.get("npm_packages") or ())]
    what = [f"pulling {image}"] if image is not None and ":" in image else []
    what += [f"installing {', '.join(packages)}"] if packages else []
    if what:
        text = f"waiting for the daemon, which may be {visible(' and '.join(what))}"
        waiting = asyncio.get_running_loop().call_later(_QUIET_S, say, text)

    def created() -> None:
        if waiting is not None:
            waiting.cancel()

    try:
        yield created
    finally:
        created()


class _listening(logging.Handler):
    """A log handler for as long as a block takes. Imports nothing before the first event."""

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
                from sandkasten_server.cli.commands.images import progress_bar

                say(f"pulling {visible(str(fields['image']))}")
                self._open(progress_bar(quiet=True))
            case "image.pull_progress" if self._show is not None:
                from sandkasten.model.images.image_info import ImageProgress

                self._show(ImageProgress(fields["step"], fields["done"], fields["total"]))
            case "image.pulled":
                self._close()
                say(f"pulled {visible(str(fields['image']))}")
            case "packages.install_started":
                self._open(_clock(f"installing {visible(str(fields['packages']))}"))
            case "packages.installed":
                self._close()
                say(f"installed {visible(str(fields['packages']))} ({fields['seconds']:.0f} s)")
            case "image.pull_failed" | "packages.install_failed" | "sandbox.create_failed":
                # The command prints the error.
                self._close()
            case _ if record.levelno >= logging.WARNING and logging.lastResort is not None:
                # Without this handler, that one would show it.
                logging.lastResort.handle(record)

    def _open(self, bar: Any) -> None:
        self._close()
        self._bar = bar
        self._show = bar.__enter__()

    def _close(self) -> None:
        bar, self._bar, self._show = self._bar, None, None
        if bar is not None:
            bar.__exit__(None, None, None)


@contextmanager
def _clock(text: str) -> Iterator[None]:
    """Show the text and the time since its beginning; one line if stderr is not a terminal."""
    import sys

    if not sys.stderr.isatty():
        say(text)
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from sandkasten_server.cli.output import colour

    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True, no_color=not colour(sys.stderr)),
        transient=True,
    ) as progress:
        progress.add_task(text, total=None)
        yield
