"""Build a daemon from the settings: stores, engine, agents, authentication, routes, listeners.

`serve` runs what is built here. An unsafe configuration is an error before the first request.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sandkasten.api.http_app import App, OnlyPreviews
from sandkasten.api.previews.preview_access import Previews
from sandkasten.api.request.authentication import Doorkeeper
from sandkasten.api.routes.route_table import ALL
from sandkasten.api.server_context import Server
from sandkasten.compat.e2b.e2b_assembly import PAUSES_FILE, open_e2b, read_key
from sandkasten.compat.e2b.e2b_domain import PREFIX, E2bNames
from sandkasten.daemon.agent_services import LazyAgents, agent_service, any_runs
from sandkasten.daemon.backend_registry import prepare_data_dir
from sandkasten.daemon.data_dir_lock import only_daemon
from sandkasten.daemon.engine_assembly import open_engine, open_tracing, otlp_setup
from sandkasten.daemon.http.listeners import (
    PreviewListener,
    below_prefix,
    listening,
    listening_on_network,
    network_address,
)
from sandkasten.daemon.persistent_stores import open_books
from sandkasten.daemon.settings.http_settings import key_required
from sandkasten.daemon.shared_store import report_shared, shared_store
from sandkasten.engine.clock import SystemClock
from sandkasten.errors import InvalidConfiguration, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.addresses import is_loopback
from sandkasten.model.optional_extras import VERSION, install_command
from sandkasten.store.preview_directory import PreviewDirectory
from sandkasten.telemetry.log_events import FanOut, LogEvents
from sandkasten.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from sandkasten.api.request.token_verifier import TokenVerifier
    from sandkasten.api.route import Route
    from sandkasten.daemon.http.listeners import AsgiApp, Listening
    from sandkasten.daemon.settings.resolver import Settings
    from sandkasten.daemon.shared_store import SharedStore
    from sandkasten.engine.engine import Engine
    from sandkasten.settings.setting_parsers import Address
    from sandkasten.store.postgres.postgres_previews import PostgresPreviews

log = logging.getLogger("sandkasten.daemon")
UPKEEP_EVERY_S: Final = 300.0
# What a power failure may lose of the records that no caller waited for.
AUDIT_SYNC_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Daemon:
    """The parts of a daemon that serves."""

    engine: Engine
    agents: LazyAgents
    server: Server
    app: App
    http: Listening
    any_run: Callable[[], Awaitable[bool]]
    """Whether there is a run of an agent or a workflow."""


@asynccontextmanager
async def open_daemon(settings: Settings) -> AsyncIterator[Daemon]:
    """Lock the data directory, recover from a crash, and serve until the block ends."""
    rules = settings.http
    data_dir = prepare_data_dir(settings.data_dir)
    async with AsyncExitStack() as stack:
        stack.enter_context(only_daemon(data_dir))
        clock = SystemClock()
        metrics = Metrics(VERSION)
        for name, engine_rules in settings.policy.docker_engines.items():
            if engine_rules.max_sandboxes is not None:
                metrics.limit(name, engine_rules.max_sandboxes)
        events = FanOut(LogEvents(routine=logging.INFO), metrics)
        tracing = await open_tracing(settings)
        shared = await stack.enter_async_context(shared_store(settings))
        if shared is not None:
            report_shared(settings, shared)
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
        agents = LazyAgents(
            lambda: agent_service(
                settings, engine, books.files, recovers=True, events=events, shared=shared
            )
        )
        public_ports = await _open_public_ports(settings, shared, stack)
        previews = Previews(
            settings.previews,
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
                and all(is_loopback(one.host) for one in _api_addresses(settings)),
            ),
            clock=clock,
            rules=rules.limits,
            journal=books.journal,
            audit=books.audit,
            keys=books.keys,
            files=books.files,
            previews=previews,
            open_agents=agents.open,
            events=metrics,
            metrics=metrics,
            tracing=tracing,
            version=VERSION,
            settings=tuple(asdict(one) for one in settings.origins()),
        )
        await engine.recover_soon()
        if isinstance(public_ports, PreviewDirectory):
            await public_ports.retain(await engine.ids(), clock.now())
        await stack.enter_async_context(agents)
        await stack.enter_async_context(books.pruned_regularly(clock, UPKEEP_EVERY_S))
        await stack.enter_async_context(books.audit_synced_regularly(AUDIT_SYNC_S))
        await stack.enter_async_context(_metrics_sent(settings, metrics, engine))
        routes = await _open_compat(settings, shared, engine, previews, stack)
        app = App(server, (*ALL, *routes))
        preview_listener = PreviewListener(
            _with_e2b(settings, app, OnlyPreviews(app)), settings.previews
        )
        http = await stack.enter_async_context(
            listening(_with_e2b(settings, app, app), rules, server.rules, preview_listener)
        )
        address = urlsplit(http.url)
        previews.scheme, previews.port = address.scheme, address.port or 80
        await _listen_for_e2b(settings, app, server, stack)
        yield Daemon(engine, agents, server, app, http, lambda: any_runs(data_dir, shared))


@asynccontextmanager
async def _metrics_sent(
    settings: Settings, metrics: Metrics, engine: Engine
) -> AsyncIterator[None]:
    """Send the metrics over OTLP at intervals, where that is configured."""
    setup = otlp_setup(settings)
    sender = await asyncio.to_thread(setup.metrics, metrics.registry)
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
    settings: Settings, shared: SharedStore | None, stack: AsyncExitStack
) -> PreviewDirectory | PostgresPreviews:
    if shared is None:
        return await PreviewDirectory.open(settings.previews.directory)
    from sandkasten.store.postgres.postgres_previews import PostgresPreviews

    found = await PostgresPreviews.open(shared.database)
    stack.push_async_callback(found.aclose)
    return found


async def _open_compat(
    settings: Settings,
    shared: SharedStore | None,
    engine: Engine,
    previews: Previews,
    stack: AsyncExitStack,
) -> Sequence[Route]:
    """Return the routes of other services' protocols."""
    if not settings.compat.e2b_enabled:
        return ()
    data_dir = settings.data_dir.absolute()
    if shared is None:
        key = await asyncio.to_thread(read_key, data_dir)
    else:
        from sandkasten.store.postgres.postgres_previews import signing_key

        key = await signing_key(shared.database, "e2b")
    e2b = open_e2b(
        key,
        settings.image_aliases,
        settings.compat.told_domain(settings.previews),
        engine=engine,
        pauses_file=data_dir / PAUSES_FILE,
        previews=previews,
        public_ports=settings.compat.e2b_public_ports,
        profile=settings.compat.e2b_profile,
    )
    return await stack.enter_async_context(e2b)


def _with_e2b(settings: Settings, app: App, other: AsgiApp) -> AsgiApp:
    """Return an application that serves E2B's host names before those of `other`."""
    domain = settings.compat.domain
    if domain is None or not settings.compat.e2b_enabled:
        return other
    return E2bNames(domain, app, other)


async def _listen_for_e2b(
    settings: Settings, app: App, server: Server, stack: AsyncExitStack
) -> None:
    address = settings.compat.e2b_listen
    if address is None or not settings.compat.e2b_enabled:
        return
    rules = replace(settings.http, listen=address)
    bound = stack.enter_context(network_address(rules))
    below = below_prefix(app, PREFIX)
    await stack.enter_async_context(listening_on_network(below, bound, rules, server.rules))


async def _open_tokens(settings: Settings, stack: AsyncExitStack) -> TokenVerifier | None:
    """Return what verifies tokens, or None where none are accepted."""
    rules = settings.jwt
    if not rules.enabled:
        return None
    try:
        from sandkasten.api.request.token_verifier import TokenVerifier
        from sandkasten.daemon.token_keys import TokenKeys
    except ModuleNotFoundError as exc:
        raise InvalidConfiguration(
            f"tokens need a library that is not installed: {exc.name}",
            hint=install_command("jwt"),
            setting="jwt.issuer",
        ) from exc
    keys = TokenKeys(rules)
    await stack.enter_async_context(keys.refreshed_regularly())
    return TokenVerifier(rules, keys)


def _api_addresses(settings: Settings) -> tuple[Address, ...]:
    """Return where clients reach an API; previews alone have rules of their own."""
    return (settings.http.listen, *settings.compat.listens(settings.previews))


def _check_exposure(settings: Settings, *, keyed: bool) -> None:
    if settings.http.api_key is not None or keyed:
        return
    for one in _api_addresses(settings):
        if is_loopback(one.host):
            continue
        raise key_required(
            replace(settings.http, listen=one),
            "set api_key (SANDKASTEN_API_KEY), make one with sandkasten key create, or listen "
            "on 127.0.0.1",
        )
