"""The daemon process: signals, readiness, and draining. `daemon_assembly` builds its parts.

The first SIGTERM or SIGINT stops accepting connections and lets running requests finish; sandboxes
and their commands keep running. The second one exits at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sandkasten_runtime.telemetry import json_log
from sandkasten_server.api.http_limits import HttpLimits
from sandkasten_server.daemon.daemon_assembly import open_daemon
from sandkasten_server.daemon.settings.http_settings import HttpSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandkasten_runtime.assembly.settings.resolver import Settings

log = logging.getLogger("sandkasten.daemon")
# The defaults of Python.
_COLLECT_AFTER = (700, 10, 10)


def run(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve until a signal arrives. `announce` receives one line when the daemon is ready."""
    json_log.configure(settings.of(HttpSettings).log_level)
    # Values of secrets pass through this process: none may be left in a core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for warning in settings.warnings:
        log.warning("settings.unknown_variable", extra={"sandkasten": {"message": warning}})
    with asyncio.Runner(loop_factory=_event_loop) as runner:
        runner.run(serve(settings, announce))


def _event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop whose TLS servers wait no longer for a handshake than for headers.

    The default is a minute, in which an idle client holds a connection and its memory.
    """
    import uvloop

    class Loop(uvloop.Loop):
        async def create_server(self, *words: Any, **options: Any) -> Any:
            if options.get("ssl") is not None:
                options.setdefault("ssl_handshake_timeout", HttpLimits().header_timeout_s)
            return await super().create_server(*words, **options)

    return Loop()


async def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    rules = settings.of(HttpSettings)
    stop = _stop_event()
    began = time.monotonic()
    async with open_daemon(settings) as daemon:
        ms = round((time.monotonic() - began) * 1000)
        ready = {"url": daemon.http.url, "ms": ms, "pid": os.getpid()}
        log.info("daemon.ready", extra={"sandkasten": ready})
        announce(f"sandkasten serves {daemon.http.url} and {rules.socket}")
        for work in daemon.works:
            work.begin()
        # Modules and routes stay: the collector need not visit them while every request waits.
        gc.freeze()
        # The command line, which called this, has set a higher threshold.
        gc.set_threshold(*_COLLECT_AFTER)
        _notify("READY=1")
        await stop.wait()
        daemon.server.draining = True
        _notify("STOPPING=1")
        log.info("daemon.draining", extra={"sandkasten": {"seconds": rules.drain_s}})
        daemon.http.stop_accepting()
        with suppress(TimeoutError):
            async with asyncio.timeout(rules.drain_s):
                await daemon.app.answered()
                for work in daemon.works:
                    await work.drain(rules.drain_s)
        # Before the engine drains: ending runs of agents destroys their sandboxes.
        for work in daemon.works:
            await work.aclose()
        await daemon.engine.drain(rules.drain_s)
    log.info("daemon.stopped", extra={"sandkasten": {}})


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def handle() -> None:
        if stop.is_set():
            # The second signal: sandboxes, commands and rows survive an exit without clean-up.
            os._exit(1)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle)
    return stop


def _notify(state: str) -> None:
    """Report to systemd, if it started this process with `Type=notify`."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect("\0" + address[1:] if address.startswith("@") else address)
            sock.sendall(state.encode())
