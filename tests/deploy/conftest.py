"""One engine for the suite, with the images of this checkout in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import built
from tests.deploy.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    if os.geteuid() != 0:
        pytest.skip("starting dockerd needs root")
    # Short: the path of a socket may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="pytest-of-deploy-"))
    try:
        with Engine(folder / "engine") as started:
            yield started
    finally:
        # Layers of overlays that are still being let go of make a first try fail.
        subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def daemon_image(engine: Engine) -> str:
    return built.daemon(engine)


@pytest.fixture(scope="session")
def runtime_images(engine: Engine) -> tuple[str, ...]:
    return built.runtime(engine)


@pytest.fixture(scope="session")
def sidecar_image(engine: Engine) -> str:
    return built.sidecar(engine)
