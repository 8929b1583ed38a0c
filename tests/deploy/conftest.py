"""One engine for the suite, with the images of this checkout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import built_images, imagekit
from tests.deploy.engine import Docker, started
from tests.engines.engine import missing
from tests.platform_choice import LONG

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def engine() -> Iterator[Docker]:
    if why := missing():
        pytest.fail(f"no engine can be started here: {why}")
    with started() as running:
        yield running


@pytest.fixture(scope="session")
def daemon_image(engine: Docker) -> str:
    return built_images.daemon(engine)


@pytest.fixture(scope="session")
def runtime_images(engine: Docker) -> tuple[str, ...]:
    return built_images.runtime(engine)


@pytest.fixture(scope="session")
def runtime_base(engine: Docker) -> None:
    """Put an image with the name that sandboxes use by default into the engine."""
    if LONG:
        built_images.runtime(engine)
    else:
        engine.docker("import", str(imagekit.busybox_tar()), built_images.RUNTIMES[0])


@pytest.fixture(scope="session")
def sidecar_image(engine: Docker) -> str:
    return built_images.sidecar(engine)
