"""Keys that verify tokens: a shared secret, a PEM file, or a key set in a file or at a URL.

Keys are read when the daemon starts, every `refresh_s`, and when a token comes that none of them
verifies, at most every few seconds. A failed read keeps the keys that are known and is logged. A
symmetric key in a key set is ignored, because key sets are public.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import jwt

from sandkasten.errors import InvalidConfiguration
from sandkasten.model.proxies import proxies_in, proxy_arguments
from sandkasten_server.api.request.jwt_verifier import TokenKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from sandkasten_server.api.request.jwt_rules import TokenRules

MAX_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 10.0
# Between two reads that tokens cause: an attacker's tokens must not become our requests.
_PAUSE_S: Final = 5.0
# Each holds a request open until the read has ended.
_MAX_WAITING: Final = 100
_log = logging.getLogger("sandkasten.jwt")


class TokenKeys:
    """The keys of one daemon. `clock` is monotonic."""

    def __init__(self, settings: TokenRules, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._keys: tuple[TokenKey, ...] = ()
        self._read_at: float | None = None
        self._reading: asyncio.Task[bool] | None = None
        self._waiting = 0

    def current(self) -> Sequence[TokenKey]:
        return self._keys

    async def refresh(self) -> bool:
        """Read the keys again, or wait for the read that is under way; return whether it worked.

        False also if a read has just ended, or if too many callers wait for one.
        """
        if self._reading is None:
            if self._read_at is not None and self._clock() - self._read_at < _PAUSE_S:
                return False
            self._reading = asyncio.create_task(self._reread())
        if self._waiting >= _MAX_WAITING:
            return False
        self._waiting += 1
        try:
            # A client that leaves must not end the read that others wait for.
            return await asyncio.shield(self._reading)
        finally:
            self._waiting -= 1

    async def _reread(self) -> bool:
        try:
            self._keys = await self._read()
        except (OSError, ValueError, TimeoutError, InvalidConfiguration) as exc:
            _log.warning("the keys of tokens cannot be read: %s", exc)
            return False
        finally:
            # At the end, so that a slow read is not followed by another at once.
            self._read_at = self._clock()
            self._reading = None
        return True

    @asynccontextmanager
    async def refreshed_regularly(self) -> AsyncIterator[None]:
        """Read the keys now, and again while the block runs. A bad file fails at once."""
        try:
            self._keys = await self._read()
        except (OSError, ValueError, TimeoutError) as exc:
            if self._settings.jwks_url is None:
                raise InvalidConfiguration(
                    f"the keys of tokens cannot be read: {exc}",
                    hint="check the file that jwt.key_file or jwt.jwks_file names",
                    setting="jwt.jwks_file",
                ) from exc
            _log.warning("%s cannot be read: %s", self._settings.jwks_url, exc)
        self._read_at = self._clock()
        task = asyncio.create_task(self._refresh_forever())
        try:
            yield
        finally:
            tasks = [task] if self._reading is None else [task, self._reading]
            for running in tasks:
                running.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.refresh_s)
            await self.refresh()

    async def _read(self) -> tuple[TokenKey, ...]:
        settings = self._settings
        keys: list[TokenKey] = []
        if settings.shared_secret is not None:
            keys.append(TokenKey("HS256", settings.shared_secret.encode()))
        if settings.key_file is not None:
            keys += pem_keys(await asyncio.to_thread(_bounded, settings.key_file))
        if settings.jwks_file is not None:
            keys += jwks_keys(await asyncio.to_thread(_bounded, settings.jwks_file))
        if settings.jwks_url is not None:
            keys += jwks_keys(await _fetched(settings.jwks_url))
        return tuple(keys)


def pem_keys(data: bytes) -> list[TokenKey]:
    """Return the public keys of a PEM file; each algorithm follows from the kind of key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    end = b"-----END PUBLIC KEY-----"
    blocks = [part + end for part in data.split(end) if b"-----BEGIN PUBLIC KEY-----" in part]
    if not blocks:
        raise ValueError("there is no public key in PEM")
    try:
        return [TokenKey(_algorithm(key), key) for key in map(load_pem_public_key, blocks)]
    except UnsupportedAlgorithm as exc:
        raise ValueError(f"a key is of an unknown kind: {exc}") from exc


def jwks_keys(data: bytes) -> list[TokenKey]:
    """Return the usable public keys of a JSON Web Key Set; ValueError if there is none."""
    try:
        body = json.loads(data)
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc
    if not isinstance(body, dict) or not isinstance(body.get("keys"), list):
        raise ValueError("it is not a JSON Web Key Set")
    keys = []
    for entry in body["keys"]:
        if (
            not isinstance(entry, dict)
            or entry.get("use", "sig") != "sig"
            or entry.get("kty") == "oct"
        ):
            continue
        try:
            key = jwt.PyJWK.from_dict(entry).key
            algorithm = _algorithm(key.public_key() if hasattr(key, "private_numbers") else key)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue  # a kind of key that we do not use
        if entry.get("alg", algorithm) == algorithm:
            kid = entry.get("kid")
            keys.append(TokenKey(algorithm, key, kid if isinstance(kid, str) else None))
    if not keys:
        raise ValueError("the key set has no key for RS256, ES256 or EdDSA")
    return keys


def _algorithm(key: Any) -> str:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= 2048:
        return "RS256"
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return "ES256"
    if isinstance(key, ed25519.Ed25519PublicKey):
        return "EdDSA"
    raise ValueError("a key must be RSA of at least 2048 bits, P-256 or Ed25519")


def _bounded(file: Path) -> bytes:
    with file.open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{file} is larger than {MAX_BYTES} bytes")
    return data


async def _fetched(url: str) -> bytes:
    import aiohttp

    from sandkasten.outgoing_http import new_http_session, read_whole

    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    try:
        async with (
            new_http_session(timeout=timeout, compressed=True) as session,
            session.get(
                url, allow_redirects=False, **proxy_arguments(url, proxies_in(os.environ))
            ) as answer,
        ):
            if answer.status != 200:
                raise ValueError(f"status {answer.status}")
            too_long = ValueError(f"the answer is larger than {MAX_BYTES} bytes")
            return await read_whole(answer, MAX_BYTES, too_long)
    except aiohttp.ClientError as exc:
        raise ValueError(str(exc)) from exc
