"""Links to ports through a daemon: the SDK, the command line, and a domain with TLS."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
from urllib.parse import urlsplit
from urllib.request import urlopen

import aiohttp
import pytest

from sandkasten import AsyncSandbox, Sandbox
from sandkasten.errors import InvalidConfiguration, InvalidRequest, UnsupportedByBackend
from sandkasten.model.access.preview_links import PreviewTarget
from sandkasten_runtime.assembly.settings.resolver import load
from tests.cli.conftest import COMMAND
from tests.client.http.served import served as serving
from tests.loopback_port import free_port
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.promise("P78")


@pytest.fixture
async def box(served):
    async with AsyncSandbox(url=f"unix://{served.socket}") as one:
        await one.write("/tmp/site/index.html", "<h1>here</h1>")
        await one.start(["python3", "-m", "http.server", "-d", "/tmp/site", "8000"])
        yield one


def label(box):
    return PreviewTarget(box.id, 8000).label


async def opened(url, **more):
    """Open a link as a browser does, on this machine whatever its host; wait for the server."""
    parts = urlsplit(url)
    address = f"{parts.scheme}://127.0.0.1:{parts.port}"
    headers = {"Host": parts.netloc}
    async with aiohttp.ClientSession() as http, asyncio.timeout(PATIENCE_S):
        path = f"{address}{parts.path}?{parts.query}"
        async with http.get(path, headers=headers, allow_redirects=False, **more) as first:
            said = await first.text()
            assert (first.status, first.headers.get("Location"), said) == (303, "/", "")
            headers["Cookie"] = first.headers["Set-Cookie"].partition(";")[0]
        while True:
            async with http.get(address + "/", headers=headers, **more) as found:
                if found.status != 502:
                    return found.status, await found.text()
            await asyncio.sleep(0.05)


async def test_a_link_of_the_sdk_opens_the_port(served, box):
    url = await box.url(8000, ttl_seconds=60)
    port = urlsplit(served.url).port
    assert url.startswith(f"http://{label(box)}.localhost:{port}/?sandkasten_token=")
    assert await opened(url) == (200, "<h1>here</h1>")
    assert await box.url(8000, public=True) == f"http://{label(box)}.localhost:{port}/"
    assert "sandkasten_token=" in await box.url(8000, public=False)


async def test_the_sdk_revokes_links_and_forwards_a_port(served, box):
    one, two = await box.url(8000), await box.url(8000)
    assert (await opened(one))[0] == 200
    await box.revoke_url(one)
    assert await refused(one) == 401
    assert (await opened(two))[0] == 200
    await box.revoke_urls()
    assert await refused(two) == 403
    forward = box.forward(8000)
    with pytest.raises(InvalidRequest, match="not forwarded"):
        _ = forward.local_port
    async with forward, aiohttp.ClientSession() as http:
        assert forward.address == f"127.0.0.1:{forward.local_port}"
        async with http.get(f"http://{forward.address}/") as found:
            assert (found.status, await found.text()) == (200, "<h1>here</h1>")
        taken = box.forward(8000, forward.local_port)
        with pytest.raises(InvalidRequest) as error:
            await taken.__aenter__()
        assert error.value.details == {"field": "local"}

    def blocking():
        with (
            Sandbox.attach(box.id, url=f"unix://{served.socket}") as twin,
            twin.forward(8000) as at,
        ):
            return urlopen(f"http://{at.address}/").read()

    assert await asyncio.to_thread(blocking) == b"<h1>here</h1>"


async def refused(url):
    """Return the status of a link that opens nothing."""
    parts = urlsplit(url)
    address = f"http://127.0.0.1:{parts.port}/?{parts.query}"
    async with (
        aiohttp.ClientSession() as http,
        http.get(address, headers={"Host": parts.netloc}, allow_redirects=False) as found,
    ):
        return found.status


async def test_a_link_requires_a_daemon(tmp_path):
    box = AsyncSandbox(data_dir=tmp_path / "data", url="embedded", backend="unisolated")
    async with box:
        with pytest.raises(UnsupportedByBackend, match="require a daemon"):
            await box.url(8000)


async def test_the_command_line_makes_links_and_forwards(served, box):
    words = [*COMMAND, "--url", f"unix://{served.socket}"]
    env = {**os.environ, "SANDKASTEN_DATA_DIR": str(served.data_dir)}

    def run(*more):
        return subprocess.run([*words, *more], env=env, capture_output=True, text=True, check=False)

    made = await asyncio.to_thread(run, "url", box.id, "8000", "--ttl", "5m", "--json")
    told = json.loads(made.stdout)
    assert (told["public"], told["port"]) == (False, 8000)
    assert await opened(told["url"]) == (200, "<h1>here</h1>")
    wrong = await asyncio.to_thread(run, "url", box.id, "8000", "--revoke-all")
    assert wrong.returncode == 2
    for more, status in ((("--revoke", told["url"]), 401), (("--revoke-all",), 403)):
        done = await asyncio.to_thread(run, "url", box.id, *more)
        assert (done.returncode, done.stdout) == (0, "")
        assert await refused(told["url"]) == status
    process = await asyncio.create_subprocess_exec(
        *words, "forward", box.id, "8000", "0", env=env, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            address = (await process.stdout.readline()).decode().strip()
        async with aiohttp.ClientSession() as http, http.get(f"http://{address}/") as found:
            assert (found.status, await found.text()) == (200, "<h1>here</h1>")
    finally:
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 130


@pytest.fixture
def domain(tmp_path):
    """A daemon that serves previews of a domain on a port of its own."""
    port = free_port()
    environ = {
        "SANDKASTEN_PREVIEWS_DOMAIN": "preview.example.com",
        "SANDKASTEN_PREVIEWS_LISTEN": f"127.0.0.1:{port}",
    }
    with serving(tmp_path / "data", **environ) as daemon:
        yield daemon, port


@pytest.mark.long(reason="`make test` has it for the client of E2B")
async def test_a_domain_is_served_with_a_certificate_of_the_daemons_own_authority(domain, tmp_path):
    daemon, port = domain
    async with AsyncSandbox(**daemon.where) as box:
        await box.write("/tmp/site/index.html", "<h1>here</h1>")
        await box.start(["python3", "-m", "http.server", "-d", "/tmp/site", "8000"])
        url = await box.url(8000)
        host = f"{label(box)}.preview.example.com"
        assert url.startswith(f"https://{host}:{port}/?sandkasten_token=")
        folder = tmp_path / "data/previews/preview.example.com"
        assert {one.name: one.stat().st_mode & 0o777 for one in folder.iterdir()} == {
            "ca.pem": 0o644,
            "ca.key": 0o600,
            "cert.pem": 0o600,
        }
        words = [*COMMAND, "--data-dir", str(tmp_path / "data"), "ca"]
        env = {"PATH": os.environ["PATH"], "SANDKASTEN_PREVIEWS_DOMAIN": "preview.example.com"}
        printed = await asyncio.to_thread(
            subprocess.run, words, env=env, capture_output=True, text=True, check=False
        )
        assert printed.returncode == 0, printed.stderr
        tls = ssl.create_default_context(cadata=printed.stdout)
        assert await opened(url, ssl=tls, server_hostname=host) == (200, "<h1>here</h1>")
        # A client that never begins the handshake is disconnected, long before a minute.
        silent, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(PATIENCE_S):
            assert await silent.read() == b""
        writer.close()
        await writer.wait_closed()
        # Previews only.
        address = f"https://127.0.0.1:{port}/v1/sessions"
        async with (
            aiohttp.ClientSession() as http,
            http.get(address, ssl=tls, server_hostname=host) as refused,
        ):
            assert refused.status == 421


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DOMAIN", "not a domain", "must be a domain"),
        ("LISTEN", "127.0.0.1:1", "previews.listen requires previews.domain"),
        ("CERT", "x.pem", "previews.cert and previews.key require each other"),
    ],
)
def test_settings_that_contradict_are_refused(tmp_path, name, value, said):
    with pytest.raises(InvalidConfiguration, match=said):
        load({}, {f"SANDKASTEN_PREVIEWS_{name}": value}, tmp_path)
