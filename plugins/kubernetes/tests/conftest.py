"""Backends on the API server of a test (its fixture `cluster`), with real gates and runners."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten_kubernetes import pod_network
from sandkasten_kubernetes.backend import KubernetesBackend
from sandkasten_kubernetes.kubernetes_options import KubernetesOptions
from sandkasten_runtime.assembly.backend_registry import read_nested
from tests.loopback_port import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.kubernetes.fake_cluster import FakeCluster


@pytest.fixture
async def opened(
    cluster: FakeCluster, tmp_path: Path
) -> AsyncIterator[Callable[..., KubernetesBackend]]:
    backends: list[KubernetesBackend] = []
    options = KubernetesOptions(
        kubeconfig=cluster.kubeconfig(), runner_image="r", port=free_port(), reach="direct"
    )

    def open_backend(**changes: Any) -> KubernetesBackend:
        backends.append(KubernetesBackend(tmp_path, replace(options, **changes), read_nested))
        # These Pods are processes of this machine, which no self-test lets pass.
        backends[-1]._tried |= {pod_network.CLOSED, pod_network.FULL}
        return backends[-1]

    yield open_backend
    for instance in backends:
        await instance.aclose()


@pytest.fixture
def backend(opened: Callable[..., KubernetesBackend]) -> KubernetesBackend:
    return opened()
