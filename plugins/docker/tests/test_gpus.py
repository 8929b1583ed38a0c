"""GPUs on an engine that has none: a typed error, and nothing is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from plugins.docker.tests.site import nothing_left, opened
from sandkasten.errors import PolicyDenied, UnsupportedByBackend
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.reached import Reached

pytestmark = pytest.mark.anyio


async def test_an_engine_without_gpus_refuses_by_name(docker_engine: Reached, data: Path):
    requested = CreateRequest(SandboxOptions(backend="docker", gpus=1))
    async with opened(data, docker_engine) as sand:
        with pytest.raises(PolicyDenied) as denied:
            await sand.create(requested)
        assert denied.value.details["rule"] == "policy.gpus"
    async with opened(data, docker_engine, policy_gpus="1") as sand:
        with pytest.raises(UnsupportedByBackend, match="cannot give a sandbox GPUs") as refused:
            await sand.create(requested)
        assert "container toolkit" in refused.value.hint
        with pytest.raises(UnsupportedByBackend, match="backend local"):
            await sand.create(CreateRequest(SandboxOptions(backend="local", gpus=1)))
        with pytest.raises(UnsupportedByBackend, match="no GPU is described"):
            await sand.create(CreateRequest(SandboxOptions(backend="oci", image="host", gpus=1)))
        assert await sand.list(all=True) == []
    assert await nothing_left(docker_engine, data) == []
