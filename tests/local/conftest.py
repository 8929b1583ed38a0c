"""Real sandboxes of the local backend on prepared trees; nothing is left at the end."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.limits import MIB, Limits
from sandkasten_runtime.backends.local.backend import LocalBackend
from tests.local import trees
from tests.security.harness import ROOT, Box, Loop, poll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from sandkasten.model.images.resolved_image import Image

# An ordinary user has nobody to become, and root nothing to find missing.
collect_ignore = ["test_ordinary_volumes.py"] if ROOT else ["test_as_ordinary_user.py"]
LIMITS = Limits(memory_bytes=512 * MIB, workspace_bytes=256 * MIB, pids=256)


@pytest.fixture(autouse=True)
def _only_as_root(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("root") and not ROOT:
        pytest.skip("an ordinary user has one id and cannot mount images")


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def data_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pytest-of-local-", dir="/var/tmp"))
    yield path
    left = [cell.name for cell in (path / "cells").glob("*")]
    shutil.rmtree(path)
    assert left == []


@pytest.fixture(scope="session")
def local(data_dir: Path) -> LocalBackend:
    return LocalBackend(data_dir)


@pytest.fixture(scope="session")
def make_box(
    loop: Loop, local: LocalBackend, data_dir: Path
) -> Callable[..., AbstractContextManager[Box]]:
    @contextmanager
    def make(image: Image, limits: Limits = LIMITS, **fields: object) -> Iterator[Box]:
        spec = CellSpec(image=image, **fields)  # type: ignore[arg-type]
        box = Box(loop, local, data_dir, limits, spec)
        try:
            yield box
        finally:
            if not box.destroyed:
                box.destroy()
        poll(f"after destroying {box.id}", box.leftovers)

    return make


@pytest.fixture(scope="session")
def roots() -> Iterator[Path]:
    """Where trees of this run are put."""
    path = Path(tempfile.mkdtemp(prefix="pytest-of-roots-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def skeleton(roots: Path) -> Path:
    return trees.skeleton(roots / "skeleton")


@pytest.fixture(scope="session")
def busybox(roots: Path, skeleton: Path) -> Image:
    return trees.image("busybox", trees.busybox(roots / "busybox"), skeleton)


@pytest.fixture(scope="session")
def debian(roots: Path) -> Image:
    return trees.image("debian", trees.debian(), trees.debian_skeleton(roots / "debian"))
