"""`secret …`: set, list and remove secrets, which never enter a sandbox."""

from __future__ import annotations

import getpass
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sandkasten.errors import InvalidRequest, SandkastenError
from sandkasten.model.access.stored_secrets import MAX_VALUE, SecretRequest, checked_secret
from sandkasten_server.cli.exit_status import EXIT_OURS
from sandkasten_server.cli.options import Json, state_of
from sandkasten_server.cli.output import put, put_json, put_table, report, say
from sandkasten_server.cli.state import State, go

if TYPE_CHECKING:
    from collections.abc import Sequence

# The first character keeps click from joining the lines.
_EXAMPLES = """\b
Examples:
  sandkasten secret set GITHUB_TOKEN --host api.github.com \\
      --header 'Authorization: Bearer {value}' < token
  sandkasten secret set GIT_PASSWORD --host git.example.com --basic me --env GIT_PASSWORD
  sandkasten create --allow api.github.com --secret GITHUB_TOKEN"""


def commands() -> typer.Typer:
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, epilog=_EXAMPLES)
    group.callback(help="Secrets, which are inserted on the way out.")(_nothing)
    group.command("set")(_set)
    group.command("ls")(_ls)
    group.command("rm")(_rm)
    return group


def _nothing() -> None:
    """Secrets, which are inserted on the way out."""


def _set(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As an environment variable.")],
    host: Annotated[
        list[str],
        typer.Option("--host", metavar="HOST", help="Where it may be sent; repeatable."),
    ] = [],  # noqa: B006
    header: Annotated[
        str | None,
        typer.Option("--header", metavar="H", help="E.g. 'Authorization: Bearer {value}'."),
    ] = None,
    basic: Annotated[
        str | None,
        typer.Option("--basic", metavar="USER", help="The user of Basic authentication."),
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", metavar="NAME", help="A query parameter.")
    ] = None,
    body: Annotated[
        bool, typer.Option("--body", help="Replace the placeholder in bodies of requests.")
    ] = False,
    env: Annotated[
        str | None,
        typer.Option("--env", metavar="VARIABLE", help="Read the value from this variable."),
    ] = None,
    json: Json = False,
) -> None:
    """Store a secret. The value is read from standard input, or asked for on a terminal."""
    request = SecretRequest(name, _value(env), host, header, basic, query, body)
    go(_store(state_of(context, json=json), checked_secret(request)))


def _value(variable: str | None) -> str:
    if variable is not None:
        if variable not in os.environ:
            raise InvalidRequest(
                f"the environment has no variable {variable[:80]!r}", hint="set it, or leave --env"
            )
        return os.environ[variable]
    if sys.stdin.isatty():
        return getpass.getpass("value: ")
    text = sys.stdin.buffer.read(MAX_VALUE + 3).decode("utf-8", "replace")
    return text.removesuffix("\n").removesuffix("\r")


def _ls(context: typer.Context, json: Json = False) -> None:
    """List secrets without their values."""
    go(_list(state_of(context, json=json)))


def _rm(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME...")],
    json: Json = False,
) -> None:
    """Remove secrets. Running sandboxes keep them."""
    raise SystemExit(go(_remove(state_of(context, json=json), names)))


async def _store(state: State, request: SecretRequest) -> None:
    from sandkasten.client.server.server_pool import connect
    from sandkasten.model.json_codec import to_json

    transport = await connect(state.place)
    secret = await transport.secrets.set(request)
    if state.json:
        put_json(to_json(secret))
        return
    say(f"{secret.name} is sent to {', '.join(secret.hosts)} ({secret.place})")
    put(secret.name)


async def _list(state: State) -> None:
    from sandkasten.client.server.server_pool import connect
    from sandkasten.model.json_codec import to_json
    from sandkasten_server.cli.commands.listings import timestamp

    secrets = await (await connect(state.place)).secrets.list()
    if state.json:
        put_json([to_json(secret) for secret in secrets])
        return
    put_table(
        ("NAME", "HOSTS", "PLACE", "UPDATED", "PLACEHOLDER"),
        [
            (
                secret.name,
                ",".join(secret.hosts),
                secret.place,
                timestamp(secret.updated_at),
                secret.placeholder,
            )
            for secret in secrets
        ],
    )


async def _remove(state: State, names: Sequence[str]) -> int:
    """Remove each of them; a failure does not stop the others."""
    from sandkasten.client.server.server_pool import connect

    secrets = (await connect(state.place)).secrets
    done, failed = [], []
    for name in dict.fromkeys(names):
        try:
            await secrets.remove(name)
        except SandkastenError as exc:
            failed.append(exc)
            if not state.json:
                report(exc, as_json=False)
        else:
            done.append(name)
            if not state.json:
                put(name)
    if state.json:
        problems = [{"code": error.code, "message": error.message} for error in failed]
        put_json({"removed": done, "failed": problems})
    return EXIT_OURS if failed else 0
