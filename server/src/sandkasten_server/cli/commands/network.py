"""`net …`: what a sandbox may reach, and what it tried to reach."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandkasten.model.sandbox.network_refusals import destination, rule_text
from sandkasten_server.cli.options import Id, Json, state_of
from sandkasten_server.cli.output import put, put_json, put_table, tell, visible
from sandkasten_server.cli.sandbox_names import resolve
from sandkasten_server.cli.state import State, go

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.sandbox.network_policy import NetworkAttempt, NetworkStatus

_EVERY_S = 0.5
_MAX_SHOWN = 8
_LOG_HEAD = ("SEQ", "AT", "EVENT", "TO", "RULE", "DETAIL")

# The first character keeps click from joining the lines.
_EXAMPLES = """\b
Examples:
  sandkasten create --allow preset:pypi --allow api.example.com:443
  sandkasten net log ID --follow
  sandkasten net suggest ID
  sandkasten update ID --allow preset:pypi --allow github.com"""


def commands() -> typer.Typer:
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, epilog=_EXAMPLES)
    group.callback(help="Show what a sandbox may reach, and what it tried to reach.")(_nothing)
    group.command("show")(_show)
    group.command("log")(_log)
    group.command("suggest")(_suggest)
    return group


def _nothing() -> None:
    """Show what a sandbox may reach, and what it tried to reach."""


def _show(context: typer.Context, id: Id, json: Json = False) -> None:
    """Show rules and counters."""
    go(_status(state_of(context, json=json), id, only_rules=False))


def _suggest(context: typer.Context, id: Id, json: Json = False) -> None:
    """Print a rule for each host and port that the sandbox tried to reach, one per line.

    Addresses that are not public are left out: only the operator can open them.
    """
    go(_status(state_of(context, json=json), id, only_rules=True))


def _log(
    context: typer.Context,
    id: Id,
    since_seq: Annotated[
        int, typer.Option("--since-seq", metavar="N", min=0, help="Only entries after number N.")
    ] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new entries until Ctrl-C.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document; with --follow, one per line.")
    ] = False,
) -> None:
    """List attempts, oldest first."""
    go(_attempts(state_of(context, json=json), id, since_seq, follow=follow))


async def _status(state: State, start: str, *, only_rules: bool) -> None:
    from sandkasten.client.server.server_pool import connect
    from sandkasten.model.json_codec import to_json

    transport = await connect(state.place)
    status = await transport.network.status(await resolve(state, start))
    if state.json:
        put_json(list(status.suggested) if only_rules else to_json(status))
    elif only_rules:
        for rule in status.suggested:
            put(rule)
    if only_rules and not status.suggested:
        _tell_no_network(status)
    if only_rules and status.not_public:
        tried = ", ".join(status.not_public[:_MAX_SHOWN])
        more = len(status.not_public) - _MAX_SHOWN
        tried += f" and {more} more" if more > 0 else ""
        tell("note", f"only the operator can open {tried}: network.reachable")
    if only_rules or state.json:
        return
    for line in rule_lines(status.network):
        put(visible(line))
    counted = {
        "OPEN": status.open,
        "OPENED": status.opened,
        "REFUSED": status.refused,
        "WOULD REFUSE": status.would_refuse,
        "FAILED": status.failed,
        "BYTES IN": status.bytes_in,
        "BYTES OUT": status.bytes_out,
    }
    put_table(tuple(counted), [tuple(str(count) for count in counted.values())])


def _tell_no_network(status: NetworkStatus) -> None:
    """Print why there is nothing to list."""
    if status.network == "none":
        tell("note", "the sandbox has no network (create it with --allow HOST)")


def rule_lines(network: Any) -> list[str]:
    """Return the network of a sandbox for people, one rule or limit per line."""
    if not isinstance(network, dict):
        return [str(network)]
    lines = [f"{key} {rule}" for key in ("allow", "deny") for rule in network.get(key, ())]
    lines += [f"secret {secret}" for secret in network.get("secrets", ())]
    lines += [f"limit {name}={most}" for name, most in network.get("limits", {}).items()]
    lines += ["inspect"] if network.get("inspect") else []
    return lines + (["dry run"] if network.get("dry_run") else [])


async def _attempts(state: State, start: str, since_seq: int, *, follow: bool) -> None:
    from sandkasten.client.server.server_pool import connect
    from sandkasten.model.json_codec import to_json

    transport = await connect(state.place)
    the_id = await resolve(state, start)
    attempts = await transport.network.log(the_id, since_seq=since_seq)
    if not attempts:
        _tell_no_network(await transport.network.status(the_id))
    if not follow:
        if state.json:
            put_json([to_json(attempt) for attempt in attempts])
        else:
            put_table(_LOG_HEAD, _cells(attempts))
        return
    if not state.json:
        put("  ".join(_LOG_HEAD))
    while True:
        for attempt, cells in zip(attempts, _cells(attempts), strict=True):
            since_seq = attempt.seq
            if state.json:
                put_json(to_json(attempt))
            else:
                put("  ".join(visible(cell) for cell in cells))
        await asyncio.sleep(_EVERY_S)
        attempts = await transport.network.log(the_id, since_seq=since_seq)


def _cells(attempts: Sequence[NetworkAttempt]) -> list[tuple[str, ...]]:
    from sandkasten_server.cli.commands.listings import timestamp

    return [
        (
            str(attempt.seq),
            timestamp(attempt.at),
            attempt.event,
            destination(attempt.host, attempt.address, attempt.port),
            rule_text(attempt.rule),
            attempt.reason
            or (f"{attempt.method} {attempt.path}" if attempt.method else "")
            or (
                f"{attempt.bytes_in} in, {attempt.bytes_out} out" if attempt.ms is not None else "-"
            ),
        )
        for attempt in attempts
    ]
