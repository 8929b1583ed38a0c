"""The registry client against docker-registry: TLS, logins, tokens and redirects."""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode

import pytest

from sandkasten.errors import (
    InvalidConfiguration,
    InvalidImage,
    PolicyDenied,
    RegistryUnavailable,
    Unauthorized,
)
from sandkasten_runtime.images.registry.manifests import Descriptor
from sandkasten_runtime.images.registry.registry_credentials import Access
from sandkasten_runtime.images.registry.registry_http import _context, loopback
from tests.images import registries
from tests.images.registries import PASSWORD, USER, Running
from tests.images.registry_access import (
    BASIC,
    LOGIN,
    MADE,
    manifest_of,
    open_registry,
    reach,
    read_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


async def test_an_image_is_read_from_a_plain_registry_on_loopback(plain_registry):
    async with open_registry(plain_registry.host) as registry:
        found = await manifest_of(registry)
        assert (
            await registry.manifest(MADE.digest)
            == await registry.manifest("1")
            == (found, MADE.digest)
        )
        assert [one.digest for one in found.layers] == MADE.layers
        assert await registry.blob(found.config).read_all() == MADE.blobs[found.config.digest]
        assert await registry.blob(found.layers[0]).read_all() == MADE.blobs[MADE.layers[0]]


async def test_a_missing_image_is_an_invalid_image(plain_registry):
    async with open_registry(plain_registry.host) as registry:
        with pytest.raises(InvalidImage) as missing:
            await registry.manifest("2")
        assert f"{plain_registry.host} has no team/app:2" in missing.value.message
        with pytest.raises(InvalidImage):
            await registry.blob(Descriptor("x", "sha256:" + "0" * 64, 10)).read()


async def test_a_registry_that_is_down_is_unavailable_and_retryable():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        host = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(RegistryUnavailable) as down:
            await reach(host)
    assert down.value.retryable
    assert host in down.value.message
    assert "Connection refused" in down.value.message


async def test_an_unknown_registry_host_is_unavailable():
    with pytest.raises(RegistryUnavailable):
        await reach("nowhere.invalid")


@pytest.fixture(scope="module")
def tls_registry(tmp_path_factory) -> Iterator[tuple[Running, str]]:
    """A registry with TLS by its own authority, and a login."""
    folder = tmp_path_factory.mktemp("secure")
    cert, key = registries.certificate(folder)
    (folder / "htpasswd").write_text(registries.HTPASSWD)
    auth = {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}
    with registries.docker_registry(folder, tls=(cert, key), auth=auth) as running:
        registries.push(running.base, "team/app", "1", MADE, headers=BASIC, ca_file=str(cert))
        yield running, str(cert)


async def test_a_certificate_of_the_configured_authority_is_trusted(tls_registry):
    running, ca_file = tls_registry
    access = Access(username=USER, password=PASSWORD, ca_file=ca_file)
    async with open_registry(running.host, access) as registry:
        found = await manifest_of(registry)
        assert await registry.blob(found.layers[0]).read_all() == MADE.blobs[MADE.layers[0]]


@pytest.mark.promise("P51")
@pytest.mark.parametrize("insecure", [False, True])
async def test_an_untrusted_certificate_is_refused_without_falling_back_to_plain_http(
    tls_registry, insecure
):
    running, _ = tls_registry
    access = Access(username=USER, password=PASSWORD, insecure=insecure)
    with pytest.raises(RegistryUnavailable) as refused:
        await reach(running.host, access)
    assert "is not trusted" in refused.value.message
    assert refused.value.hint.endswith(".ca_file")


def test_certificates_are_loaded_again_only_when_their_file_changed(tls_registry, tmp_path):
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(Path(tls_registry[1]).read_bytes())
    first = _context(str(ca_file))
    assert _context(str(ca_file)) is first
    os.utime(ca_file, (1, 1))
    assert _context(str(ca_file)) is not first


async def test_an_invalid_ca_file_is_a_configuration_error(tls_registry, tmp_path):
    running, _ = tls_registry
    for content in (None, "no certificate"):
        if content:
            (tmp_path / "ca").write_text(content)
        with pytest.raises(InvalidConfiguration):
            await reach(running.host, Access(ca_file=str(tmp_path / "ca")))


@pytest.mark.promise("P51")
async def test_plain_http_is_refused_where_tls_is_required(plain_registry, tls_registry):
    with pytest.raises(RegistryUnavailable) as refused:
        await reach(plain_registry.host, Access(ca_file=tls_registry[1]))
    assert "does not speak TLS" in refused.value.message


@pytest.mark.parametrize(
    ("login", "hint"),
    [
        ({}, ".username"),
        ({"username": USER, "password": "wrong"}, "check the user"),
        ({"token": "wrong"}, "check the user"),
        ({"helper": "pass"}, "credential helper pass is not run"),
    ],
)
async def test_a_refused_login_names_the_setting(tls_registry, login, hint):
    running, ca_file = tls_registry
    with pytest.raises(Unauthorized) as refused:
        await read_manifest(running.host, access=Access(ca_file=ca_file, **login))
    assert hint in refused.value.hint
    assert "wrong" not in str(refused.value)


@pytest.fixture(scope="module")
def token_registry(tmp_path_factory) -> Iterator[tuple[Running, registries.TokenServer]]:
    """docker-registry with token authentication, and the server of its tokens."""
    folder = tmp_path_factory.mktemp("tokened")
    cert, key = registries.certificate(folder, "tokens")
    with registries.token_server(cert, key) as server:
        auth = {
            "token": {
                "realm": server.realm,
                "service": "the registry",
                "issuer": "tests",
                "rootcertbundle": str(cert),
            }
        }
        with registries.docker_registry(folder, auth=auth) as running:
            for repository in ("team/app", "public/app"):
                pushing = _bearer(server.realm, f"repository:{repository}:pull,push")
                registries.push(running.base, repository, "1", MADE, headers=pushing)
            server.asked.clear()
            yield running, server


def _bearer(realm: str, scope: str) -> dict[str, str]:
    query = urlencode({"service": "the registry", "scope": scope})
    answer = registries.send("GET", f"{realm}?{query}", headers=BASIC)
    return {"Authorization": f"Bearer {json.loads(answer.body)['token']}"}


async def test_a_token_is_fetched_once_with_the_credentials_and_used_for_everything(token_registry):
    running, server = token_registry
    server.asked.clear()
    async with open_registry(running.host, LOGIN) as registry:
        found = await manifest_of(registry)
        assert await registry.blob(found.config).read_all() == MADE.blobs[found.config.digest]
        assert await registry.blob(found.layers[0]).read_all() == MADE.blobs[MADE.layers[0]]
    assert server.asked == [("repository:team/app:pull", LOGIN.basic())]


async def test_a_public_image_is_pulled_with_an_anonymous_token(token_registry):
    running, server = token_registry
    server.asked.clear()
    async with open_registry(running.host, rest="public/app:1") as registry:
        await manifest_of(registry)
    assert server.asked == [("repository:public/app:pull", None)]


async def test_a_token_without_the_needed_access_is_unauthorized(token_registry):
    running, _ = token_registry
    with pytest.raises(Unauthorized):
        await read_manifest(running.host)
    wrong = Access(username=USER, password="wrong")
    with pytest.raises(Unauthorized):
        await read_manifest(running.host, access=wrong)


async def test_a_configured_token_is_sent_unchanged(token_registry):
    running, server = token_registry
    token = _bearer(server.realm, "repository:team/app:pull")["Authorization"].split()[1]
    server.asked.clear()
    async with open_registry(running.host, Access(token=token)) as registry:
        await manifest_of(registry)
    assert server.asked == []


@pytest.mark.promise("P51")
async def test_a_redirected_blob_is_fetched_without_the_login(
    tls_registry, plain_registry, registry_front
):
    """A redirect to another origin drops the login; one to the same origin keeps it."""
    heard: list[str | None] = []

    def elsewhere(asked: registries.Asked) -> None:
        heard.append(asked.headers.get("Authorization"))
        asked.pass_on()

    with registries.front(plain_registry) as store:
        store.rule = elsewhere

        def redirect(asked: registries.Asked) -> None:
            if asked.headers.get("Authorization") is None:
                asked.answer(401, {"WWW-Authenticate": "Basic realm=x"})
            elif "/blobs/" in asked.path and not asked.path.endswith("again"):
                asked.answer(307, {"Location": f"{asked.path}?again"})
            elif "/blobs/" in asked.path:
                asked.answer(307, {"Location": f"http://{store.host}{asked.path}"})
            else:
                asked.pass_on()

        registry_front.rule = redirect
        async with open_registry(registry_front.host, LOGIN) as registry:
            found = await manifest_of(registry)
            assert await registry.blob(found.layers[0]).read_all() == MADE.blobs[MADE.layers[0]]
    assert heard == [None]
    again = [one for one in registry_front.seen if one.path.endswith("again")]
    assert [one.headers.get("Authorization") for one in again] == [LOGIN.basic()]


@pytest.mark.promise("P51")
async def test_a_proxy_gets_its_own_login_and_not_that_of_the_registry(plain_registry):
    asked: list[tuple[str, str | None]] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            asked.append((f"CONNECT {self.path}", self.headers.get("Proxy-Authorization")))
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            # The host behind the tunnel does not speak TLS.
            assert self.connection.recv(65536).startswith(b"\x16\x03")
            self.wfile.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Proxy-Authorization")))
            path = self.path.removeprefix("http://registry.example")
            answer = registries.send("GET", plain_registry.base + path, headers=dict(self.headers))
            self.send_response(answer.status)
            for name in ("Content-Type", "Content-Length", "Docker-Content-Digest"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with registries.served(Proxy) as port:
        address = f"http://me:pass@127.0.0.1:{port}"
        environ = {"https_proxy": address, "http_proxy": address}
        access = Access(insecure=True)
        async with open_registry("registry.example", access, environ=environ) as registry:
            await manifest_of(registry)
    login = "Basic " + base64.b64encode(b"me:pass").decode()
    assert asked == [
        ("CONNECT registry.example:443", login),
        ("http://registry.example/v2/", login),
        ("http://registry.example/v2/team/app/manifests/1", login),
    ]


async def test_a_signed_address_is_followed_as_it_was_written(registry_front):
    query = "?signature=a%2fb+c%3D~&of='x'"

    def redirect(asked: registries.Asked) -> None:
        if "/manifests/" in asked.path and "?" not in asked.path:
            asked.answer(307, {"Location": asked.path + query})
        else:
            asked.pass_on()

    registry_front.rule = redirect
    async with open_registry(registry_front.host) as registry:
        await manifest_of(registry)
    assert registry_front.paths("?") == [f"/v2/team/app/manifests/1{query}"]


async def test_a_proxy_that_refuses_is_named_with_its_status():
    class Proxy(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            self.send_error(407)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with registries.served(Proxy) as port, pytest.raises(RegistryUnavailable) as refused:
        await reach("registry.example", environ={"https_proxy": f"http://127.0.0.1:{port}"})
    assert "the proxy answered 407" in refused.value.message


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://h/x", "gopher://h"])
async def test_a_redirect_to_another_scheme_is_not_followed(registry_front, target):
    registry_front.rule = lambda asked: asked.answer(302, {"Location": target})
    with pytest.raises(InvalidImage) as refused:
        await reach(registry_front.host)
    assert "is not followed" in refused.value.message


async def test_circular_redirects_are_an_error(registry_front):
    registry_front.rule = lambda asked: asked.answer(302, {"Location": asked.path})
    with pytest.raises(InvalidImage) as refused:
        await reach(registry_front.host)
    assert "redirected more than 5 times" in refused.value.message


@pytest.mark.promise("P51")
@pytest.mark.parametrize(
    "realm", ["http://tokens.example/t", "file:///t", "https://u:p@h/t", "/t", "http://10.1.2.3/"]
)
async def test_credentials_are_not_sent_to_a_token_server_over_plain_http(registry_front, realm):
    challenge = {"WWW-Authenticate": f'Bearer realm="{realm}",service="x"'}
    registry_front.rule = lambda asked: asked.answer(401, challenge)
    with pytest.raises(Unauthorized) as refused:
        await read_manifest(registry_front.host, access=LOGIN)
    assert "is not safe" in refused.value.message


async def test_a_token_with_a_line_break_never_becomes_a_header(registry_front):
    def rule(asked: registries.Asked) -> None:
        if asked.path.startswith("/token"):
            asked.answer(200, {}, json.dumps({"token": "x\r\nEvil: 1"}).encode())
        else:
            realm = f"http://{registry_front.host}/token"
            asked.answer(401, {"WWW-Authenticate": f'Bearer realm="{realm}"'})

    registry_front.rule = rule
    with pytest.raises(InvalidImage) as refused:
        await read_manifest(registry_front.host)
    assert "is not a token" in refused.value.message


async def test_an_identity_token_is_exchanged_at_the_token_server(registry_front):
    def rule(asked: registries.Asked) -> None:
        if asked.path.startswith("/token"):
            asked.answer(200, {}, json.dumps({"access_token": "good"}).encode())
        elif asked.headers.get("Authorization") == "Bearer good":
            asked.pass_on()
        else:
            realm = f"http://{registry_front.host}/token"
            asked.answer(401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="s"'})

    registry_front.rule = rule
    async with open_registry(
        registry_front.host, Access(username="u", identity_token="refresh")
    ) as registry:
        await manifest_of(registry)
    posted = [one.body.decode() for one in registry_front.seen if one.path == "/token"]
    assert [parse_qs(one) for one in posted] == [
        {
            "service": ["s"],
            "scope": ["repository:team/app:pull"],
            "grant_type": ["refresh_token"],
            "client_id": ["sandkasten"],
            "refresh_token": ["refresh"],
        }
    ]


async def test_a_forbidden_image_names_the_registry_and_its_message(registry_front):
    body = json.dumps({"errors": [{"code": "DENIED", "message": "no\x1b[31m"}]}).encode()

    def rule(asked: registries.Asked) -> None:
        asked.pass_on() if asked.path == "/v2/" else asked.answer(403, {}, body)

    registry_front.rule = rule
    with pytest.raises(PolicyDenied) as refused:
        await read_manifest(registry_front.host)
    assert refused.value.message.endswith(r": 'no\x1b[31m'")


@pytest.mark.promise("P51")
async def test_no_log_line_contains_a_secret(token_registry, tls_registry, caplog):
    caplog.set_level(logging.DEBUG)
    async with open_registry(token_registry[0].host, LOGIN) as registry:
        await manifest_of(registry)
    access = Access(username=USER, password=PASSWORD, ca_file=tls_registry[1])
    async with open_registry(tls_registry[0].host, access) as registry:
        await manifest_of(registry)
    assert "manifests" in caplog.text
    assert PASSWORD not in caplog.text
    assert (LOGIN.basic() or "").split()[1] not in caplog.text
    assert "Bearer" not in caplog.text


@pytest.mark.parametrize(
    ("host", "is_it"),
    [
        ("localhost:5000", True),
        ("127.9.9.9", True),
        ("localhost.example", False),
        ("127.0.0.1.example:5000", False),
        ("h", False),
    ],
)
def test_only_real_loopback_addresses_count_as_loopback(host, is_it):
    assert loopback(host) is is_it
