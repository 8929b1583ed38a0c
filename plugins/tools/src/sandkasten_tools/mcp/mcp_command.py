"""`mcp`: serve sandboxes as tools to an MCP client."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

if TYPE_CHECKING:
    from sandkasten_server.cli.state import State

_EXAMPLES: Final = """\b
Examples:
  sandkasten mcp                              started by the client
  sandkasten mcp --mode code --image python
  sandkasten mcp --transport http             at http://127.0.0.1:8090/mcp
  SANDKASTEN_API_KEY=sk-... sandkasten mcp --transport http --listen 0.0.0.0:8090

Over stdio there is one client; its sandboxes are destroyed when it disconnects, unless
--session names them. Over HTTP each client has its own sandboxes, and other machines
need the key. Stdout carries only the protocol; stderr has one JSON object per event."""


class Mode(StrEnum):
    CODE = "code"
    COMPUTE = "compute"
    ALL = "all"


class Transport(StrEnum):
    STDIO = "stdio"
    HTTP = "http"


def add_to(app: typer.Typer) -> None:
    app.command("mcp", epilog=_EXAMPLES)(_mcp)


def _mcp(
    context: typer.Context,
    mode: Annotated[
        Mode,
        typer.Option(help="compute: one-shot runs; code: a persistent sandbox; all: both."),
    ] = Mode.ALL,
    transport: Annotated[
        Transport, typer.Option(help="Transport of the client.")
    ] = Transport.STDIO,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address for HTTP.")
    ] = "127.0.0.1:8090",
    image: Annotated[
        str | None, typer.Option("--image", "-i", metavar="I", help="The image.")
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option("--runtime", "-r", metavar="R", help="python, node, bash or linux."),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Keep the sandboxes under this name (stdio)."),
    ] = None,
) -> None:
    """Serve sandboxes as tools to an MCP client until it disconnects."""
    from sandkasten_tools.tool_access import serve_mcp

    state = cast("State", context.obj)
    serve_mcp(
        state.place,
        mode=mode.value,
        transport=transport.value,
        listen=listen,
        image=image,
        runtime=runtime,
        session=session,
        backend=state.backend,
        announce=lambda line: typer.echo(line, err=True),
    )
