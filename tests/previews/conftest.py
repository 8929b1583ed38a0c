"""A daemon with an API key, a sandbox on it, and a browser."""

from __future__ import annotations

import asyncio
import tarfile
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten import AsyncSandbox
from sandkasten.errors import ConnectionRefused
from tests.client.http.served import served
from tests.patience import FAR_TOO_LATE_S
from tests.previews.browser import chromium

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.client.http.served import Served
    from tests.previews.browser import Browser


LIMITS = {"memory_mb": 1500, "cpu_limit": 2, "workspace_mb": 900}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Served]:
    with (
        tempfile.TemporaryDirectory(prefix="pytest-of-previews-", dir="/var/tmp") as place,
        served(Path(place) / "data", backend="local") as one,
    ):
        yield one


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as one:
        yield one


@asynccontextmanager
async def sandbox(where: dict[str, Any]) -> AsyncIterator[AsyncSandbox]:
    async with AsyncSandbox(**where, limits=LIMITS) as box:
        yield box


@pytest.fixture
async def box(daemon: Served) -> AsyncIterator[AsyncSandbox]:
    async with sandbox(daemon.where) as one:
        yield one


async def listening(box: AsyncSandbox, command: list[str], port: int, **options: Any) -> None:
    """Start a server inside and wait until it listens."""
    process = await box.start(command, **options)
    transport = await box.transport()
    async with asyncio.timeout(FAR_TOO_LATE_S):
        while True:
            try:
                async with transport.connect(box.id, port):
                    return
            except ConnectionRefused:
                result = await process.poll()
                assert result.running, result
                await asyncio.sleep(0.1)


async def put_tree(box: AsyncSandbox, tree: Path, remote: str) -> None:
    """Copy a directory into a sandbox."""
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        await asyncio.to_thread(_pack, tree, file)
        file.seek(0)
        await box.upload_tar(file, remote, flush=False)


def _pack(tree: Path, file: object) -> None:
    with tarfile.open(fileobj=file, mode="w") as archive:  # type: ignore[call-overload]
        for one in sorted(tree.iterdir()):
            archive.add(one, one.name, filter=_wanted)


def _wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = member.name.split("/")
    return None if "__pycache__" in name or name[0] in ("pip", "setuptools") else member
