"""The registry client against docker-registry: TLS, logins, tokens, and connections that break."""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pytest

from sandkasten.errors import (
    Cancelled,
    InvalidConfiguration,
    InvalidImage,
    InvalidRequest,
    PolicyDenied,
    RegistryUnavailable,
    Unauthorized,
)
from sandkasten.images.auth import Access, Keyring
from sandkasten.images.connections import Errand, Patience, loopback, proxy_for
from sandkasten.images.manifests import (
    DOCKER_LIST,
    Descriptor,
    Index,
    Manifest,
    read_manifest,
)
from sandkasten.images.reference import (
    Platform,
    Reference,
    best,
    parse_platform,
    parse_reference,
    this_platform,
)
from sandkasten.images.registry import Registry
from sandkasten.images.tokens import Challenge, parse_challenge
from tests.images import registries
from tests.images.registries import PASSWORD, USER, Front, Running

if TYPE_CHECKING:
    from collections.abc import Iterator

# Three attempts a few milliseconds apart: what is waited for here never comes.
QUICK = Patience(attempts=3, first_pause_s=0.01, connect_s=5, silence_s=5, whole_s=60)
BIG = os.urandom(3_000_000)
MADE = registries.image(registries.layer({"hello": b"hi", "big": BIG}))
LOGIN = Access(username=USER, password=PASSWORD)
BASIC = {"Authorization": LOGIN.basic() or ""}


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Iterator[Running]:
    with registries.docker_registry(tmp_path_factory.mktemp("plain")) as running:
        registries.push(running.base, "team/app", "1", MADE)
        yield running


@pytest.fixture
def before(plain) -> Iterator[Front]:
    with registries.front(plain) as standing:
        yield standing


def at(host: str, rest: str = "team/app:1") -> Reference:
    return parse_reference(f"{host}/{rest}")


def open_registry(host: str, access: Access | None = None, **more) -> Registry:
    errand = more.pop("errand", None) or Errand(QUICK)
    rest = more.pop("rest", "team/app:1")
    return Registry(at(host, rest), access or Access(), errand, environ={})


def manifest_of(registry: Registry, wanted: str = "1") -> Manifest:
    found, _ = registry.manifest(wanted)
    assert isinstance(found, Manifest)
    return found


# ---- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "registry", "repository", "tag", "familiar"),
    [
        ("python", "docker.io", "library/python", "latest", "python:latest"),
        ("python:3.11-slim", "docker.io", "library/python", "3.11-slim", "python:3.11-slim"),
        ("docker.io/library/python:3", "docker.io", "library/python", "3", "python:3"),
        ("registry-1.docker.io/a/b", "docker.io", "a/b", "latest", "a/b:latest"),
        ("a/b", "docker.io", "a/b", "latest", "a/b:latest"),
        ("localhost/a", "localhost", "a", "latest", "localhost/a:latest"),
        ("h.example/a/b:t", "h.example", "a/b", "t", "h.example/a/b:t"),
        ("h:5000/a", "h:5000", "a", "latest", "h:5000/a:latest"),
    ],
)
def test_a_name_points_at_one_repository_of_one_registry(name, registry, repository, tag, familiar):
    found = parse_reference(name)
    assert found == Reference(registry, repository, tag, None)
    assert found.familiar == familiar
    assert parse_reference(found.full) == found


def test_a_digest_is_what_is_asked_for_even_beside_a_tag():
    digest = "sha256:" + "a" * 64
    assert parse_reference(f"python@{digest}") == Reference(
        "docker.io", "library/python", None, digest
    )
    both = parse_reference(f"h:5000/a:t@{digest}")
    assert (both.tag, both.wanted, both.familiar) == ("t", digest, f"h:5000/a:t@{digest}")


def test_the_hub_is_asked_at_the_host_that_speaks_the_protocol():
    assert parse_reference("python").api_host == "registry-1.docker.io"
    assert parse_reference("h:5000/a").api_host == "h:5000"


@pytest.mark.parametrize(
    "name", ["host", "--privileged", "../x", "x" * 10_000, "h:99999/a", "A/b "]
)
def test_a_name_that_can_come_from_no_registry_is_refused(name):
    with pytest.raises(InvalidImage):
        parse_reference(name)


# ---- platforms ---------------------------------------------------------------------------------


def test_this_machine_is_a_platform_images_know():
    assert this_platform("x86_64") == Platform("linux", "amd64")
    assert this_platform("aarch64") == Platform("linux", "arm64", "v8")
    assert this_platform("riscv64") == Platform("linux", "riscv64")


@pytest.mark.parametrize("text", ["", "linux", "linux/", "linux/amd64/v8/x", "a b/c", "x/" * 99])
def test_a_text_that_is_no_platform_is_refused(text):
    with pytest.raises(InvalidRequest) as refused:
        parse_platform(text)
    assert "linux/amd64" in refused.value.hint


@pytest.mark.parametrize(
    ("wanted", "offered", "chosen"),
    [
        ("linux/amd64", ["linux/arm64/v8", "linux/amd64"], 1),
        ("linux/x86_64", ["linux/amd64"], 0),
        ("linux/arm64", ["linux/arm64/v8"], 0),
        ("linux/arm64/v8", ["linux/arm64"], 0),
        ("linux/amd64", ["linux/amd64/v3", "linux/amd64"], 1),
        ("linux/amd64", ["linux/amd64/v3"], None),
        ("linux/amd64/v3", ["linux/amd64", "linux/amd64/v2", "linux/amd64/v4"], 0),
        ("linux/arm/v7", ["linux/arm/v5", "linux/arm/v6", "linux/arm64/v8"], 1),
        ("linux/arm/v6", ["linux/arm/v7"], None),
        ("linux/amd64", ["windows/amd64"], None),
    ],
)
def test_the_best_platform_on_offer_is_chosen_and_never_a_newer_one(wanted, offered, chosen):
    assert best(parse_platform(wanted), [_plain(one) for one in offered]) == chosen


def _plain(text: str) -> Platform:
    os_, architecture, *variant = text.split("/")
    return Platform(os_, architecture, *variant)


# ---- manifests ---------------------------------------------------------------------------------


def test_an_image_for_no_platform_of_ours_says_which_it_has():
    data, kind = registries.index({"linux/arm64/v8": MADE, "linux/s390x": MADE})
    found = read_manifest(data, kind, "app")
    assert isinstance(found, Index)
    with pytest.raises(InvalidImage) as refused:
        found.choose(parse_platform("linux/amd64"), "app")
    assert refused.value.message == "image app is not made for linux/amd64"
    assert refused.value.hint == "it is made for: linux/arm64/v8, linux/s390x"


def test_attestations_in_an_index_are_no_images():
    data, kind = registries.index({"unknown/unknown": MADE, "linux/amd64": MADE})
    found = read_manifest(data, kind, "app")
    assert isinstance(found, Index)
    assert [str(platform) for platform, _ in found.entries] == ["linux/amd64"]


def test_a_schema_1_manifest_is_refused_by_name():
    data = json.dumps({"schemaVersion": 1, "name": "app", "fsLayers": []}).encode()
    with pytest.raises(InvalidImage) as refused:
        read_manifest(data, "application/vnd.docker.distribution.manifest.v1+prettyjws", "app")
    assert "schema 1" in refused.value.message


def _damaged(**changes) -> bytes:
    return json.dumps({**json.loads(MADE.manifest), **changes}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        b"{}",
        _damaged(config=None),
        _damaged(layers="x"),
        _damaged(layers=[{"mediaType": "x", "digest": "sha256:" + "0" * 64, "size": 1}]),
        _damaged(layers=[{**json.loads(MADE.manifest)["layers"][0], "size": -1}]),
        _damaged(layers=[{**json.loads(MADE.manifest)["layers"][0], "size": True}]),
        _damaged(layers=[{**json.loads(MADE.manifest)["layers"][0], "digest": "md5:00"}]),
        _damaged(layers=[{**json.loads(MADE.manifest)["layers"][0], "digest": "sha256:../x"}]),
        _damaged(layers=json.loads(MADE.manifest)["layers"] * 1000),
        _damaged(mediaType=DOCKER_LIST),
        _damaged(manifests=[]),
        _damaged(
            config={
                "mediaType": "application/vnd.cncf.helm.config.v1+json",
                "digest": "sha256:" + "0" * 64,
                "size": 2,
            }
        ),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(data):
    with pytest.raises(InvalidImage) as refused:
        read_manifest(data, MADE.media_type, "app")
    assert len(refused.value.message) < 300


# ---- credentials -------------------------------------------------------------------------------


def _docker_file(tmp_path, tree) -> dict[str, str]:
    (tmp_path / "config.json").write_text(json.dumps(tree))
    return {"DOCKER_CONFIG": str(tmp_path)}


def _packed(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_settings_win_over_the_environment_and_that_over_dockers_file(tmp_path):
    environ = _docker_file(tmp_path, {"auths": {"h:1": {"auth": _packed("file:f")}}})
    assert Keyring(environ=environ).access("h:1") == Access(username="file", password="f")
    environ["DOCKER_AUTH_CONFIG"] = json.dumps({"auths": {"h:1": {"auth": _packed("env:e")}}})
    assert Keyring(environ=environ).access("h:1") == Access(username="env", password="e")
    said = Access(username="set", password="s")
    assert Keyring({"h:1": said}, environ=environ).access("h:1") == said


def test_credentials_are_for_exactly_the_host_they_were_written_for(tmp_path):
    environ = _docker_file(
        tmp_path,
        {
            "auths": {
                "https://h:1/v2/": {"auth": _packed("u:p")},
                "other/namespace": {"auth": _packed("n:p")},
            }
        },
    )
    keyring = Keyring({"set": Access(username="s", password="p")}, environ=environ)
    assert keyring.access("h:1").username == "u"
    for stranger in ("h", "h:2", "other", "x.h:1", "h:1.example", "docker.io", "set:1"):
        assert keyring.access(stranger) == Access()


def test_the_hub_has_another_name_in_dockers_file(tmp_path):
    environ = _docker_file(
        tmp_path, {"auths": {"https://index.docker.io/v1/": {"auth": _packed("u:p:q")}}}
    )
    assert Keyring(environ=environ).access("docker.io") == Access(username="u", password="p:q")


def test_transport_settings_stay_when_the_login_comes_from_dockers_file(tmp_path):
    environ = _docker_file(
        tmp_path, {"auths": {"h": {"identitytoken": "t", "auth": _packed("u:")}}}
    )
    keyring = Keyring({"h": Access(ca_file="/ca", insecure=True)}, environ=environ)
    assert keyring.access("h") == Access(
        username="u", identity_token="t", ca_file="/ca", insecure=True
    )


def test_a_password_file_is_read_without_its_newline_and_only_when_needed(tmp_path):
    file = tmp_path / "password"
    keyring = Keyring({"h": Access(username="u", password_file=str(file))}, environ={})
    with pytest.raises(InvalidConfiguration):
        keyring.access("h")
    file.write_text("secret\n")
    assert keyring.access("h").password == "secret"
    file.write_text("two\nlines\n")
    with pytest.raises(InvalidConfiguration) as refused:
        keyring.access("h")
    assert "two" not in str(refused.value)


@pytest.mark.parametrize(
    "tree",
    ["[]", "{", '{"auths": {"h": {"auth": "%%%"}}}', '{"auths": {"h": {"auth": "dQ=="}}}'],
)
def test_a_malformed_docker_file_is_named_and_nothing_of_it_is_shown(tmp_path, tree):
    (tmp_path / "config.json").write_text(tree)
    with pytest.raises(InvalidConfiguration) as refused:
        Keyring(environ={"DOCKER_CONFIG": str(tmp_path)}).access("h")
    assert "%%%" not in str(refused.value)


def test_no_secret_is_part_of_a_repr():
    access = Access(username="u", password="p4ss", token="t0ken", identity_token="id3ntity")
    assert not {"p4ss", "t0ken", "id3ntity"} & set(str(access).split("'"))
    assert "u" in str(access)


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        (
            'Bearer realm="https://a/t?x=1",service="s",scope="repository:a/b:pull,push"',
            Challenge("bearer", "https://a/t?x=1", "s", "repository:a/b:pull,push"),
        ),
        ("Basic realm=x", Challenge("basic", "x")),
        ('bearer realm="a\\"b" , service=s', Challenge("bearer", 'a"b', "s")),
        ("", Challenge("")),
        ("Negotiate", Challenge("negotiate")),
        ('Bearer realm="' + "x" * 100_000, Challenge("bearer")),
    ],
)
def test_a_challenge_is_read_whatever_it_looks_like(header, challenge):
    assert parse_challenge(header) == challenge


# ---- the wire ----------------------------------------------------------------------------------


def test_an_image_is_read_from_a_plain_registry_on_loopback(plain):
    with open_registry(plain.host) as registry:
        found = manifest_of(registry)
        assert registry.manifest(MADE.digest) == registry.manifest("1") == (found, MADE.digest)
        assert [one.digest for one in found.layers] == MADE.layers
        assert registry.blob(found.config).readall() == MADE.blobs[found.config.digest]
        assert registry.blob(found.layers[0]).readall() == MADE.blobs[MADE.layers[0]]


def test_what_is_not_there_is_an_invalid_image(plain):
    with open_registry(plain.host) as registry:
        with pytest.raises(InvalidImage) as missing:
            registry.manifest("2")
        assert f"{plain.host} has no team/app:2" in missing.value.message
        with pytest.raises(InvalidImage):
            registry.blob(Descriptor("x", "sha256:" + "0" * 64, 10)).read()


def test_a_registry_that_is_down_is_unavailable_and_worth_another_try():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        host = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(RegistryUnavailable) as down, open_registry(host):
            pass
    assert down.value.retryable
    assert host in down.value.message
    assert "Connection refused" in down.value.message


def test_a_name_nobody_knows_is_unavailable():
    with pytest.raises(RegistryUnavailable), open_registry("nowhere.invalid"):
        pass


@pytest.fixture(scope="module")
def secure(tmp_path_factory) -> Iterator[tuple[Running, str]]:
    """TLS by an authority of its own, and a login."""
    folder = tmp_path_factory.mktemp("secure")
    cert, key = registries.certificate(folder)
    (folder / "htpasswd").write_text(registries.HTPASSWD)
    auth = {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}
    with registries.docker_registry(folder, tls=(cert, key), auth=auth) as running:
        registries.push(running.base, "team/app", "1", MADE, headers=BASIC, ca_file=str(cert))
        yield running, str(cert)


def test_a_certificate_of_the_named_authority_is_trusted(secure):
    running, ca_file = secure
    access = Access(username=USER, password=PASSWORD, ca_file=ca_file)
    with open_registry(running.host, access) as registry:
        found = manifest_of(registry)
        assert registry.blob(found.layers[0]).readall() == MADE.blobs[MADE.layers[0]]


@pytest.mark.parametrize("insecure", [False, True])
def test_a_certificate_of_no_known_authority_is_refused_and_never_answered_in_the_open(
    secure, insecure
):
    running, _ = secure
    access = Access(username=USER, password=PASSWORD, insecure=insecure)
    with pytest.raises(RegistryUnavailable) as refused, open_registry(running.host, access):
        pass
    assert "is not trusted" in refused.value.message
    assert refused.value.hint.endswith(".ca_file")


def test_a_ca_file_that_is_none_is_a_matter_of_configuration(secure, tmp_path):
    running, _ = secure
    for content in (None, "no certificate"):
        if content:
            (tmp_path / "ca").write_text(content)
        with pytest.raises(InvalidConfiguration):
            open_registry(running.host, Access(ca_file=str(tmp_path / "ca")))


def test_plain_http_is_not_spoken_where_a_certificate_is_expected(plain, secure):
    with pytest.raises(RegistryUnavailable) as refused:
        open_registry(plain.host, Access(ca_file=secure[1])).__enter__()
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
def test_a_refused_login_says_what_to_set(secure, login, hint):
    running, ca_file = secure
    with (
        open_registry(running.host, Access(ca_file=ca_file, **login)) as registry,
        pytest.raises(Unauthorized) as refused,
    ):
        registry.manifest("1")
    assert hint in refused.value.hint
    assert "wrong" not in str(refused.value)


@pytest.fixture(scope="module")
def tokened(tmp_path_factory) -> Iterator[tuple[Running, registries.TokenServer]]:
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
    import urllib3

    with urllib3.PoolManager() as pool:
        answer = pool.request(
            "GET", realm, fields={"service": "the registry", "scope": scope}, headers=BASIC
        )
        return {"Authorization": f"Bearer {answer.json()['token']}"}


def test_a_token_is_fetched_once_with_the_credentials_and_used_for_everything(tokened):
    running, server = tokened
    server.asked.clear()
    with open_registry(running.host, LOGIN) as registry:
        found = manifest_of(registry)
        assert registry.blob(found.config).readall() == MADE.blobs[found.config.digest]
        assert registry.blob(found.layers[0]).readall() == MADE.blobs[MADE.layers[0]]
    assert server.asked == [("repository:team/app:pull", LOGIN.basic())]


def test_what_is_public_is_had_with_a_token_for_nobody(tokened):
    running, server = tokened
    server.asked.clear()
    with open_registry(running.host, rest="public/app:1") as registry:
        manifest_of(registry)
    assert server.asked == [("repository:public/app:pull", None)]


def test_a_token_that_does_not_reach_is_unauthorized(tokened):
    running, _ = tokened
    with open_registry(running.host) as registry, pytest.raises(Unauthorized):
        registry.manifest("1")
    wrong = Access(username=USER, password="wrong")
    with open_registry(running.host, wrong) as registry, pytest.raises(Unauthorized):
        registry.manifest("1")


def test_a_token_of_the_operators_own_is_sent_as_it_is(tokened):
    running, server = tokened
    token = _bearer(server.realm, "repository:team/app:pull")["Authorization"].split()[1]
    server.asked.clear()
    with open_registry(running.host, Access(token=token)) as registry:
        manifest_of(registry)
    assert server.asked == []


def test_a_blob_elsewhere_is_fetched_without_telling_who_we_are(secure, plain, before):
    """A redirect to another origin drops the login; one to the same origin keeps it."""
    heard: list[str | None] = []

    def elsewhere(asked: registries.Asked) -> None:
        heard.append(asked.headers.get("Authorization"))
        asked.pass_on()

    with registries.front(plain) as store:
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

        before.rule = redirect
        with open_registry(before.host, LOGIN) as registry:
            found = manifest_of(registry)
            assert registry.blob(found.layers[0]).readall() == MADE.blobs[MADE.layers[0]]
    assert heard == [None]
    again = [one for one in before.seen if one.path.endswith("again")]
    assert [one.headers.get("Authorization") for one in again] == [LOGIN.basic()]


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://h/x", "gopher://h"])
def test_a_redirect_to_something_else_than_the_web_is_not_followed(before, target):
    before.rule = lambda asked: asked.answer(302, {"Location": target})
    with pytest.raises(InvalidImage) as refused, open_registry(before.host):
        pass
    assert "is not followed" in refused.value.message


def test_a_circle_of_redirects_ends(before):
    before.rule = lambda asked: asked.answer(302, {"Location": asked.path})
    with pytest.raises(InvalidImage) as refused, open_registry(before.host):
        pass
    assert "redirected more than 5 times" in refused.value.message


@pytest.mark.parametrize(
    "realm", ["http://tokens.example/t", "file:///t", "https://u:p@h/t", "/t", "http://10.1.2.3/"]
)
def test_credentials_are_not_sent_to_a_token_server_in_the_open(before, realm):
    challenge = {"WWW-Authenticate": f'Bearer realm="{realm}",service="x"'}
    before.rule = lambda asked: asked.answer(401, challenge)
    with open_registry(before.host, LOGIN) as registry, pytest.raises(Unauthorized) as refused:
        registry.manifest("1")
    assert "is not safe" in refused.value.message


def test_a_token_with_a_line_break_never_becomes_a_header(before):
    def rule(asked: registries.Asked) -> None:
        if asked.path.startswith("/token"):
            asked.answer(200, {}, json.dumps({"token": "x\r\nEvil: 1"}).encode())
        else:
            realm = f"http://{before.host}/token"
            asked.answer(401, {"WWW-Authenticate": f'Bearer realm="{realm}"'})

    before.rule = rule
    with open_registry(before.host) as registry, pytest.raises(InvalidImage) as refused:
        registry.manifest("1")
    assert "is not a token" in refused.value.message


def test_an_identity_token_is_exchanged_at_the_token_server(before):
    def rule(asked: registries.Asked) -> None:
        if asked.path.startswith("/token"):
            asked.answer(200, {}, json.dumps({"access_token": "good"}).encode())
        elif asked.headers.get("Authorization") == "Bearer good":
            asked.pass_on()
        else:
            realm = f"http://{before.host}/token"
            asked.answer(401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="s"'})

    before.rule = rule
    with open_registry(before.host, Access(username="u", identity_token="refresh")) as registry:
        manifest_of(registry)
    posted = [one.body.decode() for one in before.seen if one.path == "/token"]
    assert [parse_qs(one) for one in posted] == [
        {
            "service": ["s"],
            "scope": ["repository:team/app:pull"],
            "grant_type": ["refresh_token"],
            "client_id": ["sandkasten"],
            "refresh_token": ["refresh"],
        }
    ]


def test_a_forbidden_image_names_the_registry_and_what_it_said(before):
    body = json.dumps({"errors": [{"code": "DENIED", "message": "no\x1b[31m"}]}).encode()

    def rule(asked: registries.Asked) -> None:
        asked.pass_on() if asked.path == "/v2/" else asked.answer(403, {}, body)

    before.rule = rule
    with open_registry(before.host) as registry, pytest.raises(PolicyDenied) as refused:
        registry.manifest("1")
    assert refused.value.message.endswith(r": 'no\x1b[31m'")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_overloaded_registry_is_asked_again(before, status):
    refusals = [status, status]

    def rule(asked: registries.Asked) -> None:
        if "/manifests/" in asked.path and refusals:
            asked.answer(refusals.pop(), {"Retry-After": "0"}, b"later")
        else:
            asked.pass_on()

    before.rule = rule
    with open_registry(before.host) as registry:
        manifest_of(registry)
    assert len(before.paths("/manifests/")) == 3


def test_a_registry_that_stays_overloaded_is_unavailable(before):
    before.rule = lambda asked: (
        asked.pass_on() if asked.path == "/v2/" else asked.answer(503, {}, b"")
    )
    with open_registry(before.host) as registry, pytest.raises(RegistryUnavailable) as refused:
        registry.manifest("1")
    assert "answered 503" in refused.value.message
    assert len(before.paths("/manifests/")) == QUICK.attempts


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on_where_it_broke(before, ranges):
    size = len(MADE.blobs[MADE.layers[0]])
    before.rule = lambda asked: asked.pass_on(
        at_most=None if "/blobs/" not in asked.path else size // 3 + 1, ranges=ranges
    )
    if not ranges:
        # Without ranges every attempt starts over, so each must come further.
        lengths = iter([size // 3, size // 2, size])
        before.rule = lambda asked: asked.pass_on(
            at_most=next(lengths) if "/blobs/" in asked.path else None, ranges=False
        )
    with open_registry(before.host) as registry:
        blob = manifest_of(registry).layers[0]
        assert registry.blob(blob).readall() == MADE.blobs[blob.digest]
    begun = [one.headers.get("Range") for one in before.seen if "/blobs/" in one.path]
    assert len(begun) == 3
    assert begun[0] is None
    assert all(one is not None and one.startswith("bytes=") for one in begun[1:])


def test_a_download_that_breaks_without_getting_further_is_given_up(before):
    before.rule = lambda asked: asked.pass_on(at_most=0 if "/blobs/" in asked.path else None)
    with open_registry(before.host) as registry:
        blob = manifest_of(registry).layers[0]
        with pytest.raises(RegistryUnavailable) as refused:
            registry.blob(blob).readall()
    assert "broke off at byte 0" in refused.value.message
    assert len(before.paths("/blobs/")) == QUICK.attempts


def test_a_manifest_that_is_not_what_its_digest_says_is_refused(before):
    before.rule = lambda asked: (
        asked.pass_on()
        if asked.path == "/v2/"
        else asked.answer(200, {"Content-Type": MADE.media_type}, MADE.manifest + b" ")
    )
    with open_registry(before.host) as registry:
        with pytest.raises(InvalidImage) as refused:
            registry.manifest(MADE.digest)
        assert f"not {MADE.digest}" in refused.value.message
        # By a tag, and without a word about its digest, there is nothing to compare it with.
        assert isinstance(registry.manifest("1")[0], Manifest)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda blob: blob[:-1] + bytes([blob[-1] ^ 1]), "has digest"),
        (lambda blob: blob + b"x", "another size"),
        (lambda blob: blob[:-1], "another size"),
    ],
)
def test_a_blob_that_is_not_what_its_digest_says_is_refused_at_its_end(before, damage, said):
    def rule(asked: registries.Asked) -> None:
        if "/blobs/" in asked.path:
            asked.answer(200, {}, damage(MADE.blobs[asked.path.rpartition("/")[2]]))
        else:
            asked.pass_on()

    before.rule = rule
    with open_registry(before.host) as registry:
        blob = manifest_of(registry).layers[0]
        with pytest.raises(InvalidImage) as refused:
            registry.blob(blob).readall()
    assert said in refused.value.message


def test_a_blob_without_an_end_is_cut_at_its_size(before):
    def rule(asked: registries.Asked) -> None:
        if "/blobs/" in asked.path:
            body = MADE.blobs[asked.path.rpartition("/")[2]] * 2
            packed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
            asked.answer(200, {"Transfer-Encoding": "chunked", "Content-Length": None}, packed)
        else:
            asked.pass_on()

    before.rule = rule
    with open_registry(before.host) as registry:
        blob = manifest_of(registry).layers[0]
        stream = registry.blob(blob)
        with pytest.raises(InvalidImage) as refused:
            stream.readall()
    assert "more came than" in refused.value.message
    assert stream.got <= blob.size


def test_a_pull_that_is_called_off_stops_within_a_chunk(before):
    errand = Errand(QUICK)
    with open_registry(before.host, errand=errand) as registry:
        stream = registry.blob(manifest_of(registry).layers[0])
        assert stream.read(10)
        errand.called_off.set()
        with pytest.raises(Cancelled):
            stream.read(10)
        stream.close()


def test_a_whole_pull_has_a_deadline(before):
    def slow(asked: registries.Asked) -> None:
        time.sleep(0.3)
        asked.pass_on()

    before.rule = slow
    errand = Errand(Patience(attempts=99, first_pause_s=0.01, silence_s=0.1, whole_s=0.5))
    began = time.monotonic()
    with pytest.raises(RegistryUnavailable) as late, open_registry(before.host, errand=errand):
        pass
    assert "within 0.5 s" in late.value.message
    assert time.monotonic() - began < 5


class Dripping(BaseHTTPRequestHandler):
    """A byte now and then, which no timeout of a socket ever notices."""

    part = "body"

    def do_GET(self) -> None:
        if self.path == "/v2/":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            return
        if self.path.startswith("/token") or self.part != "token":
            length = "" if self.part == "endless" else "Content-Length: 4000000\r\n"
            end = "X: " if self.part == "headers" else "\r\n"
            self.wfile.write(f"HTTP/1.1 200 OK\r\n{length}{end}".encode())
            # Much longer than any of these tests, and yet an end.
            for _ in range(200):
                self.wfile.write(b" ")
                time.sleep(0.1)
            return
        realm = f"http://{self.headers['Host']}/token"
        self.wfile.write(
            f'HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm="{realm}"\r\n'
            "Content-Length: 0\r\n\r\n".encode()
        )

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize("part", ["headers", "body", "endless", "token"])
def test_a_registry_that_drips_does_not_outlive_the_deadline(part):
    handler = type("Handler", (Dripping,), {"part": part})
    errand = Errand(replace(QUICK, whole_s=1.0))
    began = time.monotonic()
    with (
        registries.served(handler) as port,
        pytest.raises(RegistryUnavailable) as late,
        open_registry(f"127.0.0.1:{port}", errand=errand) as registry,
    ):
        manifest_of(registry)
    assert "within 1 s" in late.value.message
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("part", ["headers", "body", "endless", "token"])
def test_a_pull_from_a_registry_that_drips_can_be_called_off(part):
    handler = type("Handler", (Dripping,), {"part": part})
    errand = Errand(QUICK)
    threading.Timer(0.5, errand.called_off.set).start()
    began = time.monotonic()
    with (
        registries.served(handler) as port,
        pytest.raises(Cancelled),
        open_registry(f"127.0.0.1:{port}", errand=errand) as registry,
    ):
        manifest_of(registry)
    assert time.monotonic() - began < 5


def test_a_token_server_that_breaks_off_is_named():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/token"):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
                return
            realm = f"http://{self.headers['Host']}/token"
            self.wfile.write(
                f'HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm="{realm}"\r\n'
                "Content-Length: 0\r\n\r\n".encode()
            )

        def log_message(self, format: str, *args: object) -> None:
            pass

    with (
        registries.served(Handler) as port,
        pytest.raises(RegistryUnavailable) as broken,
        open_registry(f"127.0.0.1:{port}") as registry,
    ):
        manifest_of(registry)
    assert "broke off" in broken.value.message


def test_nothing_that_is_logged_holds_a_secret(tokened, secure, caplog):
    caplog.set_level(logging.DEBUG)
    with open_registry(tokened[0].host, LOGIN) as registry:
        manifest_of(registry)
    access = Access(username=USER, password=PASSWORD, ca_file=secure[1])
    with open_registry(secure[0].host, access) as registry:
        manifest_of(registry)
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
def test_loopback_is_this_machine_and_nothing_that_only_looks_like_it(host, is_it):
    assert loopback(host) is is_it


def test_a_proxy_is_used_where_the_environment_says_and_never_for_loopback():
    environ = {"https_proxy": "http://p:3128", "NO_PROXY": "inside.example"}
    assert proxy_for("https://h/v2/", environ) == "http://p:3128"
    assert proxy_for("http://h/v2/", environ) is None
    assert proxy_for("https://inside.example/v2/", environ) is None
    assert proxy_for("https://localhost:5000/v2/", environ) is None
