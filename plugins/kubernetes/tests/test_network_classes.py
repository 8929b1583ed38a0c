"""A session on Kubernetes whose network is a class: what the engine says about it and refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import UnsupportedByBackend
from sandkasten.model.sandbox.network_limits import NetworkLimits
from sandkasten.model.sandbox.network_policy import NetworkCeiling
from sandkasten.model.sandbox.policy import Policy
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest, UpdateRequest
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.engine import Engine
from sandkasten_runtime.engine.pool.pool_rules import PoolRules
from sandkasten_runtime.images.catalog import Images
from sandkasten_runtime.images.layers.image_store import LayerStore
from tests.kubernetes.fake_cluster import FakeCluster
from tests.store.memory_store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from sandkasten_kubernetes.backend import KubernetesBackend

    Opened = Callable[..., Engine]

pytestmark = pytest.mark.promise("P111")
IMAGE = "example.org/python:3.11"
FULL = CreateRequest(SandboxOptions(image=IMAGE, network="full"))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FakeCluster]:
    async with FakeCluster(tmp_path) as fake:
        yield fake


@pytest.fixture
async def engine(opened: Callable[..., KubernetesBackend], tmp_path: Path) -> AsyncIterator[Opened]:
    engines: list[Engine] = []

    def start(policy: Policy | None = None, **changes: object) -> Engine:
        images = Images(LayerStore(tmp_path / "images"))
        engines.append(
            Engine(
                backends={"kubernetes": opened(network_policy="assumed", **changes)},
                default_backend="kubernetes",
                store=MemoryStore(),
                images=images,
                library=images,
                policy=policy or Policy(),
                clock=SystemClock(),
                pool=PoolRules(),
            )
        )
        return engines[-1]

    yield start
    for instance in engines:
        for info in await instance.list():
            await instance.destroy(info.id)
        await instance.aclose()


async def test_a_full_network_is_told_and_cannot_be_changed(engine: Opened, cluster: FakeCluster):
    with_class = engine(network_full=True)
    info = await with_class.create(FULL)
    (pod,) = [resource for (kind, _), resource in cluster.objects.items() if kind == "pods"]
    assert pod["metadata"]["labels"]["sandkasten.network"] == "full"
    assert info.network == "full"
    assert "network" in {entry.limit for entry in info.unenforced}
    status = await with_class.network.status(info.id)
    assert (status.network, status.opened) == ("full", 0)
    assert await with_class.network.log(info.id) == []
    for other in ("none", {"allow": ["example.com"]}):
        with pytest.raises(UnsupportedByBackend, match="cannot be changed"):
            await with_class.update(info.id, UpdateRequest(network=other))
    assert (await with_class.get(info.id)).network == "full"


async def test_a_session_with_a_class_never_comes_from_the_warm_pool(engine: Opened):
    with_class = engine(network_full=True)
    for _ in range(2):
        info = await with_class.create(FULL)
        assert info.acquire_source == "cold"
        assert info.acquire_detail == "network that cannot be changed"
        # The Pods of this cluster share one port.
        await with_class.destroy(info.id)


async def test_a_default_network_is_left_out_where_the_cluster_has_no_class(engine: Opened):
    plain = CreateRequest(SandboxOptions(image=IMAGE))
    policy = Policy(network_default=True)
    without = engine(policy)
    closed = await without.create(plain)
    await without.destroy(closed.id)
    assert closed.network == "none"
    assert any("defaults.network_mode does not apply" in warning for warning in closed.warnings)
    assert (await engine(policy, network_full=True).create(plain)).network == "full"


async def test_a_limit_of_the_operator_is_refused_and_not_ignored(engine: Opened):
    limits = NetworkLimits(bandwidth_bps=8_000_000)
    policy = Policy(network=NetworkCeiling(limits=limits))
    with pytest.raises(UnsupportedByBackend, match="a limit is set"):
        await engine(policy, network_full=True).create(FULL)
