"""`sandkasten mcp` where a daemon serves the data directory: the daemon runs the tools."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client, StdioServerParameters

from plugins.tools.tests.test_mcp import HELLO, lines
from sandkasten import SandboxClient
from sandkasten.client.server.daemon_or_embedded import ServerAddress
from sandkasten.errors import BackendUnavailable, Unauthorized
from sandkasten_tools.calls.tool_schemas import TOOLS
from sandkasten_tools.tool_access import open_tools
from tests.client.http.served import KEY, Served, served
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("d") / "d", backend="local") as running:
        yield running


async def sandboxes(daemon: Served) -> list[str]:
    async with SandboxClient(base_url=daemon.url, api_key=KEY) as client:
        return [
            session.id for session in await client.list_sessions() if session.status == "running"
        ]


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(int(PATIENCE_S / 0.05)):
        if await check():
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"it did not come to that within {PATIENCE_S:g} s")


async def test_the_daemon_of_the_data_directory_runs_the_tools(daemon):
    words = ["-m", "sandkasten_server.cli", "--data-dir", str(daemon.data_dir), "mcp"]
    server = StdioServerParameters(command=sys.executable, args=words, env={**os.environ})
    async with Client(server) as client:
        assert [t.name for t in (await client.list_tools()).tools] == list(TOOLS)

        async def call(name: str, **arguments: Any) -> dict[str, Any]:
            return (await client.call_tool(name, arguments)).structured_content or {}

        opened = await call("sandbox_open")
        assert await sandboxes(daemon) == [opened["sandbox_id"]]
        await call("sandbox_fs_write", path="a", text="x")
        # The daemon holds the store open, and no other process can open it meanwhile.
        published = await call("sandbox_publish_file", source="a")
        assert published["size_bytes"] == 1
        other = await call("sandbox_open", session_key="other")
        assert other["sandbox_id"] != opened["sandbox_id"]
        refused = await call("sandbox_exec", cmd=7)
        assert (refused["ok"], refused["code"]) == (False, "INVALID_REQUEST")
    assert await sandboxes(daemon) == []


async def test_a_clients_sandboxes_in_the_daemon_are_its_own_and_named_ones_persist(daemon):
    place = ServerAddress(url=daemon.url, api_key=KEY)
    async with open_tools(place) as first, open_tools(place, session="kept") as other:
        own = await first.call("sandbox_open", {})
        foreign = await other.call("sandbox_open", {})
        stolen = await first.call(
            "sandbox_exec", {"cmd": "id", "sandbox_id": foreign["sandbox_id"]}
        )
        assert (stolen["ok"], stolen["code"]) == (False, "SESSION_NOT_FOUND")
        assert own["sandbox_id"] != foreign["sandbox_id"]
    assert await sandboxes(daemon) == [foreign["sandbox_id"]]
    async with open_tools(place, session="kept") as again:
        assert (await again.call("sandbox_open", {}))["sandbox_id"] == foreign["sandbox_id"]
        await again.call("sandbox_close", {})
    assert await sandboxes(daemon) == []


async def test_image_and_runtime_options_reach_the_daemon(daemon):
    place = ServerAddress(url=daemon.url, api_key=KEY)
    async with open_tools(place, image="nonsense:1", runtime="bash") as tools:
        missing = (await tools.call("sandbox_open", {}))["code"]
        # Where a registry can be reached, it is looked for there.
        assert missing in ("IMAGE_NOT_FOUND", "REGISTRY_UNAVAILABLE")
    async with open_tools(place, runtime="bash") as tools:
        ran = await tools.call("sandbox_run", {"code": "echo $BASH"})
        assert (ran["runtime"], ran["exit_code"]) == ("bash", 0)


async def test_a_cancelled_call_ends_its_command_in_the_daemon(daemon):
    async with open_tools(ServerAddress(url=daemon.url, api_key=KEY)) as tools:
        await tools.call("sandbox_open", {})
        running = asyncio.create_task(tools.call("sandbox_exec", {"cmd": "sleep 77"}))

        async def sleeps() -> bool:
            result = await tools.call("sandbox_exec", {"cmd": ["pgrep", "-x", "sleep"]})
            return result["exit_code"] == 0

        async def sleeps_no_more() -> bool:
            return not await sleeps()

        await until(sleeps)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await until(sleeps_no_more)


async def test_a_call_cancelled_while_it_opens_a_sandbox_leaves_none(daemon):
    place = ServerAddress(url=daemon.url, api_key=KEY)
    # The later ones come from the warm pool, in milliseconds.
    for after_s in (0.05, 0.02, 0.0, 0.002, 0.004, 0.006, 0.008, 0.01, 0.012):
        async with open_tools(place) as tools:
            opening = asyncio.create_task(tools.call("sandbox_open", {}))
            await asyncio.sleep(after_s)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        assert await sandboxes(daemon) == []


async def test_a_client_that_closes_the_input_leaves_no_sandbox_in_the_daemon(daemon):
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sandkasten_server.cli", "--data-dir", str(daemon.data_dir), "mcp",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    opening = ("tools/call", {"name": "sandbox_open", "arguments": {}})
    waiting = ("tools/call", {"name": "sandbox_exec", "arguments": {"cmd": "sleep 99"}})
    requests = lines(HELLO, opening, waiting).splitlines(keepends=True)
    server.stdin.writelines(requests[:2])
    for _ in range(2):
        assert await server.stdout.readline()
    assert len(await sandboxes(daemon)) == 1
    server.stdin.write(requests[2])
    server.stdin.close()
    async with asyncio.timeout(PATIENCE_S):
        assert await server.stdout.read() == b""
        assert await server.wait() == 0
    assert await sandboxes(daemon) == []


async def test_a_daemon_that_rejects_the_key_is_an_error_before_the_first_call(daemon):
    with pytest.raises(Unauthorized):
        async with open_tools(ServerAddress(url=daemon.url, api_key="sk-wrong")):
            pass
    with pytest.raises(BackendUnavailable):
        async with open_tools(ServerAddress(url="http://127.0.0.1:1")):
            pass


@pytest.mark.promise("P118")
async def test_backend_of_the_command_line_is_that_of_the_sandboxes_of_a_daemon(daemon):
    place = ServerAddress(url=daemon.url, api_key=KEY)
    async with open_tools(place, backend="oci") as tools:
        opened = await tools.call("sandbox_open", {})
        async with SandboxClient(base_url=daemon.url, api_key=KEY) as client:
            listed = {session.id: session.backend for session in await client.list_sessions()}
        assert listed[opened["sandbox_id"]] == "oci"
