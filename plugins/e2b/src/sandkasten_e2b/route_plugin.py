"""E2B's protocol as a plugin of the daemon: its routes, its host names and its own address."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from sandkasten_e2b.compat_settings import CompatSettings
from sandkasten_server.api.previews.preview_rules import PreviewRules
from sandkasten_server.api.route_plugins import Listener, OpenedRoutes, RouteContext, RoutePlugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sandkasten.settings.setting_parsers import Address
    from sandkasten_server.api.route_plugins import AsgiApp


@asynccontextmanager
async def _open(context: RouteContext) -> AsyncIterator[OpenedRoutes]:
    settings = context.settings
    compat = settings.of(CompatSettings)
    if not compat.e2b_enabled:
        yield OpenedRoutes()
        return
    from sandkasten_e2b.e2b_assembly import PAUSES_FILE, open_e2b, read_key
    from sandkasten_e2b.e2b_domain import PREFIX, E2bNames

    if context.records is None:
        key = await asyncio.to_thread(read_key, context.data_dir)
    else:
        key = await context.records.signing_key("e2b")
    domain = compat.domain

    def names(app: AsgiApp, other: AsgiApp) -> AsgiApp:
        return other if domain is None else E2bNames(domain, app, other)

    listen = compat.e2b_listen
    async with open_e2b(
        key,
        settings.named("images.aliases"),
        compat.told_domain(settings.of(PreviewRules)),
        engine=context.engine,
        pauses_file=context.data_dir / PAUSES_FILE,
        previews=context.previews,
        public_ports=compat.e2b_public_ports,
        profile=compat.e2b_profile,
    ) as routes:
        yield OpenedRoutes(
            routes=routes,
            names=names,
            listeners=() if listen is None else (Listener(listen, PREFIX),),
        )


def _addresses(settings: Any) -> Sequence[Address]:
    addresses: Sequence[Address] = settings.of(CompatSettings).listens(settings.of(PreviewRules))
    return addresses


PLUGIN: Final = RoutePlugin("e2b-protocol", open=_open, addresses=_addresses)
