"""`workspace …`: list, create, measure, copy, enlarge and delete named workspaces."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandkasten.errors import SandkastenError
from sandkasten_server.cli.exit_status import EXIT_OURS
from sandkasten_server.cli.options import Json, state_of
from sandkasten_server.cli.output import age, put, put_json, put_table, report, size
from sandkasten_server.cli.quantities import megabytes
from sandkasten_server.cli.state import State, go

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.client.workspaces import AsyncWorkspaces
    from sandkasten.model.sandbox.workspace import Workspace

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The workspace."),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]..."),
]


def commands() -> typer.Typer:
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    group.callback(help="Named workspaces, which outlive their sandboxes.")(_nothing)
    group.command("ls")(_ls)
    group.command("create")(_create)
    group.command("du")(_du)
    group.command("cp")(_cp)
    group.command("resize")(_resize)
    group.command("rm")(_rm)
    return group


def described(workspace: Workspace) -> dict[str, Any]:
    from sandkasten_server.cli.commands.listings import timestamp

    created_at = workspace.created_at
    shown = {**asdict(workspace), "used_by": list(workspace.used_by)}
    return {
        **shown,
        "workspace_id": workspace.name,
        "created_at": None if created_at is None else timestamp(created_at),
    }


def _nothing() -> None:
    """Named workspaces, which outlive their sandboxes."""


def _ls(context: typer.Context, json: Json = False) -> None:
    """List workspaces."""
    go(_list(state_of(context, json=json), measured=None))


def _du(context: typer.Context, names: Names = None, json: Json = False) -> None:
    """Show size, usage and disk space of workspaces."""
    go(_list(state_of(context, json=json), measured=names or []))


def _create(
    context: typer.Context,
    name: Name,
    size: Annotated[
        str | None, typer.Option("--size", "-s", metavar="SIZE", help="500 (megabytes), 500M, 2G.")
    ] = None,
    json: Json = False,
) -> None:
    """Create an empty workspace."""
    state = state_of(context, json=json)
    size_mb = None if size is None else megabytes(size)

    async def make(client: AsyncWorkspaces) -> Workspace:
        return await client.create(name, size_mb=size_mb)

    go(_one(state, make))


def _cp(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A workspace that is not in use.")
    ],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Name of the copy.")],
    json: Json = False,
) -> None:
    """Copy a workspace to a new name."""
    state = state_of(context, json=json)

    async def copy(client: AsyncWorkspaces) -> Workspace:
        return await client.copy(source, target)

    go(_one(state, copy))


def _resize(
    context: typer.Context,
    name: Name,
    size: Annotated[str, typer.Argument(metavar="SIZE", help="500 (megabytes), 500M, 2G.")],
    json: Json = False,
) -> None:
    """Enlarge a workspace; it cannot shrink."""
    state = state_of(context, json=json)
    size_mb = megabytes(size)

    async def grow(client: AsyncWorkspaces) -> Workspace:
        return await client.resize(name, size_mb)

    go(_one(state, grow))


def _rm(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME...")],
    json: Json = False,
) -> None:
    """Delete workspaces and their files."""
    raise SystemExit(go(_remove(state_of(context, json=json), names)))


def _client(state: State) -> AsyncWorkspaces:
    from sandkasten.client.workspaces import AsyncWorkspaces

    return AsyncWorkspaces(**state.where)


async def _one(state: State, act: Any) -> None:
    workspace: Workspace = await act(_client(state))
    if state.json:
        put_json(described(workspace))
    else:
        put(workspace.name)


async def _list(state: State, *, measured: Sequence[str] | None) -> None:
    """Print workspaces. `measured`: None for all without usage, empty for all, else those."""
    client = _client(state)
    if measured is None:
        workspaces = await client.list()
    else:
        names = list(measured) or [workspace.name for workspace in await client.list()]
        workspaces = [await client.get(name) for name in names]
    if state.json:
        put_json([described(workspace) for workspace in workspaces])
    elif measured is None:
        _table_of_names(workspaces)
    else:
        _table_of_sizes(workspaces)


def _table_of_names(workspaces: Sequence[Workspace]) -> None:
    now = time.time()
    put_table(
        ("NAME", "SIZE", "KIND", "AGE", "USED BY", "PROBLEM"),
        [
            (
                workspace.name,
                size(workspace.size_bytes),
                workspace.kind or "-",
                "-" if workspace.created_at is None else age(now - workspace.created_at),
                ",".join(workspace.used_by) or "-",
                workspace.problem or "-",
            )
            for workspace in workspaces
        ],
    )


def _table_of_sizes(workspaces: Sequence[Workspace]) -> None:
    put_table(
        ("NAME", "SIZE", "USED", "ON DISK", "USED BY"),
        [
            (
                workspace.name,
                size(workspace.size_bytes),
                size(workspace.used_bytes),
                size(workspace.allocated_bytes),
                ",".join(workspace.used_by) or "-",
            )
            for workspace in workspaces
        ],
    )


async def _remove(state: State, names: Sequence[str]) -> int:
    """Remove each of them; a failure does not stop the others."""
    client = _client(state)
    removed: list[str] = []
    failures: list[SandkastenError] = []
    for name in dict.fromkeys(names):
        try:
            await client.delete(name)
        except SandkastenError as exc:
            failures.append(exc)
            if not state.json:
                report(exc, as_json=False)
        else:
            removed.append(name)
            if not state.json:
                put(name)
    if state.json:
        failed = [{"code": error.code, "message": error.message} for error in failures]
        put_json({"removed": removed, "failed": failed})
    return EXIT_OURS if failures else 0
