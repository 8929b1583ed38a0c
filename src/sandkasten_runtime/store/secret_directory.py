"""Secrets in files, encrypted, one per tenant and name. Implements `ports.Secrets`.

A file holds the public fields in clear and the value with ChaCha20-Poly1305. Everything public is
authenticated with it: a value cannot be moved to another tenant, name or host by editing a file.
Files and not the journal's database, so that engines without a daemon use the same secrets.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import secrets
import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sandkasten.disk.atomic_file import create_file, write_file
from sandkasten.disk.os_errors import disk_error
from sandkasten.errors import BackendUnavailable, QuotaExceeded, StoreUnusable
from sandkasten.model.access.stored_secrets import (
    MAX_SECRETS,
    OpenSecret,
    Secret,
    SecretRequest,
    make_placeholder,
    no_such_secret,
)
from sandkasten.model.access.tenancy import checked_tenant
from sandkasten.model.json_codec import ShapeError, from_json, to_json
from sandkasten.model.optional_extras import install_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_KEY_FILE: Final = "key"
_TENANTS: Final = "tenants"
_SUFFIX: Final = ".json"
_NONCE: Final = 12
_MAX_FILE: Final = 64 << 10
_PURPOSE: Final = b"sandkasten secrets 1\0"
_List: TypeAlias = list[Secret]


class SecretDirectory:
    def __init__(self, directory: Path, key: str | None) -> None:
        """Without `key`, one is made in the directory at first use."""
        self._directory = directory
        self._key = key

    async def put(self, tenant: str, request: SecretRequest) -> Secret:
        return await asyncio.to_thread(self._put, tenant, request)

    async def list(self, tenant: str) -> Sequence[Secret]:
        return await asyncio.to_thread(self._list, tenant)

    async def remove(self, tenant: str, name: str) -> None:
        await asyncio.to_thread(self._remove, tenant, name)

    async def open(self, tenant: str, names: Sequence[str]) -> Sequence[OpenSecret]:
        return await asyncio.to_thread(lambda: [self._open(tenant, name) for name in names])

    def _put(self, tenant: str, request: SecretRequest) -> Secret:
        path = self._path(tenant, request.name)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            old = _read(path)
        except OSError as exc:
            raise disk_error("store a secret", exc, BackendUnavailable) from exc
        if old is None:
            check_count(len(self._list(tenant)))
        secret = secret_of(request, None if old is None else old[0])
        sealed = seal(self._key_bytes(make=True), tenant, secret, request.value)
        text = {"secret": to_json(secret), "sealed": base64.b64encode(sealed).decode()}
        try:
            write_file(path, json.dumps(text).encode())
        except OSError as exc:
            raise disk_error("store a secret", exc, BackendUnavailable) from exc
        return secret

    def _list(self, tenant: str) -> _List:
        try:
            names = sorted(self._path(tenant, "x").parent.glob(f"*{_SUFFIX}"))
            pairs = [_read(path) for path in names]
        except OSError as exc:
            raise disk_error("list secrets", exc, BackendUnavailable) from exc
        return [pair[0] for pair in pairs if pair is not None]

    def _remove(self, tenant: str, name: str) -> None:
        try:
            self._path(tenant, name).unlink()
        except FileNotFoundError as exc:
            raise no_such_secret(name) from exc
        except OSError as exc:
            raise disk_error("remove a secret", exc, BackendUnavailable) from exc

    def _open(self, tenant: str, name: str) -> OpenSecret:
        try:
            pair = _read(self._path(tenant, name))
        except OSError as exc:
            raise disk_error("read a secret", exc, BackendUnavailable) from exc
        if pair is None:
            raise no_such_secret(name)
        secret, sealed = pair
        return OpenSecret(secret, unseal(self._key_bytes(make=False), tenant, secret, sealed))

    def _path(self, tenant: str, name: str) -> Path:
        return self._directory / _TENANTS / checked_tenant(tenant) / f"{name}{_SUFFIX}"

    def _key_bytes(self, *, make: bool) -> bytes:
        if self._key is not None:
            return self._key.encode()
        path = self._directory / _KEY_FILE
        try:
            if make:
                create_file(path, secrets.token_hex(32).encode())
            return path.read_bytes().strip()
        except OSError as exc:
            raise disk_error("read the key of the secrets", exc, StoreUnusable) from exc


def secret_of(request: SecretRequest, old: Secret | None) -> Secret:
    """Return the public part of a new secret, which may replace an old one."""
    now = time.time()
    return Secret(
        name=request.name,
        hosts=tuple(request.hosts),
        # Programs may have written it into their settings.
        placeholder=make_placeholder(request.name) if old is None else old.placeholder,
        created_at=now if old is None else old.created_at,
        updated_at=now,
        header=request.header,
        basic=request.basic,
        query=request.query,
        body=request.body,
    )


def check_count(count: int) -> None:
    """Raise QuotaExceeded if a tenant with `count` secrets may not add another one."""
    if count >= MAX_SECRETS:
        raise QuotaExceeded(
            f"a tenant may have {MAX_SECRETS} secrets", hint="remove one: sandkasten secret rm"
        )


def seal(key: bytes, tenant: str, secret: Secret, value: str) -> bytes:
    """Encrypt a value for this tenant and secret."""
    nonce = os.urandom(_NONCE)
    return nonce + bytes(_cipher(key).encrypt(nonce, value.encode(), _bound(tenant, secret)))


def unseal(key: bytes, tenant: str, secret: Secret, sealed: bytes) -> str:
    """Decrypt a value; StoreUnusable if the key or anything that it is bound to has changed."""
    cipher = _cipher(key)
    from cryptography.exceptions import InvalidTag

    try:
        value = cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], _bound(tenant, secret))
    except InvalidTag:
        raise damaged_secret(secret.name) from None
    return str(value.decode())


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    except ModuleNotFoundError as exc:
        raise BackendUnavailable(
            "secrets require the library cryptography", hint=install_command("secrets")
        ) from exc
    return ChaCha20Poly1305(hashlib.sha256(_PURPOSE + key).digest())


def _bound(tenant: str, secret: Secret) -> bytes:
    """Return what a value is bound to."""
    return json.dumps([tenant, to_json(secret)], sort_keys=True).encode()


def _read(path: Path) -> tuple[Secret, bytes] | None:
    """Return the public part and the encrypted value; None if there is no such file."""
    try:
        with path.open("rb") as file:
            body = json.loads(file.read(_MAX_FILE))
        return from_json(Secret, body["secret"], "secret"), base64.b64decode(body["sealed"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, ShapeError):
        raise damaged_secret(path.name.removesuffix(_SUFFIX)) from None


def damaged_secret(name: str) -> StoreUnusable:
    return StoreUnusable(
        f"secret {name} cannot be decrypted",
        hint="use the key that it was stored with (secrets.key_file), or set it again",
        reason="damaged",
    )
