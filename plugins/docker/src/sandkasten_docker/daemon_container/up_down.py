"""`up` and `down`: a daemon as a container on the Docker Engine of DOCKER_HOST or the settings."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sandkasten_server.cli.options import Json, state_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandkasten_docker.daemon_container.installation_values import (
        InstallationRequest,
        Installed,
        Removed,
        Standing,
    )
    from sandkasten_server.cli.state import State

# The first character keeps click from joining the lines.
_UP: Final = """\b
Examples:
  sandkasten up                                   on the local Docker Engine
  sandkasten up --listen 0.0.0.0:8080             for other machines as well
  DOCKER_HOST=ssh://me@build sandkasten up        on another machine
  sandkasten up --mode sidecar                    with its own Docker Engine
  sandkasten up --mode remote --engine tcp://box:2376 --engine-certs ./certs
  sandkasten up --env SANDKASTEN_ALLOWED_IMAGES=python --recreate
  SANDKASTEN_MODELS_BASE_URL=https://models.example/v1 sandkasten up --agents ./agents
  sandkasten up --dry-run                         print what it would create

A second `up` reports the running daemon. Pass settings of the daemon with --env; the models
(models.base_url, models.default, models.api_key) are taken from the settings here. Its data is in
the volume sandkasten-data. Mode docker_socket gives the daemon the Docker socket, which is root
access to that machine: see the guide to Docker."""
_DOWN: Final = """\b
Examples:
  sandkasten down                        the daemon and its sandboxes; its data stays
  sandkasten down --keep-sessions        only the daemon; the next `up` finds the sandboxes
  sandkasten down --volumes --yes        everything"""


def add_to(app: typer.Typer) -> None:
    app.command("up", epilog=_UP)(_up)
    app.command("down", epilog=_DOWN)(_down)


async def modes(state: State, context: typer.Context) -> Iterable[str]:
    """Return what completes `up --mode`."""
    from sandkasten_docker.daemon_container.install_plan import MODES

    return MODES


async def workspace_modes(state: State, context: typer.Context) -> Iterable[str]:
    """Return what completes `up --workspace`."""
    from sandkasten_docker.docker_options import WORKSPACE_MODES

    return WORKSPACE_MODES


def _up(
    context: typer.Context,
    image: Annotated[
        str, typer.Option(metavar="I", help="The daemon's image (sandkasten:VERSION).")
    ] = "",
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Published address (127.0.0.1:8080)."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Its key; better set SANDKASTEN_API_KEY; default: generated."
        ),
    ] = None,
    mode: Annotated[
        str, typer.Option(metavar="M", help="docker_socket, sidecar or remote.")
    ] = "docker_socket",
    workspace: Annotated[
        str | None,
        typer.Option(metavar="W", help="Storage of workspaces: auto, bind, shared, volume…"),
    ] = None,
    socket: Annotated[
        str, typer.Option(metavar="PATH", help="The Docker Engine's socket, on its machine.")
    ] = "",
    engine_image: Annotated[
        str, typer.Option(metavar="I", help="Mode sidecar: the image of the Docker Engine.")
    ] = "",
    engine: Annotated[
        str, typer.Option(metavar="HOST", help="Mode remote: the Docker Engine, tcp://HOST:PORT.")
    ] = "",
    engine_certs: Annotated[
        str, typer.Option(metavar="DIR", help="Mode remote: ca.pem, cert.pem and key.pem.")
    ] = "",
    agents: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Agents to mount read-only (./agents if it exists)."),
    ] = None,
    workflows: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Workflows to mount read-only (./workflows if it exists)."
        ),
    ] = None,
    env: Annotated[
        list[str],
        typer.Option(
            "--env", "-e", metavar="K=V", help="An environment variable of the daemon; repeatable."
        ),
    ] = [],  # noqa: B006  (typer reads it, nothing writes to it)
    timeout: Annotated[
        float, typer.Option(metavar="S", help="Seconds to wait until it is ready.")
    ] = 60.0,
    recreate: Annotated[
        bool, typer.Option("--recreate", help="Replace a running daemon; sandboxes keep running.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and create nothing.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Print the status; exit 1 if it is not ready.")
    ] = False,
    json: Json = False,
) -> None:
    """Start the daemon as a container and wait until it is ready."""
    from sandkasten_docker.daemon_container.installation_values import InstallationRequest
    from sandkasten_server.cli.options import pairs
    from sandkasten_server.cli.state import go

    state = state_of(context, json=json)
    request = InstallationRequest(
        image=image,
        mode=mode,
        socket=socket,
        docker_engine_image=engine_image,
        docker_host=engine,
        docker_certs=engine_certs,
        agents=agents,
        workflows=workflows,
        env=pairs(env, "--env"),
        recreate=recreate,
        timeout_s=timeout,
    )
    values = {
        "listen": listen,
        "api_key": api_key if api_key is not None else state.api_key,
        "backends.docker.workspace_mode": workspace,
    }
    flags = {name: value for name, value in values.items() if value is not None}
    if status:
        raise SystemExit(go(_status(state, flags)))
    go(_draw(state, request, flags) if dry_run else _begin(state, request, flags))


async def _begin(state: State, request: InstallationRequest, flags: dict[str, str]) -> None:
    from sandkasten.errors import BackendUnavailable
    from sandkasten_docker.daemon_container.installation import installation
    from sandkasten_server.cli.output import put_json, say, visible
    from sandkasten_server.daemon.in_process import settings_in_force

    async with installation(settings_in_force(flags)) as installer:
        try:
            done = await installer.up(request)
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
    from sandkasten_server.cli.output import put, say, visible

    if done.begun == "running":
        say(f"a daemon is already running: {visible(done.image)}, {done.mode}")
        if done.changed:
            say("these options differ from its own; to apply them: sandkasten up --recreate …")
    else:
        say(f"{done.begun}: {visible(done.image)}, {done.mode}; ready")
    for note in done.notes:
        say(f"note: {visible(note)}")
    if done.machine:
        say(f"it is published on {visible(done.machine)}, not on this machine")
    put(f"export SANDKASTEN_URL={done.url}")
    if done.api_key is not None:
        put(f"export SANDKASTEN_API_KEY={done.api_key}")
        say("the key is not shown again")


async def _draw(state: State, request: InstallationRequest, flags: dict[str, str]) -> None:
    from sandkasten_docker.daemon_container.installation import installation
    from sandkasten_server.cli.output import put, put_json, say
    from sandkasten_server.daemon.in_process import settings_in_force

    async with installation(settings_in_force(flags)) as installer:
        drawn = await installer.drawn(request)
    if state.json:
        put_json({**drawn.document, "commands": list(drawn.commands)})
        return
    import json

    put(json.dumps(drawn.document, indent=2))
    say("the same with docker, with a key in SANDKASTEN_API_KEY:")
    for line in drawn.commands:
        say(f"  {line}")


async def _status(state: State, flags: dict[str, str]) -> int:
    from sandkasten_docker.daemon_container.installation import installation
    from sandkasten_server.cli.exit_status import EXIT_NOT_READY
    from sandkasten_server.cli.output import put_json
    from sandkasten_server.daemon.in_process import settings_in_force

    async with installation(settings_in_force(flags)) as installer:
        standing = await installer.status()
    if state.json:
        put_json(asdict(standing))
    else:
        _show(standing)
    return 0 if standing.ready else EXIT_NOT_READY


def _show(standing: Standing) -> None:
    from sandkasten_server.cli.output import put, visible

    rows: dict[str, Any] = asdict(standing)
    for name, value in rows.items():
        if value not in ("", None):
            put(f"{name}: {visible(str(value).lower() if name == 'ready' else str(value))}")


def _down(
    context: typer.Context,
    keep_sessions: Annotated[
        bool, typer.Option("--keep-sessions", help="Keep the sandboxes for the next daemon.")
    ] = False,
    volumes: Annotated[
        bool, typer.Option("--volumes", help="Also delete its data: files, keys, journal.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: Json = False,
) -> None:
    """Remove the daemon and its sandboxes. It can be repeated."""
    from sandkasten_server.cli.exit_status import UsageError
    from sandkasten_server.cli.state import go

    state = state_of(context, json=json)
    if keep_sessions and volumes:
        raise UsageError(
            "--keep-sessions and --volumes exclude each other: without the data no daemon finds "
            "the sandboxes",
            hint="pass one of them",
        )
    if volumes and not yes:
        if not sys.stdin.isatty():
            raise UsageError("--volumes deletes data", hint="pass --yes when not on a terminal")
        typer.confirm(
            "Delete all data of this daemon (stored files, keys, journal)?", abort=True, err=True
        )
    go(_end(state, keep_sessions=keep_sessions, volumes=volumes))


async def _end(state: State, *, keep_sessions: bool, volumes: bool) -> None:
    from sandkasten_docker.daemon_container.installation import installation
    from sandkasten_server.cli.output import put_json
    from sandkasten_server.daemon.in_process import settings_in_force

    async with installation(settings_in_force({})) as installer:
        removed = await installer.down(keep_sessions=keep_sessions, volumes=volumes)
    if state.json:
        put_json(asdict(removed))
    else:
        _list(removed)


def _list(removed: Removed) -> None:
    from sandkasten_server.cli.output import put, say, visible

    groups = (("container", removed.containers), ("volume", removed.volumes))
    for kind, names in (*groups, ("network", removed.networks)):
        for name in names:
            put(f"removed {kind} {visible(name)}")
    if not any((removed.containers, removed.volumes, removed.networks)):
        say("nothing to remove")
    for name in removed.kept:
        say(f"kept volume {visible(name)}")
