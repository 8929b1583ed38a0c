"""`SandboxClient` as documented, synchronous and asynchronous."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from sandkasten import AsyncSession, SandboxClient, SessionExpired, sync
from sandkasten.errors import FileTrouble, InvalidRequest


@pytest.fixture
async def client(served):
    async with SandboxClient(base_url=served.url, api_key=served.key) as one:
        yield one


async def test_the_example_of_the_contract_runs(served):
    client = SandboxClient(base_url=served.url, api_key=served.key)
    session = await client.create_session(image="host", ttl_seconds=600)
    p = "/workspace/p"
    result = await session.exec("cd /tmp; echo hi", timeout_ms=30_000)
    assert (result.exit_code, result.cwd, result.output) == (0, "/tmp", "hi\n")
    assert (result.truncated, result.duration_ms >= 0) == (False, True)
    await session.write(p, b"bytes")
    data = await session.read(p)
    assert data == b"bytes"
    assert (data.decode(), data.content, data.path) == ("bytes", b"bytes", p)
    await session.destroy()
    await client.close()


async def test_sessions_are_found_listed_and_destroyed(client):
    session = await client.create_session(labels={"x": "y"})
    assert isinstance(session, AsyncSession)
    found = await client.get_session(session.id)
    assert (await found.exec("echo same")).output == "same\n"
    assert session.id in [info.id for info in await client.list_sessions()]
    assert (await session.info()).labels == {"x": "y"}
    await session.destroy()
    await session.destroy()
    with pytest.raises(SessionExpired):
        await client.get_session(session.id)


async def test_leaving_the_block_of_a_session_destroys_it(client):
    async with await client.create_session() as session:
        the_id = session.id
    assert the_id not in [info.id for info in await client.list_sessions()]


async def test_a_stream_is_iterated_and_has_a_result(client):
    async with await client.create_session() as session:
        stream = session.exec_stream("echo a; echo b >&2")
        assert sorted([piece.text async for piece in stream]) == ["a\n", "b\n"]
        assert stream.result.exit_code == 0


async def test_a_file_is_uploaded_by_path_and_by_object(client, tmp_path):
    (tmp_path / "data.csv").write_bytes(b"1,2\xff")
    async with await client.create_session() as session:
        assert await session.upload(tmp_path / "data.csv") == ["/workspace/data.csv"]
        assert await session.read("data.csv") == b"1,2\xff"
        put = await session.upload(io.BytesIO(b"x"), dest_path="/workspace/d", filename="y")
        assert put == ["/workspace/d/y"]
        with pytest.raises(InvalidRequest, match="filename is required"):
            await session.upload(io.BytesIO(b"x"))
        with pytest.raises(FileTrouble):
            await session.upload(tmp_path / "missing")


async def test_named_workspaces_outlive_their_sessions(client):
    for turn in ("first", "second"):
        async with await client.create_session(workspace_id="project") as session:
            await session.exec(f"echo {turn} >> log")
            kept = await session.read("log")
    assert kept == b"first\nsecond\n"
    assert [one.name for one in await client.list_workspaces()] == ["project"]
    await client.delete_workspace("project")
    assert await client.list_workspaces() == []


async def test_stats_are_numbers(client):
    async with await client.create_session(limits={"pids_limit": 44}) as session:
        assert (await session.stats()).usage.pids_limit == 44


async def test_a_closed_client_reconnects(client):
    await client.close()
    assert isinstance(await client.list_sessions(), list)


def test_the_synchronous_client_does_the_same(served):
    with sync.SandboxClient(base_url=served.url, api_key=served.key) as client:
        with client.create_session(image="host") as session:
            assert isinstance(session, sync.Session)
            session.exec("cd /tmp")
            assert session.exec("pwd").output == "/tmp\n"
            session.write("/tmp/x", "y")
            assert session.read("/tmp/x").decode() == "y"
            assert [piece.text for piece in session.exec_stream("echo a")] == ["a\n"]
            assert client.get_session(session.id).id == session.id
            the_id = session.id
        assert the_id not in [info.id for info in client.list_sessions()]


def test_the_environment_names_the_daemon(served, monkeypatch):
    monkeypatch.setenv("SANDKASTEN_URL", served.url)
    monkeypatch.setenv("SANDKASTEN_API_KEY", served.key)
    assert isinstance(sync.SandboxClient().list_sessions(), list)


def test_an_unclosed_client_ends_without_warnings(served):
    # In the development mode the loop warns of every slow step; a busy machine has them.
    code = f"""
import asyncio, logging
logging.getLogger("asyncio").setLevel("ERROR")
from sandkasten import SandboxClient
from sandkasten.sync import SandboxClient as Twin
client = SandboxClient(base_url={served.url!r}, api_key={served.key!r})
for _ in range(2):
    assert asyncio.run(client.list_sessions()) is not None
assert Twin(base_url={served.url!r}, api_key={served.key!r}).list_sessions() is not None
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.promise("P42")
def test_importing_the_package_and_naming_a_daemon_loads_no_http_library():
    code = (
        "import sys, sandkasten\n"
        "from sandkasten import Sandbox, SandboxClient, sync\n"
        "SandboxClient(base_url='http://localhost:1', api_key='k')\n"
        "print('aiohttp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
