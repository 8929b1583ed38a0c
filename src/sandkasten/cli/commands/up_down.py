"""`up` and `down`: a daemon as a container, on the engine that DOCKER_HOST or the settings name."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sandkasten.cli.options import Json, state_of

if TYPE_CHECKING:
    from sandkasten.cli.state import State
    from sandkasten.model.installation_values import (
        InstallationRequest,
        Installed,
        Removed,
        Standing,
    )

# The first character keeps click from joining the lines.
_UP: Final = """\b
Examples:
  sandkasten up                                   on the engine of this machine
  sandkasten up --listen 0.0.0.0:8080             for other machines as well
  DOCKER_HOST=ssh://me@build sandkasten up        on another machine
  sandkasten up --mode sidecar                    an engine of its own beside it
  sandkasten up --mode remote --engine tcp://box:2376 --engine-certs ./certs
  sandkasten up --env SANDKASTEN_ALLOWED_IMAGES=python --recreate
  sandkasten up --dry-run                         what it would make

Once it runs, a second `up` says so. Settings of the daemon go in by --env; whatever it keeps lies
in the volume sandkasten-data. Mode docker_socket hands it the engine's socket, and with it root of
that machine: see the guide to Docker."""
_DOWN: Final = """\b
Examples:
  sandkasten down                        the daemon and its sandboxes; its data stays
  sandkasten down --keep-sessions        the daemon alone; the next `up` finds them
  sandkasten down --volumes --yes        everything"""


def add_to(app: typer.Typer) -> None:
    app.command("up", epilog=_UP)(_up)
    app.command("down", epilog=_DOWN)(_down)


def _up(
    context: typer.Context,
    image: Annotated[
        str, typer.Option(metavar="I", help="The daemon's image (sandkasten:VERSION).")
    ] = "",
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where it is published (127.0.0.1:8080)."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Its key; better in SANDKASTEN_API_KEY; else made."),
    ] = None,
    mode: Annotated[
        str, typer.Option(metavar="M", help="docker_socket, sidecar or remote.")
    ] = "docker_socket",
    workspace: Annotated[
        str | None,
        typer.Option(metavar="W", help="Where sandboxes' files lie: auto, bind, shared, volume…"),
    ] = None,
    socket: Annotated[
        str, typer.Option(metavar="PATH", help="The engine's socket, on the engine's machine.")
    ] = "",
    engine_image: Annotated[
        str, typer.Option(metavar="I", help="Mode sidecar: the engine's image.")
    ] = "",
    engine: Annotated[
        str, typer.Option(metavar="HOST", help="Mode remote: the engine to use, tcp://HOST:PORT.")
    ] = "",
    engine_certs: Annotated[
        str, typer.Option(metavar="DIR", help="Mode remote: ca.pem, cert.pem and key.pem.")
    ] = "",
    env: Annotated[
        list[str],
        typer.Option("--env", "-e", metavar="K=V", help="A variable of the daemon; repeatable."),
    ] = [],  # noqa: B006  (typer reads it, nobody writes to it)
    timeout: Annotated[
        float, typer.Option(metavar="S", help="Seconds until it must be ready.")
    ] = 60.0,
    recreate: Annotated[
        bool, typer.Option("--recreate", help="Replace one that runs; sandboxes live on.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be made, and make nothing.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Say how it stands; 1 when it is not ready.")
    ] = False,
    json: Json = False,
) -> None:
    """Start the daemon as a container. It is ready when this ends."""
    from sandkasten.cli.options import pairs
    from sandkasten.cli.state import go
    from sandkasten.model.installation_values import InstallationRequest

    state = state_of(context, json=json)
    asked = InstallationRequest(
        image=image,
        mode=mode,
        socket=socket,
        engine_image=engine_image,
        engine=engine,
        engine_certs=engine_certs,
        env=pairs(env, "--env"),
        recreate=recreate,
        timeout_s=timeout,
    )
    given = {
        "listen": listen,
        "api_key": api_key if api_key is not None else state.api_key,
        "backends.docker.workspace_mode": workspace,
    }
    flags = {name: value for name, value in given.items() if value is not None}
    if status:
        raise SystemExit(go(_status(state, flags)))
    go(_draw(state, asked, flags) if dry_run else _begin(state, asked, flags))


async def _begin(state: State, asked: InstallationRequest, flags: dict[str, str]) -> None:
    from sandkasten.cli.output import put_json, say, visible
    from sandkasten.client.server.embedded import open_installation
    from sandkasten.errors import BackendUnavailable

    async with open_installation(flags) as installer:
        try:
            done = await installer.up(asked)
        except BackendUnavailable as exc:
            lines = exc.details.get("log")
            if not state.json and isinstance(lines, list):
                for line in lines:
                    say(f"  {visible(line)}")
            raise
    if state.json:
        put_json(asdict(done))
    else:
        _tell(done)


def _tell(done: Installed) -> None:
    from sandkasten.cli.output import put, say, visible

    if done.begun == "running":
        say(f"a daemon runs already: {visible(done.image)}, {done.mode}")
        if done.changed:
            say("it was asked for otherwise; replace it: sandkasten up --recreate …")
    else:
        say(f"{done.begun}: {visible(done.image)}, {done.mode}; ready")
    if done.machine:
        say(f"it is published on the machine of {visible(done.machine)}, not on this one")
    put(f"export SANDKASTEN_URL={done.url}")
    if done.api_key is not None:
        put(f"export SANDKASTEN_API_KEY={done.api_key}")
        say("that key is shown this once")


async def _draw(state: State, asked: InstallationRequest, flags: dict[str, str]) -> None:
    from sandkasten.cli.output import put, put_json, say
    from sandkasten.client.server.embedded import open_installation

    async with open_installation(flags) as installer:
        drawn = await installer.drawn(asked)
    if state.json:
        put_json({**drawn.document, "commands": list(drawn.commands)})
        return
    import json

    put(json.dumps(drawn.document, indent=2))
    say("by hand, with a key in SANDKASTEN_API_KEY:")
    for line in drawn.commands:
        say(f"  {line}")


async def _status(state: State, flags: dict[str, str]) -> int:
    from sandkasten.cli.output import put_json
    from sandkasten.cli.state import EXIT_NOT_READY
    from sandkasten.client.server.embedded import open_installation

    async with open_installation(flags) as installer:
        standing = await installer.status()
    if state.json:
        put_json(asdict(standing))
    else:
        _show(standing)
    return 0 if standing.ready else EXIT_NOT_READY


def _show(standing: Standing) -> None:
    from sandkasten.cli.output import put, visible

    rows: dict[str, Any] = asdict(standing)
    for name, value in rows.items():
        if value not in ("", None):
            put(f"{name}: {visible(str(value).lower() if name == 'ready' else str(value))}")


def _down(
    context: typer.Context,
    keep_sessions: Annotated[
        bool, typer.Option("--keep-sessions", help="Leave sandboxes to the next daemon.")
    ] = False,
    volumes: Annotated[
        bool, typer.Option("--volumes", help="Remove its data as well: files, keys, books.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Take the daemon away, and its sandboxes with it. Twice is fine."""
    from sandkasten.cli.state import go
    from sandkasten.errors import InvalidRequest

    state = state_of(context, json=json)
    if keep_sessions and volumes:
        raise InvalidRequest(
            "--keep-sessions and --volumes exclude each other: without its data nobody finds a "
            "sandbox again",
            hint="say one of them",
        )
    if volumes and not yes:
        if not sys.stdin.isatty():
            raise InvalidRequest("--volumes removes data, and nobody can be asked", hint="--yes")
        typer.confirm(
            "Remove everything this daemon keeps: stored files, keys, books?", abort=True, err=True
        )
    go(_end(state, keep_sessions=keep_sessions, volumes=volumes))


async def _end(state: State, *, keep_sessions: bool, volumes: bool) -> None:
    from sandkasten.cli.output import put_json
    from sandkasten.client.server.embedded import open_installation

    async with open_installation({}) as installer:
        removed = await installer.down(keep_sessions=keep_sessions, volumes=volumes)
    if state.json:
        put_json(asdict(removed))
    else:
        _list(removed)


def _list(removed: Removed) -> None:
    from sandkasten.cli.output import put, say, visible

    gone = (("container", removed.containers), ("volume", removed.volumes))
    for kind, names in (*gone, ("network", removed.networks)):
        for name in names:
            put(f"removed {kind} {visible(name)}")
    if not any((removed.containers, removed.volumes, removed.networks)):
        say("there is nothing to take down")
    for name in removed.kept:
        say(f"kept volume {visible(name)}")
