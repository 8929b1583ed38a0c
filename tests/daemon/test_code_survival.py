"""Code contexts of a daemon process that is killed, on each backend that has the host image."""

from __future__ import annotations

import aiohttp
import pytest

from tests.daemon.process import ask, running

pytestmark = [pytest.mark.promise("P80"), pytest.mark.root]


@pytest.mark.parametrize(
    "backend",
    [
        "local",
        pytest.param("oci", marks=pytest.mark.long(reason="`make test` runs it on local")),
        pytest.param("gvisor", marks=pytest.mark.long(reason="`make test` runs it on local")),
    ],
)
async def test_a_killed_daemon_finds_a_context_with_its_variables_again(tmp_path, backend):
    environ = {"SANDKASTEN_BACKEND": backend}
    async with (
        running(tmp_path / "data", environ=environ) as daemon,
        aiohttp.ClientSession() as http,
    ):
        status, made = await ask(http, "POST", f"{daemon.url}/v1/sessions", {})
        assert status == 201, made
        assert made["backend"] == backend
        path = f"/v1/sessions/{made['id']}"

        async def run(code, **more):
            status, told = await ask(
                http, "POST", f"{daemon.url}{path}/code", {"code": code, **more}
            )
            assert status == 200, told
            return told

        assert (await run("import os; kept = os.getpid()\nprint('out')"))["stdout"] == "out\n"
        before = (await run("kept"))["text"]
        await daemon.kill()
        await daemon.start()
        again = await run("kept")
        assert (again["text"], again["execution_count"]) == (before, 3)
        assert (await run("1 / 0"))["error"]["name"] == "ZeroDivisionError"
        late = await run("import time; time.sleep(60)", timeout_ms=500)
        assert (late["status"], late["kernel_restarted"]) == ("timed_out", False)
        assert (await run("kept"))["text"] == before
