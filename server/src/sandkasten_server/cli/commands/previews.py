"""`url`, `forward` and `ca`: a port of a sandbox in a browser or here, and whom to trust."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sandkasten.model.spelling import shown
from sandkasten_server.cli.options import Id, Json, state_of
from sandkasten_server.cli.output import put, put_json, say, tell
from sandkasten_server.cli.quantities import seconds
from sandkasten_server.cli.sandbox_names import resolve
from sandkasten_server.cli.state import State, go

if TYPE_CHECKING:
    from sandkasten.errors import SandkastenError


def _port(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else 0
    if not 1 <= number <= 65_535:
        raise typer.BadParameter(f"a port is a number from 1 to 65535, got {shown(text)}")
    return number


Port = Annotated[int, typer.Argument(metavar="PORT", parser=_port, help="Its port.")]


def add_to(app: typer.Typer) -> None:
    app.command("url")(_url)
    app.command("forward")(_forward)
    app.command("ca")(_ca)


def _url(
    context: typer.Context,
    id: Id,
    port: Annotated[
        int | None, typer.Argument(metavar="[PORT]", parser=_port, help="Its port.")
    ] = None,
    public: Annotated[
        bool | None,
        typer.Option(
            "--public/--private",
            help="Open the port to every client that reaches the daemon, or close it again.",
        ),
    ] = None,
    ttl: Annotated[
        float | None,
        typer.Option(
            "--ttl",
            metavar="TIME",
            parser=seconds,
            help="How long the link works: 90 (seconds), 30m, 12h; default: 1h.",
        ),
    ] = None,
    revoke: Annotated[
        str | None,
        typer.Option("--revoke", metavar="LINK", help="Revoke a link, by its URL or link_id."),
    ] = None,
    revoke_all: Annotated[
        bool, typer.Option("--revoke-all", help="Revoke all links of the sandbox.")
    ] = False,
    json: Json = False,
) -> None:
    """Print a link to a port of a sandbox, for a browser, or revoke links. Requires a daemon."""
    state = state_of(context, json=json)
    if revoke is None and not revoke_all:
        if port is None:
            raise typer.BadParameter("a link requires PORT", param_hint="PORT")
        go(_link(state, id, port, public, ttl))
        return
    if (revoke is not None and revoke_all) or (port, public, ttl) != (None, None, None):
        raise typer.BadParameter("--revoke and --revoke-all go with ID only")
    go(_revoke(state, id, revoke))


def _forward(
    context: typer.Context,
    id: Id,
    port: Port,
    local: Annotated[
        int | None,
        typer.Argument(
            metavar="[LOCAL]",
            min=0,
            max=65_535,
            help="The port on this machine; default: the same, or a free one if it is taken. "
            "0: a free one.",
        ),
    ] = None,
) -> None:
    """Forward a port of 127.0.0.1 to a port of a sandbox, until Ctrl-C."""
    go(_listen(state_of(context), id, port, local))


def _ca(context: typer.Context) -> None:
    """Print the certificate of the daemon's own authority, in PEM, for clients of its domain."""
    from sandkasten_server.daemon.in_process import authority

    put(authority(state_of(context).here).rstrip())


async def _link(
    state: State, start: str, port: int, public: bool | None, ttl_s: float | None
) -> None:
    from sandkasten.client.server.server_pool import connect, previews_of
    from sandkasten.model.json_codec import to_json

    previews = previews_of(await connect(state.place))
    the_id = await resolve(state, start)
    preview = await previews.link(the_id, port, public=public, ttl_seconds=ttl_s)
    if state.json:
        put_json(to_json(preview))
    else:
        put(preview.url)


async def _revoke(state: State, start: str, link: str | None) -> None:
    from sandkasten.client.server.server_pool import connect, previews_of

    previews = previews_of(await connect(state.place))
    await previews.revoke(await resolve(state, start), link)
    if state.json:
        put_json({"ok": True})


async def _listen(state: State, start: str, port: int, local: int | None) -> None:
    from sandkasten.client.port_forward import LOOPBACK, forwarding
    from sandkasten.client.server.server_pool import connect
    from sandkasten.errors import InvalidRequest

    transport = await connect(state.place)
    the_id = await resolve(state, start)
    # An error now, and not at the first connection.
    await transport.get(the_id)
    for wanted in (local,) if local is not None else (port, 0):
        try:
            async with forwarding(transport, the_id, port, wanted, failed=_failed) as bound:
                put(f"{LOOPBACK}:{bound}")
                sys.stdout.flush()
                say(f"forwarding to port {port} of {the_id}; Ctrl-C ends it")
                await asyncio.Event().wait()
        except InvalidRequest:
            if local is not None or wanted == 0:
                raise


def _failed(error: SandkastenError) -> None:
    tell("warning", error.message)
