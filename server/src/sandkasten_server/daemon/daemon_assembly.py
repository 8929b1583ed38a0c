"""Build a daemon from the settings: stores, engine, authentication, routes, listeners.

`serve` runs what is built here. An unsafe configuration is an error before the first request.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sandkasten.errors import InvalidConfiguration, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.addresses import is_loopback
from sandkasten.model.optional_extras import VERSION, install_command
from sandkasten.plugins.plugin_failure import opening
from sandkasten_runtime.assembly.backend_registry import prepare_data_dir
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.shared_store import shared_store
from sandkasten_runtime.assembly.telemetry_catalog import open_exporter
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.telemetry.log_events import FanOut, LogEvents
from sandkasten_server.api.http_app import App, OnlyPreviews
from sandkasten_server.api.previews.preview_access import Previews
from sandkasten_server.api.previews.preview_rules import PreviewRules
from sandkasten_server.api.request.authentication import Doorkeeper
from sandkasten_server.api.request.jwt_rules import TokenRules
from sandkasten_server.api.route_plugins import ROUTES_GROUP, RouteContext
from sandkasten_server.api.routes.route_table import route_table
from sandkasten_server.api.server_context import DaemonFacts, Server, Stores
from sandkasten_server.daemon.data_dir_lock import only_daemon
from sandkasten_server.daemon.http.listeners import (
    PreviewListener,
    below_prefix,
    listening,
    listening_on_network,
    network_address,
)
from sandkasten_server.daemon.metrics import Metrics
from sandkasten_server.daemon.persistent_stores import open_books
from sandkasten_server.daemon.plugin_problems import plugin_problems
from sandkasten_server.daemon.settings.http_settings import HttpSettings, key_required
from sandkasten_server.daemon.shared_records import shared_records
from sandkasten_server.records.preview_directory import PreviewDirectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandkasten.ports.telemetry_plugins import Exporter
    from sandkasten.settings.setting_parsers import Address
    from sandkasten_runtime.assembly.settings.resolver import Settings
    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_server.api.request.jwt_verifier import TokenVerifier
    from sandkasten_server.api.route_plugins import AsgiApp, DaemonWork, OpenedRoutes
    from sandkasten_server.daemon.http.listeners import Listening
    from sandkasten_server.records.record_plugins import OpenPublicPorts, SharedRecords

log = logging.getLogger("sandkasten.daemon")
store_log = logging.getLogger("sandkasten.store")
UPKEEP_EVERY_S: Final = 300.0
# What a power failure may lose of the records that no caller waited for.
AUDIT_SYNC_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Daemon:
    """The parts of a daemon that serves."""

    engine: Engine
    server: Server
    app: App
    http: Listening
    works: tuple[DaemonWork, ...]
    """What plugins do beside the requests."""


@asynccontextmanager
async def open_daemon(settings: Settings) -> AsyncIterator[Daemon]:
    """Lock the data directory, recover from a crash, and serve until the block ends."""
    rules = settings.of(HttpSettings)
    data_dir = prepare_data_dir(settings.data_dir)
    async with AsyncExitStack() as stack:
        stack.enter_context(only_daemon(data_dir))
        clock = SystemClock()
        metrics = Metrics(VERSION)
        for name, named in settings.policy.named_backends.items():
            if named.max_sandboxes is not None:
                metrics.limit(name, named.max_sandboxes)
        events = FanOut(LogEvents(routine=logging.INFO), metrics)
        exporter = open_exporter(settings)
        # In a thread: importing OpenTelemetry takes as long as a hundred commands.
        tracing = await asyncio.to_thread(exporter.tracing)
        shared = await stack.enter_async_context(shared_store(settings))
        records = None
        if shared is not None:
            store_log.info("store.shared", extra={"sandkasten": {**shared.summary()}})
            records = shared_records(settings, shared)
        books = await stack.enter_async_context(
            open_books(settings, clock, rules.db_path, shared=shared)
        )
        engine = await open_engine(
            settings,
            events=events,
            journal=books.journal,
            stored_files=books.files,
            tracing=tracing,
            audit=books.audit,
            shared=shared,
        )
        engine.trail.recordings = books.recordings
        stack.push_async_callback(engine.aclose)
        tokens = await _open_tokens(settings, stack)
        _check_exposure(settings, keyed=bool(tokens) or books.keys.any_living(clock.now()))
        public_ports = await _open_public_ports(settings, records, stack)
        previews = Previews(
            settings.of(PreviewRules),
            public_ports,
            clock,
        )
        server = Server(
            engine=engine,
            doorkeeper=Doorkeeper(
                clock=clock,
                keys=books.keys,
                api_key=rules.api_key,
                tokens=tokens,
                open_loopback=rules.api_key is None
                and tokens is None
                and all(is_loopback(address.host) for address in _api_addresses(settings)),
            ),
            clock=clock,
            rules=rules.limits,
            stores=Stores(books.journal, books.audit, books.keys, books.files),
            previews=previews,
            events=metrics,
            tracing=tracing,
            facts=DaemonFacts(
                version=VERSION,
                settings=tuple(asdict(origin) for origin in settings.origins()),
                metrics=metrics,
                plugin_problems=plugin_problems,
            ),
        )
        await engine.recover_soon()
        if isinstance(public_ports, PreviewDirectory):
            await public_ports.retain(await engine.ids(), clock.now())
        context = RouteContext(
            engine=engine,
            data_dir=data_dir,
            settings=settings,
            files=books.files,
            previews=previews,
            events=events,
            records=records,
        )
        opened = await _open_plugins(context, stack)
        for part in opened.values():
            server.services |= part.services
        await stack.enter_async_context(books.pruned_regularly(clock, UPKEEP_EVERY_S))
        await stack.enter_async_context(books.audit_synced_regularly(AUDIT_SYNC_S))
        await stack.enter_async_context(_metrics_sent(exporter, metrics, engine))
        described = route_table().routes
        app = App(
            server, (*described, *(route for part in opened.values() for route in part.routes))
        )
        preview_listener = PreviewListener(
            _with_names(opened, app, OnlyPreviews(app)), settings.of(PreviewRules)
        )
        http = await stack.enter_async_context(
            listening(_with_names(opened, app, app), rules, server.rules, preview_listener)
        )
        address = urlsplit(http.url)
        previews.scheme, previews.port = address.scheme, address.port or 80
        await _listen_for_plugins(opened, settings, app, server, stack)
        works = tuple(part.work for part in opened.values() if part.work is not None)
        yield Daemon(engine, server, app, http, works)


@asynccontextmanager
async def _metrics_sent(
    exporter: Exporter, metrics: Metrics, engine: Engine
) -> AsyncIterator[None]:
    """Send the metrics at intervals, where that is configured."""
    sender = await asyncio.to_thread(exporter.metrics, metrics.registry)
    if sender is None:
        yield
        return

    async def send() -> None:
        while True:
            await asyncio.sleep(sender.interval_s)
            try:
                metrics.update(await engine.census(), await engine.network.totals())
            except SandkastenError as exc:
                log.warning("telemetry.incomplete", extra={"sandkasten": {"error": exc.code}})
            await asyncio.to_thread(sender.send)

    task = asyncio.create_task(send())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _open_public_ports(
    settings: Settings, records: SharedRecords | None, stack: AsyncExitStack
) -> PreviewDirectory | OpenPublicPorts:
    if records is None:
        return await PreviewDirectory.open(settings.of(PreviewRules).directory)
    public_ports = await records.public_ports()
    stack.push_async_callback(public_ports.aclose)
    return public_ports


async def _open_plugins(context: RouteContext, stack: AsyncExitStack) -> Mapping[str, OpenedRoutes]:
    """Open the plugins of routes; return their parts by the names of the plugins."""
    table = route_table()
    for problem in table.problems:
        log.warning("plugin.unusable", extra={"sandkasten": {"message": problem}})
    opened = {}
    for plugin in table.plugins:
        if plugin.open is not None:
            with opening(ROUTES_GROUP, plugin.name):
                opened[plugin.name] = await stack.enter_async_context(plugin.open(context))
    return opened


def _with_names(opened: Mapping[str, OpenedRoutes], app: App, other: AsgiApp) -> AsgiApp:
    """Return an application that serves the host names of plugins before those of `other`."""
    for name, part in opened.items():
        if part.names is not None:
            with opening(ROUTES_GROUP, name):
                other = part.names(app, other)
    return other


async def _listen_for_plugins(
    opened: Mapping[str, OpenedRoutes],
    settings: Settings,
    app: App,
    server: Server,
    stack: AsyncExitStack,
) -> None:
    for listener in (listener for part in opened.values() for listener in part.listeners):
        rules = replace(settings.of(HttpSettings), listen=listener.address)
        bound = stack.enter_context(network_address(rules))
        below = below_prefix(app, listener.prefix)
        await stack.enter_async_context(listening_on_network(below, bound, rules, server.rules))


async def _open_tokens(settings: Settings, stack: AsyncExitStack) -> TokenVerifier | None:
    """Return what verifies tokens, or None where none are accepted."""
    rules = settings.of(TokenRules)
    if not rules.enabled:
        return None
    try:
        from sandkasten_server.api.request.jwt_verifier import TokenVerifier
        from sandkasten_server.daemon.jwt_keys import TokenKeys
    except ModuleNotFoundError as exc:
        raise InvalidConfiguration(
            f"jwt.issuer requires the library {exc.name}, which is not installed",
            hint=install_command("jwt"),
            setting="jwt.issuer",
        ) from exc
    keys = TokenKeys(rules)
    await stack.enter_async_context(keys.refreshed_regularly())
    return TokenVerifier(rules, keys)


def _api_addresses(settings: Settings) -> tuple[Address, ...]:
    """Return where clients reach an API. A listener for previews only is not among them."""
    others: list[Address] = []
    for plugin in route_table().plugins:
        with opening(ROUTES_GROUP, plugin.name):
            others += plugin.addresses(settings)
    return (settings.of(HttpSettings).listen, *others)


def _check_exposure(settings: Settings, *, keyed: bool) -> None:
    if settings.of(HttpSettings).api_key is not None or keyed:
        return
    for address in _api_addresses(settings):
        if is_loopback(address.host):
            continue
        raise key_required(
            replace(settings.of(HttpSettings), listen=address),
            "set api_key (SANDKASTEN_API_KEY), make one with sandkasten key create, or listen "
            "on 127.0.0.1",
        )
