"""A store for every test, and a registry for those that need one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten_runtime.images.layers.image_store import LayerStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.images.registries import Front, Running


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path / "images")


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
