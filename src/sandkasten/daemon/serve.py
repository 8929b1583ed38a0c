"""The daemon process: lock the data directory, recover from a crash, serve, and drain.

The first SIGTERM or SIGINT stops accepting connections and lets running requests finish; sandboxes
and their commands keep running. The second one exits at once. An unsafe configuration is an error
before the first request.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from contextlib import AsyncExitStack, suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from sandkasten.api.http_app import App
from sandkasten.api.http_limits import HttpLimits
from sandkasten.api.request.authentication import Doorkeeper
from sandkasten.api.routes.route_table import ALL
from sandkasten.api.server_context import Server
from sandkasten.daemon.agent_services import LazyAgents, agent_service
from sandkasten.daemon.backend_registry import prepare_data_dir
from sandkasten.daemon.composition_root import open_engine
from sandkasten.daemon.data_dir_lock import only_daemon
from sandkasten.daemon.http.listeners import listening
from sandkasten.daemon.persistent_stores import open_books
from sandkasten.daemon.settings.http_settings import key_required
from sandkasten.engine.clock import SystemClock
from sandkasten.telemetry import json_log
from sandkasten.telemetry.log_events import FanOut, LogEvents
from sandkasten.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandkasten.daemon.settings.resolver import Settings

log = logging.getLogger("sandkasten.daemon")
UPKEEP_EVERY_S: Final = 300.0


def run(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve until a signal arrives. `announce` receives one line when the daemon is ready."""
    json_log.configure(settings.http.log_level)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, announce))


async def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    rules = settings.http
    data_dir = prepare_data_dir(settings.data_dir)
    stop = _stop_event()
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        stack.enter_context(only_daemon(data_dir))
        clock = SystemClock()
        metrics = Metrics(version("sandkasten"))
        events = FanOut(LogEvents(routine=logging.INFO), metrics)
        books = await stack.enter_async_context(open_books(settings, clock, rules.db_path))
        engine = await open_engine(
            settings, events=events, journal=books.journal, stored_files=books.files
        )
        stack.push_async_callback(engine.aclose)
        _check_exposure(settings, keyed=books.keys.any_living(clock.now()))
        agents = LazyAgents(
            lambda: agent_service(settings, engine, books.files, recovers=True, events=events)
        )
        server = Server(
            engine=engine,
            doorkeeper=Doorkeeper(
                clock=clock,
                keys=books.keys,
                api_key=rules.api_key,
                open_loopback=rules.api_key is None and rules.loopback,
            ),
            clock=clock,
            rules=HttpLimits(
                allowed_hosts=rules.allowed_hosts,
                allowed_origins=rules.allowed_origins,
                max_json_bytes=rules.max_json_bytes,
                body_timeout_s=rules.body_timeout_s,
                upload_timeout_s=rules.upload_timeout_s,
                metrics_open=rules.metrics_open,
            ),
            journal=books.journal,
            keys=books.keys,
            files=books.files,
            open_agents=agents.open,
            events=metrics,
            metrics=metrics,
            version=version("sandkasten"),
        )
        await engine.recover()
        await stack.enter_async_context(agents)
        await stack.enter_async_context(books.pruned_regularly(clock, UPKEEP_EVERY_S))
        app = App(server, ALL)
        http = await stack.enter_async_context(listening(app, rules, server.rules))
        ms = round((time.monotonic() - began) * 1000)
        ready = {"url": http.url, "ms": ms, "pid": os.getpid()}
        log.info("daemon.ready", extra={"sandkasten": ready})
        announce(f"sandkasten serves {http.url} and {rules.socket}")
        agents.open_for_runs(data_dir)
        _notify("READY=1")
        await stop.wait()
        server.draining = True
        _notify("STOPPING=1")
        log.info("daemon.draining", extra={"sandkasten": {"seconds": rules.drain_s}})
        http.stop_accepting()
        with suppress(TimeoutError):
            async with asyncio.timeout(rules.drain_s):
                await app.answered()
                await agents.drain(rules.drain_s)
        # Before the engine drains: ending runs destroys their sandboxes.
        await agents.aclose()
        await engine.drain(rules.drain_s)
    log.info("daemon.stopped", extra={"sandkasten": {}})


def _check_exposure(settings: Settings, *, keyed: bool) -> None:
    rules = settings.http
    if not (rules.loopback or rules.api_key is not None or keyed):
        raise key_required(
            rules,
            "set api_key (SANDKASTEN_API_KEY), make one with sandkasten key create, or listen "
            "on 127.0.0.1",
        )


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
