"""One cluster for all tests of this folder."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests import built_images
from tests.cluster import programs, sandbox_policy
from tests.cluster.cluster import BUSYBOX, POD_NETWORK, Cluster
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


@pytest.fixture(scope="module")
def enforced(cluster: Cluster) -> Iterator[None]:
    """Enforce every NetworkPolicy, and have the one of the guide."""
    cluster_images.stock(cluster, "busybox", "debian")
    for node in cluster.nodes:
        node.start_policy_controller(cluster.kubeconfig)
    for name in (sandbox_policy.CLOSED, sandbox_policy.FULL):
        sandbox_policy.apply(cluster, name)
    yield
    for name in (sandbox_policy.CLOSED, sandbox_policy.FULL):
        sandbox_policy.remove(cluster, name)
    for node in cluster.nodes:
        node.stop_policy_controller()


@pytest.fixture
def bystanders(cluster: Cluster, api: KubeApi) -> Iterator[list[Any]]:
    """Yield a Pod of each node that no policy selects, and that answers on a port."""
    names = [f"bystander-{secrets.token_hex(4)}" for _ in cluster.nodes]
    serve = f"while :; do nc -l -p {sandbox_policy.SERVED} </dev/null; done"
    for name, node in zip(names, cluster.nodes, strict=True):
        container = {
            "name": "main",
            "image": BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", serve],
        }
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": node.name},
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [container],
        }
        api.create_pod({"metadata": {"name": name}, "spec": spec})
    yield [api.ready_pod(name) for name in names]
    for name in names:
        api.delete_pod(name)


@pytest.fixture(scope="module")
def public(cluster: Cluster) -> Iterator[tuple[str, int]]:
    """Yield a public address and a port at which a server outside of the cluster answers."""
    cluster.machine.run("ip", "addr", "add", f"{sandbox_policy.PUBLIC}/32", "dev", "lo")
    words = [
        sys.executable,
        "-c",
        sandbox_policy.SERVER,
        str(sandbox_policy.SERVED),
        sandbox_policy.PUBLIC,
        cluster.machine.address,
    ]
    server = cluster.machine.start(words, cluster.folder / "public.log")
    yield sandbox_policy.PUBLIC, sandbox_policy.SERVED
    server.kill()
    server.wait()
    cluster.machine.run("ip", "addr", "del", f"{sandbox_policy.PUBLIC}/32", "dev", "lo")
