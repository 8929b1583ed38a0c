"""State that every command shares: the global options, and running a coroutine.

Nothing heavy is imported here, so that a short command starts quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from sandkasten.lazy_dataclass import dataclass
from sandkasten_server.cli.exit_status import EXIT_INTERRUPTED, EXIT_SIGNAL_BASE, UsageError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from sandkasten.client.server.daemon_or_embedded import ServerAddress
    from sandkasten.errors import SandkastenError

T = TypeVar("T")


@dataclass(slots=True)
class State:
    data_dir: str | None = None
    backend: str | None = None
    json: bool = False
    """Whether to print JSON, errors included."""
    url: str | None = None
    api_key: str | None = None
    embedded: bool = False
    """Whether to use this process even if a daemon is available."""
    interrupted: bool = False
    """Whether the user pressed Ctrl-C while a command ran."""
    _found: ServerAddress | None = None

    @property
    def place(self) -> ServerAddress:
        """The named daemon, one that serves the data directory, or this process.

        The SDK chooses in the same way (`client.server.daemon_or_embedded`).
        """
        if self._found is None:
            from dataclasses import replace

            from sandkasten.client.server.daemon_or_embedded import EMBEDDED, find_server, place_of

            if self.embedded and self.url is not None:
                raise UsageError("--url and --embedded exclude each other", hint="pass one of them")
            url = EMBEDDED if self.embedded else self.url
            server = find_server(place_of(self.data_dir, self.backend, url, self.api_key))
            # Found to be this process once, it stays so for the rest of the command.
            self._found = replace(server, embedded=server.url is None)
        return self._found

    @place.setter
    def place(self, address: ServerAddress) -> None:
        self._found = address

    def place_of(self, tenant: str | None) -> ServerAddress:
        """Return the place for another tenant's sandbox; None for our own."""
        from dataclasses import replace

        place = self.place
        # Only a daemon distinguishes tenants.
        return place if tenant is None or place.url is None else replace(place, tenant=tenant)

    def with_daemon(self, error: SandkastenError) -> SandkastenError:
        """Name the daemon in an error's details, unless the user named it on this command line."""
        from sandkasten.errors import BackendUnavailable

        place = self._found
        named = place is None or place.url is None or self.url is not None
        if place is not None and not named and not isinstance(error, BackendUnavailable):
            error.details.setdefault("daemon", place.url)
        return error

    @property
    def here(self) -> ServerAddress:
        """This process, for questions about this machine."""
        from sandkasten.client.server.daemon_or_embedded import ServerAddress

        return ServerAddress(self.data_dir, self.backend, embedded=True)

    @property
    def where(self) -> dict[str, Any]:
        """The place as keyword arguments of the SDK."""
        place = self.place
        if place.url is not None:
            return {"url": place.url, "api_key": place.api_key, "backend": self.backend}
        return {"data_dir": place.data_dir, "url": "embedded", "backend": self.backend}


def go(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine. A signal cancels it, waits for its clean-up and exits with 128 + N."""
    import asyncio

    _label_warnings()
    ended: list[int] = []
    try:
        return asyncio.run(_orderly(work, ended))
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    except asyncio.CancelledError:
        if not ended:
            raise
        raise SystemExit(EXIT_SIGNAL_BASE + ended[0]) from None


def _label_warnings() -> None:
    """Print warnings of the libraries as the commands print theirs."""
    import logging

    if logging.lastResort is not None:
        from sandkasten_server.cli.library_warnings import SentenceFormatter

        logging.lastResort.setFormatter(SentenceFormatter())


async def _orderly(work: Coroutine[Any, Any, T], ended: list[int]) -> T:
    import asyncio
    import signal

    from sandkasten.client.server.server_pool import aclose

    loop, this = asyncio.get_running_loop(), asyncio.current_task()

    def end(number: int) -> None:
        # A second one ends the process at once.
        loop.remove_signal_handler(number)
        if this is not None:
            ended.append(number)
            this.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        # `nohup` has the program ignore SIGHUP.
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, end, number)
    try:
        return await work
    finally:
        await aclose()
