"""`audit …`: what was done, by which key, and whether the records are unchanged."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import asdict, fields, replace
from datetime import datetime
from functools import partial
from pathlib import Path  # noqa: TC003  (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from sandkasten.model.audit_records import KINDS, AuditFilter, AuditHead
from sandkasten_server.cli.exit_status import EXIT_NOT_READY, UsageError
from sandkasten_server.cli.output import (
    counted,
    paragraph,
    put,
    put_json,
    put_table,
    say,
    tell,
    visible,
)
from sandkasten_server.cli.sandbox_names import resolve_among
from sandkasten_server.cli.state import State, go

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.audit_records import AuditReport, AuditRow

# Quick enough for a reader, and no load for the daemon.
_EVERY_S = 1.0
_MOST_DETAIL = 100


# The first character keeps click from joining the lines.
_EXAMPLES = """\b
Examples:
  sandkasten audit show --session sbx_3f2a --kind exec
  sandkasten audit show --since 1h --kind policy --json
  sandkasten audit show --follow
  sandkasten audit verify
  sandkasten audit export audit.jsonl && sandkasten audit verify --file audit.jsonl

Requires the operator, or a key with scope admin.
Retention: retention.audit_seconds and retention.audit_bytes."""


def commands() -> typer.Typer:
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, epilog=_EXAMPLES)
    group.callback(help="What was done, by which key, and whether the records are unchanged.")(
        _nothing
    )
    group.command("show")(_show)
    group.command("verify")(_verify)
    group.command("export")(_export)
    # The name of earlier versions.
    group.command("ls", hidden=True)(_show)
    return group


def described(row: AuditRow) -> dict[str, Any]:
    from sandkasten_server.cli.commands.listings import timestamp

    return {
        **{field.name: getattr(row, field.name) for field in fields(row)},
        "at": timestamp(row.at),
        "detail": dict(row.detail),
        "usage": dict(row.usage),
    }


def _nothing() -> None:
    """What was done, by which key, and whether the records are unchanged."""


def _show(
    context: typer.Context,
    session: Annotated[
        str | None,
        typer.Option("--session", "-s", metavar="ID", help="Only this sandbox, also an ended one."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="ID", help="Only what used this key.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="K", help="One of " + ", ".join(KINDS) + ".")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="T", help="Only from 30m ago or 2026-01-31T12:00 on."),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", "-t", metavar="T", help="Only this tenant.")
    ] = None,
    action: Annotated[
        str | None, typer.Option("--action", "-a", metavar="A", help="exec.start, key.revoke…")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="ID", help="Only this object.")
    ] = None,
    since_seq: Annotated[
        int | None, typer.Option("--since-seq", metavar="N", help="Only records after number N.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1000, help="At most N records.")
    ] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records until Ctrl-C.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document; with --follow, one per line.")
    ] = False,
) -> None:
    """Show records, oldest first."""
    state = cast("State", context.obj)
    state.json = json
    if kind is not None and kind not in KINDS:
        raise UsageError(f"{kind!r} is not a kind of record", hint="one of " + ", ".join(KINDS))
    wanted = AuditFilter(
        tenant=tenant,
        kind=kind,
        action=action,
        target=target,
        session_id=session,
        key_id=key,
        since=None if since is None else _unix_time(since),
        since_seq=since_seq or 0,
        limit=limit,
        newest=since_seq is None,
    )
    go(_shown(state, wanted, follow=follow))


def _verify(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Check an exported file instead.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="SEQ:HASH", help="A record that must be there, too."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check that no record was changed, removed or moved. Exit with 1 if one was."""
    state = cast("State", context.obj)
    state.json = json
    wanted = None if head is None else _head(head)
    report = _verified_file(file, wanted) if file is not None else go(_verified(state, wanted))
    if json:
        put_json(asdict(report))
    elif report.ok:
        put(f"ok: {counted(report.records, 'record')}, {report.first_seq} to {report.last_seq}")
        put(f"head: {report.last_seq}:{report.head}")
    else:
        assert report.flaw is not None
        place = f" ({report.flaw.place})" if report.flaw.place else ""
        tell("error", f"record {report.flaw.seq}{place}: {report.flaw.message}")
        say(f"unchanged before it: {counted(report.records, 'record')}")
    # Retention removes records, and then nothing here can confirm the hash.
    unchecked = wanted is not None and report.ok and wanted.seq < report.first_seq
    if unchecked:
        tell("error", f"{head} was not checked: the log begins with record {report.first_seq}")
        say("hint: pass a newer head, or verify an export that has this record (--file)")
    if unchecked or not report.ok:
        raise typer.Exit(EXIT_NOT_READY)


def _export(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Where to write; stdout if omitted.")
    ] = None,
) -> None:
    """Write all records as JSON lines, as they are stored."""
    go(_exported(cast("State", context.obj), file))


async def _shown(state: State, wanted: AuditFilter, *, follow: bool) -> None:
    if wanted.session_id is not None:
        the_id = await resolve_among(wanted.session_id, partial(_sandboxes, state))
        wanted = replace(wanted, session_id=the_id)
    await (_follow(state, wanted) if follow else _list(state, wanted))


async def _sandboxes(state: State) -> set[str]:
    """Return the sandboxes that were created last."""
    from sandkasten.client.server.admin_transport import books_of

    created = AuditFilter(kind="policy", action="policy.allow", limit=1000, newest=True)
    async with books_of(state.place) as books:
        rows = await books.audited(created)
    return {row.session_id for row in rows if row.session_id is not None}


async def _list(state: State, wanted: AuditFilter) -> None:
    from sandkasten.client.server.admin_transport import books_of

    async with books_of(state.place) as books:
        rows = await books.audited(wanted)
    if state.json:
        put_json([described(row) for row in rows])
        return
    head = ("SEQ", "AT", "TENANT", "KEY", "ACTION", "TARGET", "OUTCOME", "DETAIL")
    put_table(head, _cells(rows), [_lines(row) for row in rows])


async def _follow(state: State, wanted: AuditFilter) -> None:
    from sandkasten.client.server.admin_transport import books_of

    while True:
        # Opened anew each time, so that a daemon can start in between.
        async with books_of(state.place) as books:
            rows = await books.audited(wanted)
        if state.json:
            for row in rows:
                put_json(described(row))
        else:
            for row, cells in zip(rows, _cells(rows), strict=True):
                put("  ".join(visible(cell) for cell in cells))
                if lines := _lines(row):
                    put("    " + paragraph(lines, "    "))
        seq = rows[-1].seq if rows else wanted.since_seq
        wanted = replace(wanted, since_seq=seq, newest=False)
        await asyncio.sleep(_EVERY_S)


async def _verified(state: State, head: AuditHead | None) -> AuditReport:
    from sandkasten.client.server.admin_transport import books_of

    async with books_of(state.place) as books:
        return await books.audit_verified(head)


def _verified_file(path: Path, head: AuditHead | None) -> AuditReport:
    from sandkasten.model.audit_chain import MAX_LINE_BYTES, ChainCheck

    check = ChainCheck([] if head is None else [head])
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                if not check.add(line, f"line {number}"):
                    break
    except OSError as exc:
        raise UsageError(
            f"{path} cannot be read: {exc.strerror}", hint="name an exported file"
        ) from exc
    return check.report()


async def _exported(state: State, path: Path | None) -> None:
    from sandkasten.client.server.admin_transport import books_of

    async with books_of(state.place) as books, books.audit_lines() as lines:
        if path is None:
            async for piece in lines:
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            return
        try:
            # Only for this user: the records name hosts, files and commands.
            opener = partial(os.open, mode=0o600)
            with open(path, "wb", opener=opener) as file:  # noqa: ASYNC230  (our only task)
                async for piece in lines:
                    file.write(piece)
        except OSError as exc:
            raise UsageError(
                f"{path} cannot be written: {exc.strerror}", hint="name another file"
            ) from exc


def _unix_time(text: str) -> float:
    from sandkasten_server.cli.quantities import seconds

    try:
        # Without an offset it is local time, as a person reads a clock.
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return time.time() - seconds(text)


def _head(text: str) -> AuditHead:
    seq, _, hashed = text.partition(":")
    if not seq.isdecimal() or len(hashed) != 64 or not set(hashed) <= set("0123456789abcdef"):
        raise UsageError(f"{text!r} is not a head", hint="write SEQ:HASH as audit verify prints it")
    return AuditHead(int(seq), hashed)


def _cells(rows: Sequence[AuditRow]) -> list[tuple[str, ...]]:
    from sandkasten_server.cli.commands.listings import timestamp

    return [
        (
            str(row.seq),
            timestamp(row.at),
            row.tenant or "-",
            row.key_id or "-",
            row.action,
            row.target or "-",
            row.outcome,
            _detail(row),
        )
        for row in rows
    ]


def _detail(row: AuditRow) -> str:
    lines = _lines(row)
    parts = [f"{name}={value}" for name, value in row.detail.items() if value != lines]
    parts += [f"{name}={value}" for name, value in row.usage.items() if value]
    text = " ".join(parts)
    return text if len(text) <= _MOST_DETAIL else text[: _MOST_DETAIL - 1] + "…"


def _lines(row: AuditRow) -> str:
    """Return the code or command of a record if it has several lines, which are shown below it."""
    text = row.detail.get("code") or row.detail.get("command") or ""
    return text if "\n" in text.rstrip("\n") else ""
