"""One cluster for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster import programs
from tests.cluster.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.kube_api import KubeApi


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if why := programs.missing():
        pytest.skip(why)
    with Cluster() as made:
        yield made


@pytest.fixture
def api(cluster: Cluster) -> KubeApi:
    return cluster.api
