"""Tokens of an identity provider on a daemon that was built from settings."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sandkasten.errors import InvalidConfiguration
from sandkasten.model.ids import host_label
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_server.api.request.jwt_rules import TokenRules
from sandkasten_server.daemon.daemon_assembly import open_daemon
from sandkasten_server.daemon.jwt_keys import MAX_BYTES, TokenKeys, jwks_keys, pem_keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

SECRET = "a shared secret of forty characters here".replace(" ", "-")
RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
NESTED = b"[" * 500_000
SIGNERS: dict[str, Any] = {"HS256": SECRET, "RS256": RSA, "ES256": EC, "EdDSA": ED}


def pem(*keys: Any) -> bytes:
    form = Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    return b"".join(key.public_key().public_bytes(*form) for key in keys)


def jwk(key: Any, kid: str) -> dict[str, Any]:
    kinds = {
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
        ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
    }
    kind: Any = next(kinds[one] for one in kinds if isinstance(key, one))
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid, "use": "sig"}


def claims(**changes: Any) -> dict[str, Any]:
    values = {
        "iss": "https://id.example",
        "aud": "sandkasten",
        "sub": "ada",
        "exp": int(time.time()) + 600,
        "tenant": "acme",
        "scope": "openid sessions files",
        **changes,
    }
    return {name: value for name, value in values.items() if value is not None}


def token(algorithm: str = "RS256", key: Any = None, kid: str | None = None, **changes: Any) -> str:
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims(**changes), key or SIGNERS[algorithm], algorithm, headers=headers)


class Asked:
    def __init__(self, session: aiohttp.ClientSession, base: str) -> None:
        self.session = session
        self.base = base

    async def get(self, path: str, bearer: str | None) -> tuple[int, Any]:
        headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
        async with self.session.get(self.base + path, headers=headers) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Asked]:
    """A daemon that accepts all four algorithms, from a secret and a PEM file."""
    (tmp_path / "keys.pem").write_bytes(pem(RSA, EC, ED))
    async with served(
        tmp_path, {"jwt.secret": SECRET, "jwt.key_file": str(tmp_path / "keys.pem")}
    ) as one:
        yield one


def served(tmp_path: Path, flags: dict[str, str]) -> Any:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def run() -> AsyncIterator[Asked]:
        settings = load(
            {
                "data_dir": str(tmp_path / "data"),
                "backend": "unisolated",
                "listen": "127.0.0.1:0",
                "jwt.issuer": "https://id.example",
                "jwt.audience": "sandkasten",
                **flags,
            },
            {},
            tmp_path,
        )
        async with open_daemon(settings) as daemon, aiohttp.ClientSession() as session:
            yield Asked(session, daemon.http.url)

    return run()


async def test_a_token_is_accepted_with_each_algorithm(asked: Asked) -> None:
    answers = {name: (await asked.get("/v1/sessions", token(name)))[0] for name in SIGNERS}
    assert set(answers.values()) == {200}, answers


async def test_tenant_and_scopes_come_from_the_claims(asked: Asked) -> None:
    status, body = await asked.get("/v1/keys", token())
    assert (status, body["code"]) == (403, "FORBIDDEN")
    assert (await asked.get("/v1/sessions", token(scope="metrics")))[0] == 403
    assert (await asked.get("/v1/sessions", token(scope=["sessions"])))[0] == 200
    assert (await asked.get("/v1/sessions", token(scope=None)))[0] == 200
    assert (await asked.get("/v1/keys", token(scope=None)))[0] == 403
    for space in ("\u00a0", "\u2003", "\t", "\n"):
        # RFC 6749: only a space separates two scopes.
        assert (await asked.get("/v1/keys", token(scope=f"sessions{space}admin")))[0] == 403
    assert (await asked.get("/v1/keys", token(scope="sessions  admin")))[0] == 200


async def test_a_session_belongs_to_the_tenant_of_the_token(asked: Asked) -> None:
    made = {"Authorization": f"Bearer {token()}"}
    async with asked.session.post(asked.base + "/v1/sessions", json={}, headers=made) as answer:
        assert answer.status == 201, await answer.text()
        session_id = (await answer.json())["id"]
    assert (await asked.get(f"/v1/sessions/{session_id}", token()))[0] == 200
    assert (await asked.get(f"/v1/sessions/{session_id}", token(tenant="other")))[0] == 404


async def test_a_quota_claim_is_enforced(asked: Asked) -> None:
    headers = {"Authorization": f"Bearer {token(quota={'max_sessions': 0})}"}
    async with asked.session.post(asked.base + "/v1/sessions", json={}, headers=headers) as answer:
        assert (answer.status, (await answer.json())["code"]) == (429, "QUOTA_EXCEEDED")


def unsigned() -> str:
    return jwt.encode(claims(), None, "none")  # type: ignore[arg-type]


def confused() -> str:
    """A token signed with the public key as if it were a shared secret."""

    def part(value: bytes) -> bytes:
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    head = part(b'{"alg":"HS256","typ":"JWT"}') + b"." + part(json.dumps(claims()).encode())
    mac = hmac.new(pem(RSA, EC, ED), head, hashlib.sha256).digest()
    return (head + b"." + part(mac)).decode()


def _claiming(claim: str, value: Any) -> Callable[[], str]:
    claims: dict[str, Any] = {claim: value}
    return lambda: token(**claims)


def _not_timestamps(claim: str) -> tuple[Any, ...]:
    return (
        str(int(time.time()) + (600 if claim == "exp" else -600)),
        True,
        float("nan"),
        float("inf"),
        -1,
        10**12,
        10**400,
        [],
        {},
    )


WRONG: dict[str, Callable[[], str]] = {
    "another key": lambda: token("RS256", OTHER_RSA),
    "another secret": lambda: token("HS256", "x" * 40),
    "no signature": unsigned,
    "a public key as a secret": confused,
    "expired": lambda: token(exp=int(time.time()) - 3600),
    "not valid yet": lambda: token(nbf=int(time.time()) + 3600),
    **{
        f"{claim} is {value!r}": _claiming(claim, value)
        for claim in ("exp", "nbf", "iat")
        for value in _not_timestamps(claim)
    },
    "no expiry": lambda: token(exp=None),
    "another issuer": lambda: token(iss="https://evil.example"),
    "no issuer": lambda: token(iss=None),
    "another audience": lambda: token(aud="other"),
    "no audience": lambda: token(aud=None),
    "no tenant": lambda: token(tenant=None),
    "an invalid tenant": lambda: token(tenant="../etc"),
    "a tenant that is a list": lambda: token(tenant=["acme"]),
    "an unknown quota": lambda: token(quota={"max_gold": 1}),
    "a quota that is a string": lambda: token(quota="all"),
    "scopes that are a number": lambda: token(scope=7),
    "three dots": lambda: "a.b.c",
    "too long": lambda: token(note="x" * 9000),
    "an empty subject": lambda: token(sub=""),
    "a subject of spaces": lambda: token(sub="  "),
    "padding": lambda: token() + "==",
    "RS512": lambda: token("RS512", RSA),
    "another curve": lambda: token("ES384", ec.generate_private_key(ec.SECP384R1())),
}


async def test_a_wrong_token_is_unauthorized(asked: Asked) -> None:
    answers = {name: await asked.get("/v1/sessions", make()) for name, make in WRONG.items()}
    codes = {name: (status, body["code"]) for name, (status, body) in answers.items()}
    assert codes == dict.fromkeys(WRONG, (401, "UNAUTHORIZED"))
    assert all(body["hint"] for _, body in answers.values())


async def test_with_tokens_loopback_needs_a_credential(asked: Asked) -> None:
    assert (await asked.get("/v1/sessions", None))[0] == 401


class Issuer:
    """An identity provider. It answers with `body`, and only while `answers` is set."""

    def __init__(self) -> None:
        self.url = ""
        self.reads = 0
        self.redirects = 0
        self._read = asyncio.Condition()
        self.answers = asyncio.Event()
        self.answers.set()
        self.publish(jwk(RSA, "one"))

    def publish(self, *keys: dict[str, Any]) -> None:
        self.body = json.dumps({"keys": keys}).encode()

    async def answer(self, _: web.Request) -> web.Response:
        async with self._read:
            self.reads += 1
            self._read.notify_all()
        await self.answers.wait()
        if self.redirects:
            self.redirects -= 1
            raise web.HTTPFound(self.url)
        return web.Response(body=self.body)

    async def was_read(self, times: int) -> None:
        async with asyncio.timeout(30), self._read:
            await self._read.wait_for(lambda: self.reads >= times)


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    one = Issuer()
    app = web.Application()
    app.router.add_get("/jwks", one.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    one.url = f"http://127.0.0.1:{runner.addresses[0][1]}/jwks"
    yield one
    one.answers.set()
    await runner.cleanup()


def keys_of(issuer: Issuer, tmp_path: Path, now: list[float], refresh_s: str = "300") -> TokenKeys:
    flags = {"jwt.issuer": "i", "jwt.audience": "a", "jwt.jwks_url": issuer.url}
    settings = load({**flags, "jwt.refresh_seconds": refresh_s}, {}, tmp_path).of(TokenRules)
    return TokenKeys(settings, lambda: now[0])


def kids(keys: TokenKeys) -> list[str | None]:
    return [one.kid for one in keys.current()]


async def test_a_rotated_key_of_a_url_is_found_at_once(issuer, tmp_path) -> None:
    now = [0.0]
    keys = keys_of(issuer, tmp_path, now)
    async with keys.refreshed_regularly():
        assert kids(keys) == ["one"]
        issuer.publish(jwk(EC, "two"))
        assert not await keys.refresh()  # it was read just now
        now[0] += 10
        assert await keys.refresh()
        assert [(one.kid, one.algorithm) for one in keys.current()] == [("two", "ES256")]
        issuer.body = b"{}"
        now[0] += 10
        assert not await keys.refresh()
        assert kids(keys) == ["two"]  # a failed read keeps what is known


async def test_an_unreadable_key_set_keeps_the_keys_and_the_regular_refresh(
    issuer, tmp_path, monkeypatch, caplog
) -> None:
    monkeypatch.setattr("sandkasten_server.daemon.jwt_keys._PAUSE_S", 0.0)
    keys = keys_of(issuer, tmp_path, [0.0], refresh_s="0.01")
    async with keys.refreshed_regularly():
        issuer.body = NESTED
        await issuer.was_read(issuer.reads + 3)
        assert kids(keys) == ["one"]
        assert "cannot be read" in caplog.text
        issuer.publish(jwk(EC, "two"))
        await issuer.was_read(issuer.reads + 3)
        assert kids(keys) == ["two"]


async def test_a_daemon_starts_and_refuses_tokens_while_the_key_set_is_unreadable(
    issuer, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("sandkasten_server.daemon.jwt_keys._PAUSE_S", 0.0)
    issuer.body = NESTED
    async with served(tmp_path, {"jwt.jwks_url": issuer.url}) as asked:
        assert (await asked.get("/v1/sessions", token(kid="one")))[0] == 401
        issuer.publish(jwk(RSA, "one"))
        assert (await asked.get("/v1/sessions", token(kid="one")))[0] == 200


async def test_a_key_set_is_read_from_its_own_url_only_and_bounded(issuer, tmp_path) -> None:
    """A redirect could lead to a server that the operator never named."""
    now = [0.0]
    keys = keys_of(issuer, tmp_path, now)
    async with keys.refreshed_regularly():
        issuer.publish(jwk(EC, "two"))
        whole = issuer.body
        issuer.body = whole[:-1] + b" " * MAX_BYTES + b"}"
        now[0] += 10
        assert not await keys.refresh()
        issuer.body, issuer.redirects = whole, 1
        now[0] += 10
        assert not await keys.refresh()
        assert (issuer.redirects, kids(keys)) == (0, ["one"])


async def test_refused_tokens_share_one_read_and_wait_for_no_second_one(issuer, tmp_path) -> None:
    now = [0.0]
    keys = keys_of(issuer, tmp_path, now)
    async with keys.refreshed_regularly():
        now[0] += 10
        issuer.answers.clear()
        issuer.publish(jwk(EC, "two"))
        waiting = [asyncio.create_task(keys.refresh()) for _ in range(4)]
        await issuer.was_read(2)
        now[0] += 10  # longer than the pause between two reads
        waiting[0].cancel()
        issuer.answers.set()
        assert await asyncio.gather(*waiting[1:]) == [True, True, True]
        assert not await keys.refresh()
        assert (issuer.reads, kids(keys)) == (2, ["two"])


async def test_only_so_many_tokens_wait_for_a_read(issuer, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("sandkasten_server.daemon.jwt_keys._MAX_WAITING", 1)
    now = [0.0]
    keys = keys_of(issuer, tmp_path, now)
    async with keys.refreshed_regularly():
        now[0] += 10
        issuer.answers.clear()
        waiting = asyncio.create_task(keys.refresh())
        await issuer.was_read(2)
        assert not await keys.refresh()
        issuer.answers.set()
        assert await waiting


async def test_a_token_that_no_key_can_make_valid_causes_no_read(
    issuer, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("sandkasten_server.daemon.jwt_keys._PAUSE_S", 0.0)
    async with served(tmp_path, {"jwt.jwks_url": issuer.url}) as asked:
        for name in ("expired", "another issuer", "another audience", "no expiry", "three dots"):
            assert (await asked.get("/v1/sessions", WRONG[name]()))[0] == 401
            assert issuer.reads == 1, name
        assert (await asked.get("/v1/sessions", WRONG["another key"]()))[0] == 401
        assert issuer.reads == 2


async def test_a_refused_token_makes_the_daemon_read_its_key_file_again(tmp_path, monkeypatch):
    monkeypatch.setattr("sandkasten_server.daemon.jwt_keys._PAUSE_S", 0.0)
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": [jwk(RSA, "one")]}))
    async with served(tmp_path, {"jwt.jwks_file": str(file)}) as asked:
        assert (await asked.get("/v1/sessions", token("EdDSA", kid="two")))[0] == 401
        file.write_text(json.dumps({"keys": [jwk(ED, "two")]}))
        assert (await asked.get("/v1/sessions", token("EdDSA", kid="two")))[0] == 200
        assert (await asked.get("/v1/sessions", token("RS256", kid="one")))[0] == 401


async def test_a_refused_token_for_a_preview_makes_the_daemon_read_its_key_file_again(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("sandkasten_server.daemon.jwt_keys._PAUSE_S", 0.0)
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": [jwk(RSA, "one")]}))
    async with served(tmp_path, {"jwt.jwks_file": str(file)}) as asked:
        key = {"Authorization": f"Bearer {token('RS256', kid='one')}"}
        async with asked.session.post(f"{asked.base}/v1/sessions", json={}, headers=key) as made:
            label = host_label((await made.json())["id"])
        file.write_text(json.dumps({"keys": [jwk(ED, "two")]}))
        key = {"Authorization": f"Bearer {token('EdDSA', kid='two')}"}
        host = {"Host": f"8000-{label}.localhost:{asked.base.rpartition(':')[2]}"}
        async with asked.session.get(asked.base, headers={**key, **host}) as answer:
            # The token is accepted, and nothing listens.
            assert answer.status == 502


def test_only_public_keys_for_signatures_of_a_key_set_are_used() -> None:
    others = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "a shared secret"},
        {**jwk(RSA, "for encryption"), "use": "enc"},
        {**jwk(EC, "another algorithm"), "alg": "ES512"},
    ]
    found = jwks_keys(json.dumps({"keys": [*others, jwk(ED, "e")]}).encode())
    assert [one.kid for one in found] == ["e"]


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"keys":[]}', b'{"keys":[1]}', b"[]", b"\xff", NESTED]
)
def test_a_useless_key_set_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"[Kk]ey|Expecting|decode|nested"):
        jwks_keys(data)


def test_a_weak_key_is_refused() -> None:
    with pytest.raises(ValueError, match="2048"):
        pem_keys(pem(rsa.generate_private_key(65537, 1024)))


@pytest.mark.parametrize(
    "flags",
    [
        {"jwt.issuer": "i"},
        {"jwt.issuer": "i", "jwt.audience": "a"},
        {"jwt.secret": SECRET},
        {"jwt.issuer": "i", "jwt.audience": "a", "jwt.secret": "tooshort"},
        {"jwt.issuer": "i", "jwt.audience": "a", "jwt.jwks_url": "http://id.example/jwks"},
    ],
)
def test_settings_that_cannot_verify_safely_are_refused(flags, tmp_path) -> None:
    with pytest.raises(InvalidConfiguration):
        load(flags, {}, tmp_path)


@pytest.mark.parametrize("length", [1, 8, 31, 513])
@pytest.mark.parametrize("others", [{}, {"jwt.issuer": "i", "jwt.audience": "a"}])
def test_a_secret_has_one_length_and_one_message(length, others, tmp_path) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        load({**others, "jwt.secret": "x" * length}, {}, tmp_path)
    assert refused.value.message.endswith("must be 32 to 512 ASCII characters")
    assert refused.value.hint == "make one: openssl rand -hex 32"


async def test_a_missing_key_file_fails_at_the_start(tmp_path) -> None:
    with pytest.raises(InvalidConfiguration, match="cannot be read"):
        async with served(tmp_path, {"jwt.key_file": str(tmp_path / "none.pem")}):
            pass
