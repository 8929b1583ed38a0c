"""`key …`: create, list and revoke API keys."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandkasten.errors import SandkastenError
from sandkasten.model.access.api_keys import KeyRequest, e2b_spelling
from sandkasten.model.sandbox.network_limits import LIMIT_EXAMPLES, read_limit
from sandkasten.model.spelling import shown
from sandkasten_server.cli.exit_status import EXIT_OURS, UsageError
from sandkasten_server.cli.options import Json, state_of
from sandkasten_server.cli.output import age, put, put_json, put_table, report, say
from sandkasten_server.cli.quantities import megabytes, seconds
from sandkasten_server.cli.state import State, go

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.journal_rows import KeyRow


# The first character keeps click from joining the lines.
_EXAMPLES = """\b
Examples:
  sandkasten key create --tenant acme --name ci > ci.key
  sandkasten key create -t acme --scope sessions --expires 30d \\
    --max-sessions 20 --max-memory 8G --max-disk 50G --rate 100 \\
    --max-network-connections 200 --max-network-bytes-per-day 10G
  sandkasten key revoke key_4f0c1d2e3a5b

Uses the running daemon, as its operator (Unix socket) or with a key of scope admin;
without a daemon the data directory, for instance before the first start.
A tenant exists as soon as a key names it."""


def commands() -> typer.Typer:
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, epilog=_EXAMPLES)
    group.callback(help="API keys, each with its tenant, scopes and quotas.")(_nothing)
    group.command("create")(_create)
    group.command("ls")(_ls)
    group.command("revoke")(_revoke)
    group.command("usage")(_usage)
    return group


def described(row: KeyRow) -> dict[str, Any]:
    from sandkasten_server.cli.commands.listings import timestamp

    shown = {**asdict(row), "scopes": sorted(row.scopes)}
    times = {name: value for name, value in shown.items() if name.endswith("_at")}
    return shown | {k: None if v is None else timestamp(v) for k, v in times.items()}


def _nothing() -> None:
    """API keys, each with its tenant, scopes and quotas."""


def _create(
    context: typer.Context,
    tenant: Annotated[
        str | None, typer.Option("--tenant", "-t", metavar="T", help="The tenant (default).")
    ] = None,
    name: Annotated[str, typer.Option("--name", "-n", metavar="N", help="A comment.")] = "",
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope",
            metavar="S",
            help="sessions, files, workspaces, images, secrets, metrics or admin; repeatable. "
            "Without one: sessions, files and workspaces.",
        ),
    ] = [],  # noqa: B006
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="D", help="Ends after 90 (seconds), 12h, 30d."),
    ] = None,
    max_sessions: Annotated[
        int | None, typer.Option("--max-sessions", metavar="N", help="Concurrent sessions.")
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option("--max-memory", metavar="SIZE", help="Memory of its sandboxes in total."),
    ] = None,
    max_disk: Annotated[
        str | None,
        typer.Option(
            "--max-disk", metavar="SIZE", help="Disk space of workspaces and stored files."
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", help="Requests per second.")
    ] = None,
    max_connections: Annotated[
        int | None,
        typer.Option(
            "--max-network-connections",
            metavar="N",
            help="Sum of the connection limits of its sandboxes.",
        ),
    ] = None,
    max_bandwidth: Annotated[
        str | None,
        typer.Option(
            "--max-network-bandwidth",
            metavar="BPS",
            help="Sum of the bandwidth limits of its sandboxes: 50M is 50000000 bits per second.",
        ),
    ] = None,
    max_traffic: Annotated[
        str | None,
        typer.Option(
            "--max-network-bytes-per-day",
            metavar="SIZE",
            help="Bytes that its sandboxes send and receive on a day (UTC): 500M, 10G.",
        ),
    ] = None,
    e2b: Annotated[
        bool,
        typer.Option("--e2b", help="Print it as clients of E2B accept keys: e2b_ and hex digits."),
    ] = False,
    json: Json = False,
) -> None:
    """Create a key and print it. It is not shown again."""
    request = KeyRequest(
        tenant=tenant,
        name=name,
        scopes=scope or None,
        expires_in_s=None if expires is None else seconds(expires),
        quota={
            "max_sessions": max_sessions,
            "max_memory_bytes": _bytes(max_memory),
            "max_disk_bytes": _bytes(max_disk),
            "requests_per_second": rate,
            "max_network_connections": max_connections,
            "max_network_bandwidth_bps": _limit(
                "--max-network-bandwidth", "bandwidth_bps", max_bandwidth
            ),
            "max_network_bytes_per_day": _limit(
                "--max-network-bytes-per-day", "bytes_in", max_traffic
            ),
        },
    )
    go(_make(state_of(context, json=json), request, e2b=e2b))


def _ls(
    context: typer.Context,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", metavar="T")] = None,
    json: Json = False,
) -> None:
    """List keys, including revoked and expired ones, without their secrets."""
    go(_list(state_of(context, json=json), tenant))


def _revoke(
    context: typer.Context,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="key_…")],
    json: Json = False,
) -> None:
    """Revoke keys."""
    raise SystemExit(go(_end(state_of(context, json=json), ids)))


def _usage(context: typer.Context, json: Json = False) -> None:
    """Show what the tenant uses, and the quota of the key in use. Requires a daemon."""
    go(_show_usage(state_of(context, json=json)))


def _bytes(size: str | None) -> int | None:
    return None if size is None else int(megabytes(size) * 1024 * 1024)


def _limit(flag: str, like: str, written: str | None) -> int | None:
    """Return a quota in the units of the limit of one sandbox that it is a sum of."""
    limit = None if written is None else read_limit(like, written)
    if written is not None and limit is None:
        raise UsageError(
            f"{flag} must be a number, got {shown(written)}", hint=f"write {LIMIT_EXAMPLES[like]}"
        )
    return limit


async def _make(state: State, request: KeyRequest, *, e2b: bool) -> None:
    from sandkasten.client.server.admin_transport import books_of

    async with books_of(state.place) as books:
        key = await books.keys.create(request)
    text = e2b_spelling(key.text) if e2b else key.text
    if state.json:
        put_json({**described(key.row), "key": text})
        return
    say(f"{key.row.id} for tenant {key.row.tenant}; the key is not shown again")
    put(text)


async def _show_usage(state: State) -> None:
    from sandkasten.client.server.admin_transport import books_of

    async with books_of(state.place) as books:
        usage = await books.keys.usage()
    if state.json:
        put_json(asdict(usage))
        return
    used, quota = usage.used, usage.quota
    rows = (
        ("sessions", used.sessions, quota.max_sessions),
        ("memory_bytes", used.memory_bytes, quota.max_memory_bytes),
        ("disk_bytes", used.disk_bytes, quota.max_disk_bytes),
        ("network_connections", used.network_connections, quota.max_network_connections),
        ("network_bandwidth_bps", used.network_bandwidth_bps, quota.max_network_bandwidth_bps),
        ("network_bytes_per_day", used.network_bytes_today, quota.max_network_bytes_per_day),
    )
    say(f"tenant {usage.tenant}")
    put_table(
        ("QUOTA", "USED", "LIMIT"),
        [
            (name, "no limit" if have is None else str(have), "-" if most is None else str(most))
            for name, have, most in rows
        ],
    )


async def _list(state: State, tenant: str | None) -> None:
    from sandkasten.client.server.admin_transport import books_of

    async with books_of(state.place) as books:
        rows = await books.keys.list(tenant)
    if state.json:
        put_json([described(row) for row in rows])
        return
    now = time.time()
    put_table(
        ("ID", "TENANT", "NAME", "SCOPES", "STATE", "AGE", "LAST USED"),
        [
            (
                row.id,
                row.tenant,
                row.name or "-",
                ",".join(sorted(row.scopes)),
                _standing(row, now),
                age(now - row.created_at),
                "-" if row.last_used_at is None else age(now - row.last_used_at) + " ago",
            )
            for row in rows
        ],
    )


def _standing(row: KeyRow, now: float) -> str:
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= now else "active"


async def _end(state: State, ids: Sequence[str]) -> int:
    """Remove each of them; a failure does not stop the others."""
    from sandkasten.client.server.admin_transport import books_of

    done: list[KeyRow] = []
    failed: list[SandkastenError] = []
    async with books_of(state.place) as books:
        for key_id in dict.fromkeys(ids):
            try:
                done.append(await books.keys.revoke(key_id))
            except SandkastenError as exc:
                failed.append(exc)
                if not state.json:
                    report(exc, as_json=False)
            else:
                if not state.json:
                    put(key_id)
    if state.json:
        put_json(
            {
                "revoked": [described(row) for row in done],
                "failed": [{"code": error.code, "message": error.message} for error in failed],
            }
        )
    return EXIT_OURS if failed else 0
