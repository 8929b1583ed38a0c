"""One engine of each class of network for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import imagekit
from tests.dagger import programs
from tests.dagger.engine_process import EngineProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def dagger_none() -> Iterator[EngineProcess]:
    """An engine whose containers reach nothing."""
    programs.require()
    with EngineProcess("none") as dagger:
        yield dagger


@pytest.fixture(scope="session")
def dagger_egress() -> Iterator[EngineProcess]:
    """An engine whose containers reach what its machine reaches."""
    programs.require()
    with EngineProcess("egress") as dagger:
        yield dagger


@pytest.fixture(scope="session")
def busybox() -> Path:
    """An archive of an image that has a shell."""
    return imagekit.oci_archive(imagekit.busybox_tar())
