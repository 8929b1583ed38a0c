"""Previews of a domain over TLS in a browser, with a certificate of the daemon's own authority."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.client.http.served import served
from tests.previews.browser import chromium
from tests.previews.conftest import listening, sandbox
from tests.previews.test_hostile_page import ATTEMPTS, ON_OTHER, origin, serve

pytestmark = [
    pytest.mark.promise("P78"),
    pytest.mark.long(reason="it starts a browser"),
    pytest.mark.timeout(300),
]
DOMAIN = "example.test"
COOKIE = "__Host-sandkasten_preview"
SITE = """
import base64, hashlib, http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            self.send_header("Sec-WebSocket-Accept", accept)
            self.end_headers()
            self.wfile.write(bytes([0x81, 5]) + b"hello")
            self.wfile.flush()
            self.rfile.read(1)
            return
        data = ("seen: " + self.headers.get("X-Forwarded-Proto", "")).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Set-Cookie", "of_server=1; Domain=example.test; Secure")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def domain_daemon():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        tempfile.TemporaryDirectory(prefix="pytest-of-previews-", dir="/var/tmp") as place,
        served(
            Path(place) / "data",
            backend="local",
            SANDKASTEN_PREVIEWS_DOMAIN=DOMAIN,
            SANDKASTEN_PREVIEWS_LISTEN=f"127.0.0.1:{port}",
        ) as daemon,
    ):
        yield daemon


@asynccontextmanager
async def trusting_browser(daemon):
    """A browser that knows the names of the domain and trusts the authority's key."""
    pem = (daemon.data_dir / "previews" / DOMAIN / "ca.pem").read_bytes()
    key = x509.load_pem_x509_certificate(pem).public_key()
    info = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    pin = base64.b64encode(hashlib.sha256(info).digest()).decode()
    flags = (
        f"--host-resolver-rules=MAP *.{DOMAIN} 127.0.0.1",
        f"--ignore-certificate-errors-spki-list={pin}",
    )
    async with chromium(*flags) as one:
        yield one


async def test_a_preview_of_the_domain_opens_over_tls(domain_daemon):
    async with (
        sandbox(domain_daemon.where) as box,
        trusting_browser(domain_daemon) as browser,
    ):
        await listening(box, ["python3", "-c", SITE], 8000)
        url = await box.url(8000)
        async with browser.page(url) as page:
            assert await page.run("document.body.innerText") == "seen: https"
            assert await page.run("[location.protocol, isSecureContext].join()") == "https:,true"
            script = """new Promise(done => {
                const one = new WebSocket(location.origin.replace('https', 'wss') + '/ws');
                one.onmessage = told => done(told.data); one.onerror = () => done('failed'); })"""
            assert await page.run(script) == "hello"
            kept = {one["name"]: one for one in await page.cookies()}
        host = url.split("/")[2].partition(":")[0]
        # Also the cookie of the server, which asked for the whole domain.
        assert {name: one["domain"] for name, one in kept.items()} == {
            COOKIE: host,
            "of_server": host,
        }
        assert (kept[COOKIE]["secure"], kept[COOKIE]["httpOnly"]) == (True, True)


@pytest.mark.parametrize("same_site", [True, False], ids=["same-site", "older-browser"])
async def test_a_page_of_the_domain_does_not_reach_another_preview(domain_daemon, same_site):
    """Without SameSite the browser sends the cookie along, and only the daemon refuses."""
    async with (
        sandbox(domain_daemon.where) as box,
        sandbox(domain_daemon.where) as other,
        trusting_browser(domain_daemon) as browser,
    ):
        await serve(box, 8000, "mine")
        await serve(other, 8000, "theirs")
        link = await other.url(8000)
        async with browser.page(link) as victim:
            if not same_site:
                (own,) = [one for one in await victim.cookies() if one["name"] == COOKIE]
                await victim.call("Network.setCookie", name=COOKIE, value=own["value"],
                                  url=origin(link), path="/", secure=True, httpOnly=True,
                                  sameSite="None")  # fmt: skip
            values = {"attempts": ATTEMPTS, "other": json.dumps(origin(link))}
            async with browser.page(await box.url(8000)) as page:
                # Fewer cookies: all of them would exceed the size of the headers.
                script = (ON_OTHER % values).replace("at < 400", "at < 40")
                script = script.replace("domain=localhost", f"domain={DOMAIN}")
                told = await page.run(script)
            await victim.open(origin(link) + "/changes")
            assert await victim.run("document.body.innerText") == "0"
    reads = ("read", "credentials", "script", "image", "frame", "socket", "window", "worker")
    assert {name: told[name] for name in reads} == dict.fromkeys(reads, "refused")
