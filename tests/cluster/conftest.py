"""One cluster for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import built_images
from tests.cluster import programs
from tests.cluster.cluster import POD_NETWORK, Cluster
from tests.kubernetes import cluster_images
from tests.postgres_server import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.kube_api import KubeApi


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    programs.require()
    with Cluster() as made:
        yield made


@pytest.fixture(scope="session")
def cluster_with_daemon(cluster: Cluster) -> Cluster:
    """The cluster, whose nodes have the daemon's image."""
    cluster.load(built_images.daemon_archive())
    return cluster


@pytest.fixture(scope="session")
def store_url(cluster: Cluster) -> Iterator[str]:
    """The URL of a database that Pods reach."""
    clients = f"{POD_NETWORK}.0.0/16"
    with PostgresServer(address=cluster.machine.our_address, clients=clients) as server:
        yield server.remote_url


@pytest.fixture
def api(cluster: Cluster) -> KubeApi:
    return cluster.api


@pytest.fixture(scope="session")
def cluster_with_images(cluster: Cluster) -> Cluster:
    """The cluster, whose nodes have the images of sandboxes and the runner."""
    cluster_images.stock(cluster, "debian")
    return cluster


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server that loses nothing when it is killed."""
    with PostgresServer(durable=True) as server:
        yield server
