"""`policy.backends` on real backends: the next one is used while a Docker Engine is away,
and only then.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from plugins.docker.tests.site import IMAGE, opened, revive, sh, until
from sandkasten.errors import BackendUnavailable, UnsupportedByBackend
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from tests import imagekit

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300), pytest.mark.promise("P118")]

RULES = [
    {"tenant": "acme", "use": ["docker", "local"]},
    {"image": "busybox", "use": ["docker", "oci", "local"]},
]


async def test_next_backend_is_used_while_the_first_is_away(stoppable_docker, data):
    await asyncio.to_thread(imagekit.store_with, data / "images", (IMAGE, imagekit.busybox_tar()))
    more = {"policy_backends": json.dumps(RULES), "images_pull": "never"}
    async with opened(data, stoppable_docker.reached, **more) as engine:
        plain = CreateRequest(SandboxOptions(network="none"))
        there = await engine.create(plain)
        assert (there.backend, there.warnings) == ("docker", ())

        await asyncio.to_thread(stoppable_docker.stop)
        info = await engine.create(plain)
        assert info.backend == "oci"
        assert (await sh(engine, info.id, "echo hi")).stdout == b"hi\n"
        assert info.warnings[0] == (
            "backend docker was unavailable, so policy.backends[1] led to backend oci"
        )
        result = await engine.run(RunRequest("echo $0", "sh", tenant="acme"))
        assert (result.ok, result.backend) == (True, "local")
        assert "backend docker was unavailable" in result.warnings[0]
        for options in (SandboxOptions(backend="docker"), SandboxOptions(workspace_id="w")):
            with pytest.raises(BackendUnavailable):
                await engine.create(CreateRequest(options))
        # oci refuses this, so the answer is that docker is away.
        with pytest.raises(BackendUnavailable) as refused:
            await engine.create(CreateRequest(SandboxOptions(image="busybox:missing")))
        tried = refused.value.details["tried"]
        assert isinstance(tried, list)
        assert [reason.partition(":")[0] for reason in tried] == ["docker", "oci"]

        async def is_back() -> bool:
            info = await engine.create(plain)
            await engine.destroy(info.id)
            return info.backend == "docker"

        # Seconds later: requests do not queue up at an engine that was just away.
        await asyncio.to_thread(revive, stoppable_docker)
        await until(is_back)
        with pytest.raises(UnsupportedByBackend):
            await engine.create(CreateRequest(SandboxOptions(image="host", backend="docker")))
