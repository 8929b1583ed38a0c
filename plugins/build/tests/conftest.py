"""A store for every test, and a folder to build from for those that need one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten_runtime.images.layers.image_store import LayerStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path / "images")


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """Return a folder that an image is built from."""
    folder = tmp_path / "context"
    (folder / "src" / "deep").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "src/main.py", "src/main.pyc", "src/deep/keep"):
        (folder / name).write_text(name)
    (folder / "src" / "out").symlink_to("/etc")
    (folder / "secret").write_text("secret")
    return folder
