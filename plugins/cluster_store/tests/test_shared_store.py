"""Two daemons on one PostgreSQL database: what they share, and what they do not."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from plugins.cluster_store.tests.s3_server import BUCKET, FULL, S3Server
from sandkasten.errors import InvalidConfiguration
from sandkasten_cluster_store.store_settings import StoreSettings
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.assembly.shared_store import open_shared
from sandkasten_runtime.store.ledger_directory import DirectoryStore
from tests.daemon.process import DaemonProcess, ask, running
from tests.daemon.test_serve import told
from tests.patience import PATIENCE_S
from tests.postgres_server import PostgresServer
from tests.store.test_directory import record

pytestmark = pytest.mark.promise("P98")
OPERATOR = {"Authorization": "Bearer sk-0123456789abcdef"}
PASSWORD = "pass-word-of-the-url"


@pytest.fixture(scope="module")
def server():
    with PostgresServer(durable=True) as one:
        yield one


@pytest.mark.long(reason="starts five daemons; `postgres` has the parts")
async def test_two_daemons_share_records_but_not_sandboxes(server, tmp_path):
    # The server asks for no password; the test looks for it in the output.
    url = f"postgresql://tester:{PASSWORD}@/postgres?host={server.place}"
    environ = {"SANDKASTEN_API_KEY": "sk-0123456789abcdef", "SANDKASTEN_STORE_URL": url}
    first, second = tmp_path / "first", tmp_path / "second"
    async with (
        running(first, environ=environ) as one,
        running(second, environ=environ) as other,
        aiohttp.ClientSession() as http,
    ):
        body = {"tenant": "t", "name": "one", "scopes": ["sessions", "files"]}
        _, made = await ask(http, "POST", one.url + "/v1/keys", body, headers=OPERATOR)
        mine = {"Authorization": f"Bearer {made['key']}"}
        await _answers(http, 200, other.url + "/v1/sessions", mine)

        place = other.url + "/v1/audit?action=key.create"
        async with asyncio.timeout(PATIENCE_S):
            found: Any = {"entries": []}
            while not found["entries"]:
                _, found = await ask(http, "GET", place, headers=OPERATOR)
        assert [row["target"] for row in found["entries"]] == [made["id"]]
        _, report = await ask(http, "GET", other.url + "/v1/audit/verify", headers=OPERATOR)
        assert report["ok"], report

        stored = aiohttp.FormData()
        stored.add_field("key", "a.txt")
        stored.add_field("file", b"shared", filename="a.txt")
        async with http.post(one.url + "/v1/files", data=stored, headers=mine) as reply:
            assert reply.status == 201, await reply.text()
        async with http.get(other.url + "/v1/files/a.txt", headers=mine) as reply:
            assert (reply.status, await reply.read()) == (200, b"shared")

        status, box = await ask(http, "POST", one.url + "/v1/sessions", {}, headers=mine)
        assert status == 201
        place = f"/v1/sessions/{box['id']}"
        assert (await ask(http, "GET", other.url + place, headers=mine))[0] == 404
        # A daemon that starts removes no sandbox of another daemon.
        await other.kill()
        await other.start()
        run = {"command": ["echo", "there"]}
        status, result = await ask(http, "POST", f"{one.url}{place}/exec", run, headers=mine)
        assert (status, result["stdout"]) == (200, "there\n")

        # While the database is unavailable, commands run, and a create is refused.
        server.kill()
        status, result = await ask(http, "POST", f"{one.url}{place}/exec", run, headers=mine)
        assert (status, result["stdout"]) == (200, "there\n")
        status, problem = await ask(http, "POST", one.url + "/v1/sessions", {}, headers=mine)
        assert (status, problem["code"]) == (503, "BACKEND_UNAVAILABLE")
        await asyncio.to_thread(server.start)
        await _answers(http, 200, one.url + place, mine)

        # A killed daemon finds its sandbox again, and can destroy it.
        await one.kill()
        await one.start()
        await _answers(http, 200, one.url + place, mine)
        assert (await ask(http, "DELETE", one.url + place, headers=mine))[0] in (200, 204)
        await _answers(http, 410, other.url + place, mine)

        assert (await ask(http, "DELETE", f"{other.url}/v1/keys/{made['id']}", headers=OPERATOR))[
            0
        ] == 200
        await _answers(http, 401, one.url + "/v1/sessions", mine)

        # Without the database, an engine would remove the sandboxes of the daemon.
        status, complaint = await told("--data-dir", str(first), "--embedded", "ls")
        assert (status, "store.url is not set" in complaint) == (125, True), complaint
        said = [json.loads(line) for line in one.said.splitlines() if line.startswith(b"{")]
        assert [line["node"] for line in said if line.get("event") == "store.shared"]
        assert PASSWORD.encode() not in one.said + other.said


@pytest.mark.long(reason="starts two daemons and an S3 server; `bucket` has the parts")
@pytest.mark.promise("P112")
async def test_large_files_of_two_daemons_are_in_a_bucket(server, tmp_path):
    """200 MB through a daemon whose memory is bounded, read at the other one after a kill."""
    size, piece = 200 * 1024 * 1024, os.urandom(1024 * 1024)

    async def sent():
        for _ in range(size // len(piece)):
            yield piece

    with S3Server() as bucket:
        environ = {
            "SANDKASTEN_API_KEY": "sk-0123456789abcdef",
            "SANDKASTEN_STORE_URL": server.url,
            "SANDKASTEN_STORE_FILES_ENDPOINT": bucket.url,
            "SANDKASTEN_STORE_FILES_BUCKET": BUCKET,
            "AWS_ACCESS_KEY_ID": FULL["access_key"],
            "AWS_SECRET_ACCESS_KEY": FULL["secret_key"],
        }
        async with (
            running(tmp_path / "first", environ=environ) as one,
            running(tmp_path / "second", environ=environ) as other,
            aiohttp.ClientSession(headers=OPERATOR) as http,
        ):
            before = _peak_kb(one.pid)
            async with http.post(one.url + "/v1/files?key=large", data=sent()) as reply:
                assert reply.status == 201, await reply.text()
            assert _peak_kb(one.pid) - before < 64 * 1024
            await one.kill()
            before = _peak_kb(other.pid)
            digest = hashlib.sha256()
            async with http.get(other.url + "/v1/files/large") as reply:
                async for found in reply.content.iter_chunked(1 << 20):
                    digest.update(found)
            assert digest.digest() == hashlib.sha256(piece * (size // len(piece))).digest()
            part = {"Range": f"bytes={size - 5}-"}
            async with http.get(other.url + "/v1/files/large", headers=part) as reply:
                assert (reply.status, await reply.read()) == (206, piece[-5:])
            assert _peak_kb(other.pid) - before < 64 * 1024
            await one.start()
            for secret in (FULL["secret_key"], FULL["access_key"]):
                assert secret.encode() not in one.said + other.said


def _peak_kb(pid: int) -> int:
    """Return the most memory that a process had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


@pytest.mark.long(reason="kills daemons and the database many times")
@pytest.mark.promise("P99")
async def test_a_storm_of_kills_loses_no_acknowledged_write(server, tmp_path):
    """One of two daemons or the server is killed under load and started again, twelve times."""
    environ = {"SANDKASTEN_API_KEY": "sk-0123456789abcdef", "SANDKASTEN_STORE_URL": server.url}
    stop, files, sessions = asyncio.Event(), set[str](), {}

    async def load_files(http: aiohttp.ClientSession, daemon: DaemonProcess, name: str) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            key = f"{name}/{number}"
            stored = aiohttp.FormData()
            stored.add_field("key", key)
            stored.add_field("file", key.encode(), filename="f")
            with suppress(aiohttp.ClientError, OSError):
                async with http.post(daemon.url + "/v1/files", data=stored) as reply:
                    if reply.status == 201:
                        files.add(key)
            await asyncio.sleep(0.02)

    async def load_sessions(http: aiohttp.ClientSession, daemon: DaemonProcess) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with suppress(aiohttp.ClientError, OSError, ValueError):
                status, made = await ask(http, "POST", daemon.url + "/v1/sessions", {})
                if status == 201 and number % 3:
                    # If the answer is lost with the daemon, it may or may not be there.
                    await ask(http, "DELETE", f"{daemon.url}/v1/sessions/{made['id']}")
                elif status == 201:
                    sessions[made["id"]] = daemon
            await asyncio.sleep(0.1)

    async with (
        running(tmp_path / "first", environ=environ) as one,
        running(tmp_path / "second", environ=environ) as other,
        aiohttp.ClientSession(headers=OPERATOR) as http,
    ):
        loads = [
            asyncio.create_task(load_files(http, daemon, name))
            for name, daemon in (("one", one), ("other", other))
        ]
        loads += [asyncio.create_task(load_sessions(http, daemon)) for daemon in (one, other)]
        order = [one, server, other, server] * 3
        for victim in order:
            before = len(files)
            async with asyncio.timeout(PATIENCE_S):
                while len(files) < before + 10:  # noqa: ASYNC110  (the load fills it)
                    await asyncio.sleep(0.01)
            if isinstance(victim, PostgresServer):
                victim.kill()
                await asyncio.to_thread(victim.start)
            else:
                await victim.kill()
                await victim.start()
        stop.set()
        await asyncio.gather(*loads)
        for daemon in (one, other):
            await _answers(http, 200, daemon.url + "/v1/sessions", {})
            for key in files:
                async with http.get(f"{daemon.url}/v1/files/{key}") as reply:
                    assert (reply.status, await reply.read()) == (200, key.encode())
        assert len(sessions) > 3
        for the_id, daemon in sessions.items():
            place = f"{daemon.url}/v1/sessions/{the_id}/exec"
            status, result = await ask(http, "POST", place, {"command": ["echo", "there"]})
            assert (status, result.get("stdout")) == (200, "there\n"), result


async def _answers(http: aiohttp.ClientSession, status: int, url: str, headers) -> None:
    """Wait until a request is answered with this status."""
    found: object = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while found != status:
                found, _ = await ask(http, "GET", url, headers=headers)
    except TimeoutError:
        raise AssertionError(f"{url} answers {found}, not {status}") from None


async def test_data_directory_with_sandboxes_recorded_in_files_is_refused(tmp_path):
    settings = load(
        {"data_dir": str(tmp_path / "data")},
        {"SANDKASTEN_STORE_URL": "postgresql://u@127.0.0.1:1/db"},
        tmp_path,
    )
    await DirectoryStore(tmp_path / "data" / "ledger").put(record())
    with pytest.raises(InvalidConfiguration, match="recorded in files"):
        await open_shared(settings)
    assert not (tmp_path / "data" / "node").exists()


@pytest.mark.parametrize(
    "value",
    ["mysql://h/d", "postgresql://h", "postgresql:///d", "postgresql://u:p w@h/d", "x", 5,
     f"postgresql://u:{PASSWORD}/@h:nine/d", f"postgresql://u:12/{PASSWORD}@h/d"],
)  # fmt: skip
def test_a_url_that_cannot_be_used_is_refused_without_being_repeated(tmp_path, value):
    with pytest.raises(InvalidConfiguration) as refused:
        load({"store.url": value}, {}, tmp_path)
    assert refused.value.details["setting"] == "store.url"
    assert str(value) not in refused.value.message
    assert PASSWORD not in str(refused.value)


def test_the_password_of_the_url_is_never_shown(tmp_path):
    url = f"postgresql://user:{PASSWORD}@host:5433/db?sslmode=require&password={PASSWORD}"
    found = load({"store.url": url}, {}, tmp_path)
    shown = {one.name: one.value for one in found.origins()}
    assert shown["store.url"] == "postgresql://user@host:5433/db"
    assert PASSWORD not in repr(found)
    assert found.of(StoreSettings).url == url


@pytest.mark.parametrize(
    "place",
    ["u@db.example.com/d", "u@10.0.0.5:5433/d", "u@[2001:db8::1]/d", "u@localhost,db/d",
     "u@/d?host=db", "u@/d?host=/run/postgresql,10.0.0.5", "u@localhost.example.com/d"],
)  # fmt: skip
def test_a_server_on_another_machine_needs_a_written_sslmode(tmp_path, place):
    url = f"postgresql://{place}"
    with pytest.raises(InvalidConfiguration, match="does not say how to check it") as refused:
        load({"store.url": url}, {}, tmp_path)
    assert "sslmode=verify-full" in refused.value.hint
    for mode in ("verify-full", "require", "disable"):
        written = f"{url}{'&' if '?' in url else '?'}sslmode={mode}"
        assert load({"store.url": written}, {}, tmp_path).of(StoreSettings).url == written


@pytest.mark.parametrize(
    "place",
    ["u@localhost/d", "u@127.0.0.1:5433/d", "u@127.3.2.1/d", "u@[::1]:5433/d",
     "u@/d?host=/run/postgresql", "u@%2Frun%2Fpostgresql/d", "u@localhost,127.0.0.1/d"],
)  # fmt: skip
def test_a_server_on_this_machine_needs_no_sslmode(tmp_path, place):
    url = f"postgresql://{place}"
    assert load({"store.url": url}, {}, tmp_path).of(StoreSettings).url == url
