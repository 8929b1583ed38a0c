"""`audit …`: who changed what through the daemon."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from sandkasten.cli.output import put, put_json, put_table, visible
from sandkasten.cli.state import State, go

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.journal_rows import AuditRow

# Quick enough for a reader, and no load for the daemon.
_EVERY_S = 1.0


# The first character keeps click from joining the lines.
_EXAMPLES = """\b
Examples:
  sandkasten audit ls --tenant acme --limit 20
  sandkasten audit ls --action key.create --json
  sandkasten audit ls --follow

Requires the operator, or a key with scope admin. Commands and files inside a session
are not recorded. Retention: retention.audit_seconds."""


def commands() -> typer.Typer:
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, epilog=_EXAMPLES)
    group.callback(help="Who changed what through the daemon.")(_nothing)
    group.command("ls")(_ls)
    return group


def described(row: AuditRow) -> dict[str, Any]:
    from sandkasten.cli.commands.listings import timestamp

    return {
        **{one.name: getattr(row, one.name) for one in fields(row)},
        "at": timestamp(row.at),
        "detail": dict(row.detail),
    }


def _nothing() -> None:
    """Who changed what through the daemon."""


def _ls(
    context: typer.Context,
    tenant: Annotated[
        str | None, typer.Option("--tenant", "-t", metavar="T", help="Only this tenant.")
    ] = None,
    action: Annotated[
        str | None, typer.Option("--action", "-a", metavar="A", help="session.create, key.revoke…")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="ID", help="Only this object.")
    ] = None,
    since_seq: Annotated[
        int | None, typer.Option("--since-seq", metavar="N", help="Only entries after number N.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1000, help="At most N entries.")
    ] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new entries until Ctrl-C.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document; with --follow, one per line.")
    ] = False,
) -> None:
    """List changes, oldest first."""
    state = cast("State", context.obj)
    state.json = json
    wanted = {"tenant": tenant, "action": action, "target": target, "limit": limit}
    go(_follow(state, since_seq, wanted) if follow else _list(state, since_seq, wanted))


async def _list(state: State, since_seq: int | None, wanted: dict[str, Any]) -> None:
    from sandkasten.client.server.admin_transport import books_of

    async with books_of(state.place) as books:
        rows = await books.audited(since_seq=since_seq, **wanted)
    if state.json:
        put_json([described(row) for row in rows])
        return
    put_table(("SEQ", "AT", "TENANT", "KEY", "ACTION", "TARGET", "OUTCOME"), _cells(rows))


async def _follow(state: State, since_seq: int | None, wanted: dict[str, Any]) -> None:
    from sandkasten.client.server.admin_transport import books_of

    while True:
        # Opened anew each time, so that a daemon can start in between.
        async with books_of(state.place) as books:
            rows = await books.audited(since_seq=since_seq, **wanted)
        if state.json:
            for row in rows:
                put_json(described(row))
        else:
            for cells in _cells(rows):
                put("  ".join(visible(cell) for cell in cells))
        since_seq = rows[-1].seq if rows else since_seq or 0
        await asyncio.sleep(_EVERY_S)


def _cells(rows: Sequence[AuditRow]) -> list[tuple[str, ...]]:
    from sandkasten.cli.commands.listings import timestamp

    return [
        (
            str(row.seq),
            timestamp(row.at),
            row.tenant or "-",
            row.key_id or "-",
            row.action,
            row.target or "-",
            row.outcome,
        )
        for row in rows
    ]
