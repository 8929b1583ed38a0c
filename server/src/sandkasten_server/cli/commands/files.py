"""`files …`: the file store, whose files outlive sandboxes."""

from __future__ import annotations

import asyncio
import mimetypes
import os
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from sandkasten.disk.atomic_file import overwriting
from sandkasten.errors import FileNotFound, FileTrouble, SandkastenError
from sandkasten_server.cli.exit_status import EXIT_OURS, UsageError
from sandkasten_server.cli.options import Json, state_of
from sandkasten_server.cli.output import age, put, put_json, put_table, report, say, size
from sandkasten_server.cli.quantities import seconds
from sandkasten_server.cli.state import State, go

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from typing import BinaryIO

    from sandkasten.client.sandbox import AsyncSandbox
    from sandkasten.model.journal_rows import StoredFile

Key = Annotated[str, typer.Argument(metavar="KEY", help="Key of a stored file.")]
_PIECE = 1 << 18


# The first character keeps click from joining the lines.
_EXAMPLES = """\b
Examples:
  sandkasten files put table.csv --key inputs/table.csv --ttl 30d
  sandkasten files stage inputs/table.csv sbx_0123:in/table.csv
  sandkasten files publish sbx_0123:out/report.pdf --key runs/7/report.pdf
  sandkasten files get runs/7/report.pdf .
  tar c src | sandkasten files put - --key src.tar"""


def commands() -> typer.Typer:
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, epilog=_EXAMPLES)
    group.callback(help="Files that outlive sandboxes.")(_nothing)
    group.command("put")(_put)
    group.command("get")(_get)
    # Names from older documents and scripts.
    group.command("upload", hidden=True)(_put)
    group.command("download", hidden=True)(_get)
    group.command("ls")(_ls)
    group.command("info")(_info)
    group.command("rm")(_rm)
    group.command("stage")(_stage)
    group.command("publish")(_publish)
    return group


def described(row: StoredFile) -> dict[str, Any]:
    from sandkasten_server.cli.commands.listings import timestamp

    shown = {
        field.name: getattr(row, field.name) for field in fields(row) if field.name != "tenant"
    }
    return {
        **shown,
        "file_key": row.key,
        "size": row.size_bytes,
        "metadata": dict(row.metadata),
        "created_at": timestamp(row.created_at),
        "expires_at": None if row.expires_at is None else timestamp(row.expires_at),
    }


def _nothing() -> None:
    """Files that outlive sandboxes."""


def _put(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="FILE", help="A local file, or - (stdin).")],
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="KEY", help="Default: f_<id>.")
    ] = None,
    type_: Annotated[
        str | None, typer.Option("--type", metavar="T", help="Content type; default: by its name.")
    ] = None,
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="D", help="Deleted after 90 (seconds), 12h, 30d.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
    json: Json = False,
) -> None:
    """Store a file; print its key."""
    ttl_s = None if ttl is None else seconds(ttl)
    kind = type_ or (None if source == "-" else mimetypes.guess_type(source, strict=False)[0])
    go(_store(state_of(context, json=json), source, key, kind, ttl_s, overwrite=overwrite))


def _get(
    context: typer.Context,
    key: Key,
    target: Annotated[
        str, typer.Argument(metavar="[FILE]", help="Local path, or - (stdout).")
    ] = "-",
    json: Json = False,
) -> None:
    """Get a stored file."""
    go(_fetch(state_of(context, json=json), key, target))


def _ls(
    context: typer.Context,
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only keys with this prefix.")
    ] = "",
    json: Json = False,
) -> None:
    """List stored files."""
    go(_list(state_of(context, json=json), prefix))


def _info(context: typer.Context, key: Key, json: Json = False) -> None:
    """Show the metadata of a stored file."""
    go(_describe(state_of(context, json=json), key))


def _rm(
    context: typer.Context,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...")],
    json: Json = False,
) -> None:
    """Delete stored files."""
    raise SystemExit(go(_remove(state_of(context, json=json), keys)))


def _stage(
    context: typer.Context,
    key: Key,
    target: Annotated[str, typer.Argument(metavar="ID:PATH", help="Target in a sandbox.")],
    json: Json = False,
) -> None:
    """Copy a stored file into a sandbox."""
    go(_into(state_of(context, json=json), key, target))


def _publish(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="ID:PATH", help="A file of a sandbox.")],
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="KEY", help="Default: f_<id>.")
    ] = None,
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="D", help="Deleted after 90 (seconds), 12h, 30d.")
    ] = None,
    json: Json = False,
) -> None:
    """Store a file of a sandbox and print its key. An existing key is replaced."""
    ttl_s = None if ttl is None else seconds(ttl)
    go(_out_of(state_of(context, json=json), source, key, ttl_s))


async def _store(
    state: State,
    source: str,
    key: str | None,
    content_type: str | None,
    ttl_s: float | None,
    *,
    overwrite: bool,
) -> None:
    from sandkasten.client.server.admin_transport import books_of

    with _opened(source) as file:
        async with books_of(state.place) as books:
            row = await books.files.put(
                _pieces(file),
                key=key,
                content_type=content_type,
                ttl_s=ttl_s,
                overwrite=overwrite,
            )
    if state.json:
        put_json(described(row))
    else:
        put(row.key)


async def _fetch(state: State, key: str, target: str) -> None:
    from sandkasten.client.server.admin_transport import books_of

    async with books_of(state.place) as books, books.files.read(key) as (row, pieces):
        if target == "-":
            async for piece in pieces:
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            return
        path = _path(target, row.key)
        await _save(path, pieces)
    if state.json:
        put_json({**described(row), "path": path})
    else:
        say(f"{path}: {size(row.size_bytes)}")


async def _into(state: State, key: str, target: str) -> None:
    box, path = await _inside(state, target)
    staged = await box.stage(key, path)
    if state.json:
        put_json(asdict(staged))
    else:
        put(staged.path)


async def _out_of(state: State, source: str, key: str | None, ttl_s: float | None) -> None:
    box, path = await _inside(state, source)
    row = await box.publish(path, key, ttl_seconds=ttl_s)
    if state.json:
        put_json(described(row))
    else:
        put(row.key)


async def _inside(state: State, text: str) -> tuple[AsyncSandbox, str]:
    from sandkasten.client.sandbox import AsyncSandbox
    from sandkasten_server.cli.sandbox_names import Remote, resolve, side

    where = side(text)
    if not isinstance(where, Remote):
        raise UsageError(
            f"{text} is not a file of a sandbox", hint="write it as ID:path, as in sandkasten cp"
        )
    sandbox_id = await resolve(state, where.sandbox)
    return await AsyncSandbox.attach(sandbox_id, **state.where), where.path


async def _save(path: str, pieces: AsyncIterator[bytes]) -> None:
    """Write the file atomically; a device or a FIFO receives the content."""
    try:
        with overwriting(Path(path), mode=0o666) as file:
            async for piece in pieces:
                file.write(piece)
    except SandkastenError:
        raise
    except OSError as exc:
        raise FileTrouble(f"cannot write {path}: {exc.strerror}", hint="use another path") from exc


def _path(target: str, key: str) -> str:
    """Return the local path; in a directory, the file gets the last part of its key."""
    return os.path.join(target, os.path.basename(key)) if os.path.isdir(target) else target


async def _list(state: State, prefix: str) -> None:
    from sandkasten.client.server.admin_transport import books_of

    async with books_of(state.place) as books:
        rows = await books.files.list(prefix)
    if state.json:
        put_json([described(row) for row in rows])
    else:
        _table(rows)


async def _describe(state: State, key: str) -> None:
    from sandkasten.client.server.admin_transport import books_of

    async with books_of(state.place) as books:
        row = await books.files.get(key)
    if state.json:
        put_json(described(row))
        return
    shown = described(row)
    put_table(("FIELD", "VALUE"), [(name, str(value)) for name, value in shown.items()])


async def _remove(state: State, keys: Sequence[str]) -> int:
    """Remove each of them; a failure does not stop the others."""
    from sandkasten.client.server.admin_transport import books_of

    removed: list[str] = []
    failed: list[SandkastenError] = []
    async with books_of(state.place) as books:
        for key in dict.fromkeys(keys):
            try:
                await books.files.delete(key)
            except SandkastenError as exc:
                failed.append(exc)
                if not state.json:
                    report(exc, as_json=False)
            else:
                removed.append(key)
                if not state.json:
                    put(key)
    if state.json:
        problems = [{"code": error.code, "message": error.message} for error in failed]
        put_json({"removed": removed, "failed": problems})
    return EXIT_OURS if failed else 0


def _table(rows: Sequence[StoredFile]) -> None:
    now = time.time()
    put_table(
        ("KEY", "SIZE", "TYPE", "AGE", "EXPIRES"),
        [
            (
                row.key,
                size(row.size_bytes),
                row.content_type,
                age(now - row.created_at),
                "-" if row.expires_at is None else "in " + age(row.expires_at - now),
            )
            for row in rows
        ],
    )


def _opened(source: str) -> BinaryIO:
    if source == "-":
        return cast("BinaryIO", os.fdopen(os.dup(0), "rb"))
    try:
        return open(source, "rb")
    except OSError as exc:
        raise FileNotFound(
            f"{source} cannot be read: {exc.strerror}", hint="name a file", path=source
        ) from exc


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(file.read, _PIECE):
        yield piece
