"""An installation whose one-shots run on Dagger engines of the tests."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from sandkasten.model.images.image_info import ImportRequest
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from tests import environments, imagekit
from tests.dagger import programs
from tests.hostwatch import loopwatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from sandkasten_runtime.engine.engine import Engine

IMAGE = "python:3.11-slim"
VARIABLES: dict[str, str] = {}
"""Further variables, by the names that other programs use."""
_HOMES = ("HOME", *(f"XDG_{name}_HOME" for name in ("CONFIG", "STATE", "CACHE", "DATA")))


@loopwatch.of_the_test
def environ(data_dir: Path, **more: str) -> dict[str, str]:
    """Return the variables of an operator."""
    variables = {
        "HOME": str(data_dir),
        "SANDKASTEN_BACKEND": "dagger",
        "SANDKASTEN_DATA_DIR": str(data_dir),
        "SANDKASTEN_DAGGER_CLI": str(programs.command_line()),
        "STATION_SANDBOX_ALLOWED_IMAGES": IMAGE,
        "SANDKASTEN_DEFAULT_IMAGE": IMAGE,
    }
    if "dagger_python" not in more:
        more["dagger_python"] = str(environments.dagger())
    return {
        **variables,
        **VARIABLES,
        **{f"SANDKASTEN_{name.upper()}": value for name, value in more.items()},
    }


@contextmanager
def own_home(folder: Path) -> Iterator[None]:
    """Let the CLI keep its configuration and state there, not where the user has theirs."""
    folder.mkdir(parents=True, exist_ok=True)
    before = {name: os.environ.get(name) for name in _HOMES}
    os.environ.update(dict.fromkeys(_HOMES, str(folder)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@asynccontextmanager
async def opened(
    data_dir: Path, *, archive: Path | None = None, **more: str
) -> AsyncIterator[Engine]:
    """Open an engine of ours with one image. Its sessions keep their files in `data_dir`."""
    with own_home(data_dir):
        engine = await open_engine(load({}, environ(data_dir, **more), data_dir.parent))
        try:
            path = str(archive or imagekit.debian_tar())
            await engine.images.import_archive(path, ImportRequest(IMAGE))
            yield engine
        finally:
            await engine.aclose()
