"""A store for every test, and a registry or a folder to build from for those that need one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten.images.layers.image_store import LayerStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.images.registries import Front, Running


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


@pytest.fixture(scope="module")
def plain_registry(tmp_path_factory) -> Iterator[Running]:
    from tests.images import registries
    from tests.images.registry_access import MADE

    with registries.docker_registry(tmp_path_factory.mktemp("plain")) as running:
        registries.push(running.base, "team/app", "1", MADE)
        yield running


@pytest.fixture
def registry_front(plain_registry) -> Iterator[Front]:
    from tests.images import registries

    with registries.front(plain_registry) as standing:
        yield standing
