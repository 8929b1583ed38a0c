"""A store of its own for every test, and small images to put into it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten.images.store import LayerStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path / "images")
