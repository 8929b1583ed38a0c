"""`cp`: copy files and trees between this machine and a sandbox, like cp -r."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from sandkasten.client.results import Transfer
from sandkasten.client.sandbox import AsyncSandbox
from sandkasten.errors import FileNotFound, IsADirectory
from sandkasten.lazy_dataclass import dataclass
from sandkasten_server.cli.exit_status import UsageError
from sandkasten_server.cli.output import colour, put_json, tell, visible
from sandkasten_server.cli.sandbox_names import Remote, resolve, side
from sandkasten_server.cli.stdin import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandkasten.client.transfer.transfer import Progress
    from sandkasten_server.cli.state import State

STREAM: Final = "-"


async def copy(state: State, source: str, destination: str, user: str | None = None) -> None:
    """Copy; one side is in a sandbox, the other is a local path or `-` for a stream."""
    origin, target = side(source), side(destination)
    if isinstance(origin, Remote) == isinstance(target, Remote):
        raise UsageError(
            "one side must be in a sandbox and the other local",
            hint="write it as ID:path, for example: sandkasten cp report.csv sbx_0123:/workspace",
        )
    if isinstance(target, Remote):
        moved = await _inwards(state, str(origin), target, user)
    else:
        assert isinstance(origin, Remote)
        moved = await _outwards(state, origin, target, user)
    _tell(state, moved, to_stdout=destination == STREAM)


def _tell(state: State, moved: Transfer, *, to_stdout: bool) -> None:
    for skipped in moved.skipped:
        tell("warning", f"skipped {visible(skipped)}")
    if state.json and not to_stdout:
        put_json(asdict(moved))


async def _attach(state: State, where: Remote) -> AsyncSandbox:
    sandbox_id = await resolve(state, where.sandbox)
    return await AsyncSandbox.attach(sandbox_id, **state.where)


async def _inwards(state: State, source: str, target: Remote, user: str | None) -> Transfer:
    box = await _attach(state, target)
    if source == STREAM:
        entry = await box.write(target.path, blocks(), user=user)
        return Transfer(entry.path, 1, entry.size)
    local = _here(source)
    inside = await _destination(box, target.path, local.path.name, user)
    with _progress(visible(local.path.name), local.size) as progress:
        return await box.upload(local.path, inside, progress=progress, user=user)


@dataclass(frozen=True, slots=True)
class Local:
    path: Path
    is_dir: bool
    size: int | None
    """Bytes to move, where that is known without walking a tree."""


def _here(text: str) -> Local:
    # Absolute, because `.` and `..` have no name for the target.
    path = Path(os.path.abspath(text))
    is_dir = path.is_dir()
    return Local(path, is_dir, path.stat().st_size if path.is_file() else None)


async def _destination(box: AsyncSandbox, path: str, name: str, user: str | None) -> str:
    """Return the target: inside an existing directory (or one with a slash), else the name."""
    try:
        into = (await box.stat(path, user=user)).is_dir
    except FileNotFound:
        into = path.endswith("/")
    return str(PurePosixPath(path) / name) if into else path


async def _outwards(state: State, origin: Remote, target: str, user: str | None) -> Transfer:
    box = await _attach(state, origin)
    entry = await box.stat(origin.path, user=user)
    if target == STREAM:
        if entry.is_dir:
            raise IsADirectory(
                f"{visible(origin.path)} is a directory", hint="copy it to a local directory"
            )
        return await _print(box, origin.path, user)
    local = _here(target)
    into = local.is_dir or (target.endswith("/") and not entry.is_dir)
    path = local.path / (PurePosixPath(entry.path).name or "root") if into else local.path
    with _progress(visible(entry.name), None if entry.is_dir else entry.size) as progress:
        return await box.download(origin.path, path, progress=progress, user=user)


async def _print(box: AsyncSandbox, path: str, user: str | None) -> Transfer:
    files = (await box.transport()).files.by(user)
    moved = 0
    async with files.read_stream(box.id, path) as (entry, chunks):
        async for chunk in chunks:
            await asyncio.to_thread(sys.stdout.buffer.write, chunk)
            moved += len(chunk)
        sys.stdout.buffer.flush()
    return Transfer(entry.path, 1, moved)


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[Progress | None]:
    """Show a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True, no_color=not colour(sys.stderr)),
        transient=True,
    )
    with bar:
        task = bar.add_task(escape(what), total=total)
        yield lambda amount: bar.advance(task, amount)
