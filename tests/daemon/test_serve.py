"""The daemon as a process: start, access, and exit."""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
import subprocess
import sys

import aiohttp
import pytest

from tests.daemon.process import DaemonProcess, ask, cleared, running
from tests.patience import PATIENCE_S


async def told(*words: str, environ: dict[str, str] | None = None) -> tuple[int, str]:
    """Return the status and stderr of a command that exits by itself."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sandkasten_server.cli", *words,
        stdout=subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environ or {})},
    )  # fmt: skip
    async with asyncio.timeout(PATIENCE_S):
        _, complaint = await process.communicate()
    return process.returncode or 0, complaint.decode()


@pytest.mark.real_start
@pytest.mark.promise("P28")
async def test_a_session_outlives_the_daemon_that_made_it(tmp_path):
    async with running(tmp_path / "data") as daemon, aiohttp.ClientSession() as http:
        status, made = await ask(http, "POST", daemon.url + "/v1/sessions", {})
        assert status == 201
        assert await daemon.stop() == 0
        await daemon.start()
        status, found = await ask(http, "GET", f"{daemon.url}/v1/sessions/{made['id']}")
        assert (status, found["status"]) == (200, "running")


@pytest.mark.promise("P28")
async def test_a_second_daemon_on_one_data_directory_is_refused(tmp_path):
    data_dir = tmp_path / "data"
    async with running(data_dir) as daemon:
        status, complaint = await told(
            "--data-dir", str(data_dir), "serve", "--listen", "127.0.0.1:0"
        )
        assert status == 125
        assert f"another daemon (pid {daemon.pid})" in complaint
        assert "hint:" in complaint


@pytest.mark.promise("P43")
async def test_an_address_others_can_reach_needs_a_key(tmp_path):
    words = ("--data-dir", str(tmp_path / "data"), "serve", "--listen", "0.0.0.0:0")
    status, complaint = await told(*words)
    assert status == 125
    assert "requires a key" in complaint
    environ = {"SANDKASTEN_API_KEY": "sk-0123456789abcdef"}
    async with (
        running(tmp_path / "data", "--listen", "0.0.0.0:0", environ=environ) as daemon,
        aiohttp.ClientSession() as http,
    ):
        url = daemon.url.replace("0.0.0.0", "127.0.0.1") + "/v1/sessions"
        assert (await ask(http, "GET", url))[0] == 401
        good = {"Authorization": "Bearer sk-0123456789abcdef"}
        assert await ask(http, "GET", url, headers=good) == (200, [])


@pytest.mark.promise("P43")
async def test_the_socket_in_the_data_directory_is_for_the_operator_only(tmp_path):
    environ = {"SANDKASTEN_API_KEY": "sk-0123456789abcdef"}
    async with running(tmp_path / "data", environ=environ):
        path = tmp_path / "data" / "daemon.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        connector = aiohttp.UnixConnector(str(path))
        async with aiohttp.ClientSession(connector=connector) as http:
            assert await ask(http, "GET", "http://localhost/v1/sessions") == (200, [])


@pytest.mark.promise("P43")
async def test_loopback_is_open_until_the_first_key_is_made_and_never_again(tmp_path):
    async with running(tmp_path / "data") as daemon, aiohttp.ClientSession() as http:
        url = daemon.url + "/v1/sessions"
        assert (await ask(http, "GET", url))[0] == 200
        _, made = await ask(http, "POST", daemon.url + "/v1/keys", {"tenant": "t", "name": "one"})
        assert (await ask(http, "GET", url))[0] == 401
        good = {"Authorization": f"Bearer {made['key']}"}
        assert (await ask(http, "GET", url, headers=good))[0] == 200
        connector = aiohttp.UnixConnector(str(tmp_path / "data" / "daemon.sock"))
        async with aiohttp.ClientSession(connector=connector) as local:
            revoke = f"http://localhost/v1/keys/{made['id']}"
            assert (await ask(local, "DELETE", revoke))[0] == 200
        assert (await ask(http, "GET", url, headers=good))[0] == 401
        assert (await ask(http, "GET", url))[0] == 401


async def test_tls_works_with_a_self_signed_certificate(tmp_path):
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
            "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
            "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]  # fmt: skip
    await asyncio.to_thread(subprocess.run, made, check=True, capture_output=True)
    flags = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    async with running(tmp_path / "data", *flags) as daemon, aiohttp.ClientSession() as http:
        assert daemon.url.startswith("https://")
        context = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        status, health = await ask(http, "GET", daemon.url + "/healthz", ssl=context)
        assert (status, health["status"]) == (200, "ok")
        # The same for our own clients, which trust what this variable names.
        environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        words = [sys.executable, "-m", "sandkasten_server.cli", "--url", daemon.url, "ls", "-q"]
        for trusted, status in ((str(tmp_path / "cert.pem"), 0), ("/nonexistent", 125)):
            environ["SSL_CERT_FILE"] = trusted
            program = await asyncio.create_subprocess_exec(
                *words,
                env=environ,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            _, wrong = await program.communicate()
            assert program.returncode == status, wrong
        assert b"certificate" in wrong


@pytest.mark.real_start
async def test_init_writes_settings_that_serve_accepts(tmp_path):
    config = tmp_path / "sandkasten.yaml"
    status, complaint = await told(
        "--data-dir", str(tmp_path / "data"), "init", "--config", str(config)
    )
    assert status == 0, complaint
    key = (tmp_path / "sandkasten.key").read_text().strip()
    assert stat.S_IMODE((tmp_path / "sandkasten.key").stat().st_mode) == 0o600
    async with (
        running(tmp_path / "data", "--config", str(config)) as daemon,
        aiohttp.ClientSession() as http,
    ):
        assert (await ask(http, "GET", daemon.url + "/v1/sessions"))[0] == 401
        good = {"Authorization": f"Bearer {key}"}
        assert (await ask(http, "GET", daemon.url + "/v1/sessions", headers=good))[0] == 200
        assert key.encode() not in daemon.said
    again = await told("--data-dir", str(tmp_path / "data"), "init", "--config", str(config))
    assert again[0] == 125
    assert "--force" in again[1]


async def test_a_port_in_use_is_a_typed_error(tmp_path):
    async with running(tmp_path / "one") as daemon:
        address = daemon.url.removeprefix("http://")
        status, complaint = await told(
            "--data-dir", str(tmp_path / "two"), "serve", "--listen", address
        )
        assert status == 125
        assert "cannot listen on" in complaint
        assert "--listen" in complaint


@pytest.mark.real_start
@pytest.mark.parametrize(
    "signal",
    [
        pytest.param("stop", marks=pytest.mark.long(reason="`make test` kills it")),
        "kill",
    ],
)
async def test_a_dead_daemons_socket_is_taken_over(tmp_path, signal):
    daemon = DaemonProcess(tmp_path / "data")
    await daemon.start()
    await getattr(daemon, signal)()
    await daemon.start()
    try:
        connector = aiohttp.UnixConnector(str(tmp_path / "data" / "daemon.sock"))
        async with aiohttp.ClientSession(connector=connector) as http:
            assert (await ask(http, "GET", "http://localhost/healthz"))[0] == 200
    finally:
        await daemon.stop()
        await cleared(tmp_path / "data")
