"""Two daemons on one cluster and one database: either of them serves every session."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.cluster.replicas import replicas
from tests.daemon.process import ask
from tests.patience import FAR_TOO_LATE_S, PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.long("starts a Kubernetes of two nodes (make test-cluster)"),
    pytest.mark.promise("P104"),
    pytest.mark.timeout(300),
]
COUNT_ALOUD = ["sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"]


@pytest.fixture
async def pair(cluster_with_images, postgres_server, tmp_path):
    async with replicas(cluster_with_images, postgres_server, tmp_path) as found:
        yield found


async def test_a_session_of_one_replica_is_whole_at_the_other(pair):
    one, other = pair.daemons
    path = await pair.create(one)
    await pair.run(one, path, "cd /tmp && greeting=hello")
    assert await pair.run(other, path, "echo $greeting $PWD") == "hello /tmp\n"

    body = {"path": "/workspace/a.txt", "content": "written at one"}
    await pair.ask(one, "POST", f"{path}/fs/write", body)
    read = await pair.ask(other, "GET", f"{path}/fs/read?path=/workspace/a.txt")
    assert read["content"] == "written at one"

    listed = await pair.ask(other, "GET", "/v1/sessions")
    assert [session["id"] for session in listed] == [path.rpartition("/")[2]]
    await pair.ask(other, "DELETE", path)
    assert (await ask(pair.http, "GET", one.url + path))[0] == 410
    assert await pair.only() == []


async def test_a_code_context_continues_at_the_other_replica(pair, tmp_path):
    one, other = pair.daemons
    path = await pair.create(one, env={"PYTHONPATH": "/workspace/packages"})
    # The image has no kernel.
    kernel = await asyncio.to_thread(_kernel, tmp_path / "packages")
    upload = f"{one.url}{path}/fs/upload?path=/workspace/packages"
    async with pair.http.post(
        upload, data=kernel, headers={"Content-Type": "application/x-tar"}
    ) as reply:
        assert reply.status == 200, await reply.text()
    await pair.ask(one, "POST", f"{path}/code", {"code": "kept = 6"})
    await one.kill()
    told = await pair.ask(other, "POST", f"{path}/code", {"code": "kept * 7"})
    assert (told["text"], told["execution_count"]) == ("42", 2)
    await one.start()


def _kernel(folder: Path) -> io.BytesIO:
    """Return a tar with the Python kernel of Jupyter."""
    install = (sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target")
    subprocess.run([*install, str(folder), "ipykernel"], check=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(folder, ".")
    packed.seek(0)
    return packed


async def test_a_terminal_continues_at_the_other_replica(pair):
    one, other = pair.daemons
    path = await pair.create(one)
    async with pair.http.ws_connect(f"{one.url}{path}/pty?keep_seconds=600") as terminal:
        started = await terminal.receive_json(timeout=PATIENCE_S)
        await terminal.send_bytes(b"mark=$((40+2)); echo at-$mark\n")
        seen = await _shown(terminal, b"at-42")
    await one.kill()
    again = f"exec_id={started['exec_id']}&offset={len(seen)}&keep_seconds=600"
    async with pair.http.ws_connect(f"{other.url}{path}/pty?{again}") as terminal:
        await terminal.receive_json(timeout=PATIENCE_S)
        await terminal.send_bytes(b"echo still-$mark\n")
        assert b"at-42" not in await _shown(terminal, b"still-42")
    await one.start()


async def _shown(terminal: aiohttp.ClientWebSocketResponse, text: bytes) -> bytes:
    """Return what the terminal shows until this text is there."""
    seen = b""
    async with asyncio.timeout(PATIENCE_S):
        while text not in seen:
            message = await terminal.receive()
            assert message.type is aiohttp.WSMsgType.BINARY, (message, seen)
            seen += message.data
    return seen


async def test_a_stream_continues_at_the_other_replica_after_a_kill(pair):
    one, other = pair.daemons
    path = await pair.create(one)
    begun = await pair.ask(one, "POST", f"{path}/exec", {"cmd": COUNT_ALOUD, "background": True})
    output = f"{path}/execs/{begun['exec_id']}/output"
    numbers: list[str] = []
    seq = 0
    # The first replica dies while it streams; then the second, when the first is back.
    for at in (one, other, one):
        seq = await _followed(pair, at, output, seq, numbers, more=20)
        await at.kill()
        if at is other:
            break
    await one.start()
    await _followed(pair, one, output, seq, numbers, more=20)
    await other.start()
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert len(numbers) >= 60


async def _followed(pair, at, output: str, since: int, numbers: list[str], *, more: int) -> int:
    """Follow the output at a replica until there are more lines; return the last number."""
    wanted = len(numbers) + more
    accept = {"Accept": "text/event-stream"}
    async with (
        asyncio.timeout(PATIENCE_S),
        pair.http.get(f"{at.url}{output}?since_seq={since}", headers=accept) as reply,
    ):
        assert reply.status == 200, await reply.text()
        async for line in reply.content:
            if line.startswith(b"data:"):
                chunk = json.loads(line[5:])
                assert not chunk.get("gap_bytes"), chunk
                since = chunk["seq"]
                numbers += chunk["text"].split()
            if len(numbers) >= wanted:
                return since
    raise AssertionError(f"the stream ended after {len(numbers)} lines")


async def test_one_key_makes_one_session_and_one_command_at_both_replicas_at_once(pair):
    body = {"session_key": "project"}
    asked = (pair.ask(at, "POST", "/v1/sessions", body) for at in pair.daemons * 3)
    made = await asyncio.gather(*asked)
    (the_id,) = {one["id"] for one in made}
    assert sorted(one["created"] for one in made) == [False] * 5 + [True]
    path = f"/v1/sessions/{the_id}"
    command = {"cmd": "echo once >>log; wc -l <log", "idempotency_key": "k"}
    ran = await asyncio.gather(
        *(pair.ask(at, "POST", f"{path}/exec", command) for at in pair.daemons * 3)
    )
    assert {one["stdout"] for one in ran} == {"1\n"}
    assert len({one["exec_id"] for one in ran}) == 1


async def test_a_quota_counts_the_sessions_of_all_replicas(pair):
    body = {"tenant": "acme", "name": "a", "scopes": ["sessions"], "quota": {"max_sessions": 2}}
    made = await pair.ask(pair.daemons[0], "POST", "/v1/keys", body)
    mine = {"Authorization": f"Bearer {made['key']}"}

    sessions = f"{pair.daemons[1].url}/v1/sessions"
    async with asyncio.timeout(PATIENCE_S):
        # The other replica is told of the key.
        while (await ask(pair.http, "GET", sessions, headers=mine))[0] != 200:
            pass

    async def create(at) -> int:
        return (await ask(pair.http, "POST", f"{at.url}/v1/sessions", {}, headers=mine))[0]

    statuses = await asyncio.gather(*map(create, pair.daemons * 3))
    assert sorted(statuses) == [201] * 2 + [429] * 4
    for one in (await ask(pair.http, "GET", sessions, headers=mine))[1]:
        await ask(pair.http, "DELETE", f"{sessions}/{one['id']}", headers=mine)


async def test_a_replica_that_starts_leaves_alone_what_the_other_makes(pair):
    one, other = pair.daemons
    # The first create tries the cluster out.
    await pair.create(one)
    making = [asyncio.create_task(pair.create(one, labels={"n": str(n)})) for n in range(6)]
    for _ in range(3):
        await other.kill()
        await other.start()
    paths = await asyncio.gather(*making)
    for path in paths:
        for at in pair.daemons:
            assert await pair.run(at, path, ["echo", "there"]) == "there\n"


async def test_replicas_that_start_again_find_everything(pair):
    one, other = pair.daemons
    paths = [await pair.create(at) for at in pair.daemons]
    for number, path in enumerate(paths):
        await pair.run(pair.daemons[number], path, f"mark={number}")
    for at in pair.daemons:
        await at.kill()
    for at in pair.daemons:
        await at.start()
    for number, path in enumerate(paths):
        for at in (one, other):
            assert await pair.run(at, path, "echo $mark") == f"{number}\n"


async def test_a_link_to_a_preview_opens_the_port_at_every_replica(pair):
    one, other = pair.daemons
    path = await pair.create(one)
    server = ["python3", "-m", "http.server", "8000", "--directory", "/etc"]
    await pair.ask(one, "POST", f"{path}/exec", {"cmd": server, "background": True})
    link = await pair.ask(one, "POST", f"{path}/previews", {"port": 8000})
    _, _, host, query = link["url"].split("/", 3)

    async def get(at, page: str, **headers: str) -> aiohttp.ClientResponse:
        # Without the key of the operator, which would open it too.
        async with (
            aiohttp.ClientSession() as http,
            http.get(
                f"{at.url}/{page}", headers={"Host": host, **headers}, allow_redirects=False
            ) as reply,
        ):
            return reply

    opened = await get(other, query)
    assert opened.status == 303
    cookie = opened.headers["Set-Cookie"].partition(";")[0]
    async with asyncio.timeout(PATIENCE_S):
        while (await get(other, "hostname", Cookie=cookie)).status == 502:
            pass
    assert (await get(one, "hostname", Cookie=cookie)).status == 200
    await pair.ask(other, "DELETE", f"{path}/previews")
    assert (await get(other, query)).status == 403
    async with asyncio.timeout(PATIENCE_S):
        while (await get(one, query)).status != 403:
            pass


@pytest.mark.promise("P100")
async def test_a_session_that_the_cluster_ended_is_lost_at_both_replicas_with_the_reason(pair):
    path = await pair.create(pair.daemons[0], limits={"workspace_mb": 16})
    fill = "dd if=/dev/zero of=/workspace/large bs=1048576 count=32; echo written"
    assert "written" in await pair.run(pair.daemons[0], path, fill)
    for at in pair.daemons:
        async with asyncio.timeout(FAR_TOO_LATE_S):
            # Until the end is noticed, it exists, or cannot be reached.
            while (told := await ask(pair.http, "GET", at.url + path))[0] != 410:
                pass
        error = told[1]
        assert (error["code"], error["details"]["status"]) == ("SESSION_EXPIRED", "lost")
        assert 'Usage of EmptyDir volume "workspace"' in error["details"]["reason"]
    assert await pair.only() == []


async def test_the_balancer_skips_a_dead_replica(pair):
    one, other = pair.daemons
    path = await pair.create(one)
    for victim in (one, other):
        await victim.kill()
        for _ in range(4):
            status, told = await ask(
                pair.http, "POST", f"{pair.url}{path}/exec", {"cmd": ["echo", "there"]}
            )
            assert (status, told["stdout"]) == (200, "there\n")
        await victim.start()


@pytest.mark.timeout(600)
async def test_what_a_replica_was_making_when_it_died_is_removed_by_the_other(pair):
    """The replica does not come back. The first create makes a trial Pod, which is found too."""
    one, other = pair.daemons
    kept = await pair.create(other)
    asked = asyncio.create_task(ask(pair.http, "POST", f"{one.url}/v1/sessions", {}))
    async with asyncio.timeout(PATIENCE_S):
        while len(await pair.objects()) <= 2:
            pass
    await one.kill()
    with pytest.raises(aiohttp.ClientError):
        await asked
    try:
        assert await pair.only(kept, within_s=3 * FAR_TOO_LATE_S) == []
        assert await pair.run(other, kept, ["echo", "there"]) == "there\n"
    finally:
        await one.start()
