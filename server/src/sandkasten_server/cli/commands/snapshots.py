"""`snapshot …`: take, list, show and remove snapshots of sandboxes."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandkasten.errors import SandkastenError
from sandkasten.model.json_codec import to_json
from sandkasten_server.cli.exit_status import EXIT_OURS
from sandkasten_server.cli.options import Json, pairs, state_of
from sandkasten_server.cli.output import age, put, put_json, put_table, report, size, tell
from sandkasten_server.cli.sandbox_names import resolve
from sandkasten_server.cli.state import State, go

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sandkasten.client.snapshots import AsyncSnapshots
    from sandkasten.model.sandbox.snapshot import NotKept, Snapshot

_SNAPSHOT = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Its id or name.")]


def commands() -> typer.Typer:
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    group.callback(help="Snapshots of the files of sandboxes.")(_nothing)
    group.command("create")(_create)
    group.command("ls")(_ls)
    group.command("show")(_show)
    group.command("rm")(_rm)
    return group


def _nothing() -> None:
    """Snapshots of the files of sandboxes."""


def _create(
    context: typer.Context,
    start: Annotated[str, typer.Argument(metavar="ID", help="The sandbox.")],
    name: Annotated[
        str | None, typer.Option("--name", "-n", metavar="NAME", help="A name to find it by.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="K=V", help="A label; repeatable.")
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(
            "--keep-last", metavar="N", help="Remove older snapshots of this name, and keep N."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Keep the files of a sandbox, as they are now. The sandbox runs on."""
    labels = None if label is None else pairs(label, "--label")
    go(_take(state_of(context, json=json), start, name, labels, keep_last))


def _ls(context: typer.Context, json: Json = False) -> None:
    """List snapshots, each below the one that its sandbox was created from."""
    go(_list(state_of(context, json=json)))


def _show(context: typer.Context, snapshot: _SNAPSHOT, json: Json = False) -> None:
    """Show a snapshot."""
    go(_describe(state_of(context, json=json), snapshot))


def _rm(
    context: typer.Context,
    snapshots: Annotated[list[str], typer.Argument(metavar="SNAPSHOT...", help="Ids or names.")],
    json: Json = False,
) -> None:
    """Remove snapshots; sandboxes that were created from them keep their files."""
    raise SystemExit(go(_remove(state_of(context, json=json), snapshots)))


def _client(state: State) -> AsyncSnapshots:
    from sandkasten.client.snapshots import AsyncSnapshots

    return AsyncSnapshots(**state.where)


async def _take(
    state: State,
    start: str,
    name: str | None,
    labels: dict[str, str] | None,
    keep_last: int | None,
) -> None:
    from sandkasten.client.server.server_pool import connect
    from sandkasten.model.sandbox.snapshot import SnapshotRequest

    transport = await connect(state.place)
    request = SnapshotRequest(name, labels, keep_last)
    snapshot = await transport.snapshots.create(await resolve(state, start), request)
    if state.json:
        put_json(to_json(snapshot))
        return
    warn_not_kept(snapshot.not_kept)
    put(snapshot.id)


async def _list(state: State) -> None:
    snapshots = await _client(state).list()
    if state.json:
        put_json([to_json(snapshot) for snapshot in snapshots])
        return
    now = time.time()
    put_table(
        ("SNAPSHOT", "NAME", "IMAGE", "SIZE", "AGE", "SANDBOX"),
        [
            (
                "  " * depth + snapshot.id,
                snapshot.name or "-",
                snapshot.image,
                size(snapshot.size_bytes),
                age(now - snapshot.created_at),
                snapshot.sandbox_id,
            )
            for depth, snapshot in tree(snapshots)
        ],
    )


def tree(snapshots: Sequence[Snapshot]) -> Iterator[tuple[int, Snapshot]]:
    """Yield each snapshot after its parent, with its depth. One without its parent is a root."""
    there = {snapshot.id for snapshot in snapshots}
    below: dict[str | None, list[Snapshot]] = defaultdict(list)
    for snapshot in snapshots:
        below[snapshot.parent if snapshot.parent in there else None].append(snapshot)
    left = [(0, snapshot) for snapshot in reversed(below[None])]
    while left:
        depth, snapshot = left.pop()
        yield depth, snapshot
        left += [(depth + 1, child) for child in reversed(below[snapshot.id])]


async def _describe(state: State, text: str) -> None:
    snapshot = await _client(state).get(text)
    if state.json:
        put_json(to_json(snapshot))
        return
    rows: list[tuple[str, Any]] = [
        ("id", snapshot.id),
        ("name", snapshot.name),
        ("parent", snapshot.parent),
        ("sandbox", snapshot.sandbox_id),
        ("image", snapshot.image),
        ("backend", snapshot.backend),
        ("profile", snapshot.profile),
        ("size", size(snapshot.size_bytes)),
        ("method", snapshot.method),
        ("stopped for", f"{snapshot.frozen_ms:.1f} ms"),
        ("shells", ", ".join(snapshot.shells)),
        ("environment", ", ".join(snapshot.env_names)),
        *(("label", f"{key}={value}") for key, value in snapshot.labels.items()),
        *(("not kept", text) for text in _not_kept(snapshot.not_kept)),
    ]
    put_table(("", ""), [(name, str(value)) for name, value in rows if value])


def warn_not_kept(not_kept: NotKept) -> None:
    """Warn about what a sandbox had that its copy does not have."""
    if missing := "; ".join(_not_kept(not_kept)):
        tell("warning", f"not kept: {missing}")


def _not_kept(not_kept: NotKept) -> list[str]:
    lists = {
        "command": not_kept.commands,
        "code context": not_kept.contexts,
        "shell": not_kept.shells,
        "mount": not_kept.mounts,
        "files of": not_kept.paths,
    }
    words = [f"{what} {name}" for what, names in lists.items() for name in names]
    return [*words, *([f"other processes: {not_kept.processes}"] if not_kept.processes else [])]


async def _remove(state: State, texts: Sequence[str]) -> int:
    """Remove each of them; a failure does not stop the others."""
    client = _client(state)
    removed: list[str] = []
    failures: list[SandkastenError] = []
    for text in dict.fromkeys(texts):
        try:
            await client.delete(text)
        except SandkastenError as exc:
            failures.append(exc)
            if not state.json:
                report(exc, as_json=False)
        else:
            removed.append(text)
            if not state.json:
                put(text)
    if state.json:
        failed = [{"code": error.code, "message": error.message} for error in failures]
        put_json({"removed": removed, "failed": failed})
    return EXIT_OURS if failures else 0
