"""The commands of one sandbox, from `create` to `rm`, with their options."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sandkasten_server.cli.options import (
    Backend,
    Id,
    Json,
    OptionalId,
    network_of,
    pairs,
    sandbox_flags,
    state_of,
)
from sandkasten_server.cli.quantities import seconds
from sandkasten_server.cli.state import go

AllTenants = Annotated[
    bool,
    typer.Option(
        "--all-tenants", help="Those of every tenant of the daemon; requires scope admin."
    ),
]


@sandbox_flags("create")
def create(
    context: typer.Context, options: dict[str, Any], backend: Backend = None, json: Json = False
) -> None:
    """Create a persistent sandbox and print its id."""
    from sandkasten_server.cli.commands import sandbox_lifecycle

    go(sandbox_lifecycle.create(state_of(context, json=json, backend=backend), options))


def ls(
    context: typer.Context,
    all_: Annotated[
        bool, typer.Option("--all", help="Include the warm pool; a daemon does not list its own.")
    ] = False,
    all_tenants: AllTenants = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print ids only.")] = False,
    json: Json = False,
) -> None:
    """List sandboxes."""
    from sandkasten_server.cli.begun_command import begun_command
    from sandkasten_server.cli.commands import listings

    started = begun_command()
    if started is not None:
        started.check_written()
    state = state_of(context, json=json)
    go(listings.sandboxes(state, everything=all_, quiet=quiet, all_tenants=all_tenants))


def inspect(context: typer.Context, id: Id) -> None:
    """Show everything known about a sandbox and its commands, as JSON."""
    from sandkasten_server.cli.commands import listings

    go(listings.inspect(state_of(context, json=True), id))


def ps(context: typer.Context, id: Id, json: Json = False) -> None:
    """List the processes of a sandbox."""
    from sandkasten_server.cli.commands import listings

    go(listings.processes(state_of(context, json=json), id))


def stats(
    context: typer.Context,
    id: OptionalId = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Repeat until Ctrl-C, with CPU in per cent; with --json a document per line.",
        ),
    ] = False,
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="Time between two measurements.")
    ] = "2s",
    json: Json = False,
) -> None:
    """Show memory, CPU, processes, disk and network usage of one sandbox, or a table of all."""
    from sandkasten_server.cli.commands import listings

    state = state_of(context, json=json)
    go(listings.stats(state, id, follow=follow, interval_s=max(0.1, seconds(interval))))


def top(
    context: typer.Context,
    once: Annotated[
        bool, typer.Option("--once", help="Print one table and end; also where stdout is a pipe.")
    ] = False,
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="Time between two looks.")
    ] = "2s",
    all_tenants: AllTenants = False,
    json: Json = False,
) -> None:
    """Watch what all sandboxes use and run, live; q quits."""
    import sys

    from sandkasten_server.cli import top

    state = state_of(context, json=json)
    if once or json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        go(top.show_once(state, all_tenants=all_tenants))
    else:
        every_s = max(0.2, seconds(interval))
        go(top.show_live(state, all_tenants=all_tenants, interval_s=every_s))


def update(
    context: typer.Context,
    id: Id,
    ttl: Annotated[
        float | None,
        typer.Option(
            "--ttl",
            metavar="TIME",
            parser=seconds,
            help="Lifetime without activity: 90 (seconds), 30m, 12h.",
        ),
    ] = None,
    lifetime: Annotated[
        float | None,
        typer.Option(
            "--lifetime",
            metavar="TIME",
            parser=seconds,
            help="Lifetime since its creation: 90 (seconds), 30m, 12h.",
        ),
    ] = None,
    label: Annotated[
        list[str],
        typer.Option(
            "--label", "-l", metavar="K=V", help="A label; replaces all labels; repeatable."
        ),
    ] = [],  # noqa: B006
    no_labels: Annotated[bool, typer.Option("--no-labels", help="Remove all labels.")] = False,
    network: Annotated[
        str | None, typer.Option("--network", metavar="N", help="none or full.")
    ] = None,
    allow: Annotated[
        list[str],
        typer.Option(
            "--allow", metavar="RULE", help="A destination; replaces all rules; repeatable."
        ),
    ] = [],  # noqa: B006
    network_limit: Annotated[
        list[str],
        typer.Option("--network-limit", metavar="NAME=N", help="A limit of its network."),
    ] = [],  # noqa: B006
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only log what the rules would refuse.")
    ] = False,
    deny: Annotated[
        list[str],
        typer.Option(
            "--deny",
            metavar="RULE",
            help="An exception from --allow or --network full; replaces all; repeatable.",
        ),
    ] = [],  # noqa: B006
    secret: Annotated[
        list[str],
        typer.Option("--secret", metavar="NAME", help="A stored secret; with --allow; repeatable."),
    ] = [],  # noqa: B006
    inspect: Annotated[bool, typer.Option("--inspect", help="Inspect all TLS.")] = False,
    json: Json = False,
) -> None:
    """Change how long a sandbox lives, its labels, or what it may reach."""
    from sandkasten.model.sandbox.sandbox_values import UpdateRequest
    from sandkasten_server.cli.commands import sandbox_lifecycle

    rules = network_of(
        network, allow, deny, network_limit, dry_run=dry_run, secrets=secret, inspect=inspect
    )
    if ttl is None and lifetime is None and not label and not no_labels and rules is None:
        raise typer.BadParameter(
            "say what to change: --ttl, --lifetime, --label, --no-labels, --network or --allow"
        )
    labels = pairs(label, "--label") if label or no_labels else None
    request = UpdateRequest(
        ttl_seconds=ttl, lifetime_seconds=lifetime, labels=labels, network=rules
    )
    go(sandbox_lifecycle.update(state_of(context, json=json), id, request))


def pause(
    context: typer.Context,
    id: Id,
    reclaim: Annotated[
        bool, typer.Option("--reclaim", help="Also release memory to the host.")
    ] = False,
    json: Json = False,
) -> None:
    """Stop everything in a sandbox until it is resumed."""
    from sandkasten_server.cli.commands import sandbox_lifecycle

    go(sandbox_lifecycle.pause(state_of(context, json=json), id, reclaim=reclaim))


def resume(context: typer.Context, id: Id, json: Json = False) -> None:
    """Resume a paused sandbox."""
    from sandkasten_server.cli.commands import sandbox_lifecycle

    go(sandbox_lifecycle.resume(state_of(context, json=json), id))


def fork(
    context: typer.Context,
    id: Id,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", help="How many.")] = 1,
    json: Json = False,
) -> None:
    """Create copies of a sandbox, all from one moment, and print their ids. It runs on."""
    from sandkasten_server.cli.commands import sandbox_lifecycle

    raise SystemExit(go(sandbox_lifecycle.fork(state_of(context, json=json), id, count)))


def rm(
    context: typer.Context,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...")] = None,
    all_: Annotated[bool, typer.Option("--all", help="All sandboxes.")] = False,
    all_tenants: AllTenants = False,
    json: Json = False,
) -> None:
    """Destroy sandboxes."""
    from sandkasten_server.cli.commands import sandbox_lifecycle

    if bool(ids) == (all_ or all_tenants):
        raise typer.BadParameter("name sandboxes, or say --all or --all-tenants")
    state = state_of(context, json=json)
    everything = all_ or all_tenants
    raise SystemExit(
        go(
            sandbox_lifecycle.remove(
                state, ids or [], everything=everything, all_tenants=all_tenants
            )
        )
    )
