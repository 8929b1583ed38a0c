"""Access tokens of sandboxes and signatures of file URLs. Pure.

A token is derived from the daemon's key and the sandbox's id, so nothing is stored and it is valid
until the sandbox ends. A signature is E2B's version 1: a hash of the path, the operation, the user,
the token and, if it expires, the time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import uuid
from typing import Final, Literal

from sandkasten.errors import Unauthorized
from sandkasten.lazy_dataclass import dataclass

Operation = Literal["read", "write"]
_PURPOSE: Final = b"sandkasten e2b access token\0"
_BOOT: Final = b"sandkasten e2b boot id\0"
_TRAFFIC: Final = b"sandkasten e2b traffic token\0"
# Ten digits reach the year 2286; more would only be a larger number to compare.
_MAX_DIGITS: Final = 12
_SIGNATURE_LENGTH: Final = len("v1_") + 43


class EnvdTokens:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def token(self, sandbox_id: str) -> str:
        return hmac.new(self._key, _PURPOSE + sandbox_id.encode(), hashlib.sha256).hexdigest()

    def is_valid(self, sandbox_id: str, token: str) -> bool:
        """Compare in constant time; also for an id that does not exist."""
        expected = self.token(sandbox_id)
        return token.isascii() and hmac.compare_digest(expected, token)

    def boot_id(self, sandbox_id: str, boots: int) -> str:
        """Return an id in the form of Linux's, which reveals nothing about the host."""
        named = _BOOT + f"{sandbox_id}/{boots}".encode()
        return str(uuid.UUID(bytes=hmac.new(self._key, named, hashlib.sha256).digest()[:16]))

    def traffic_token(self, sandbox_id: str) -> str:
        """Return the token of the ports of a sandbox, which opens neither commands nor files."""
        return hmac.new(self._key, _TRAFFIC + sandbox_id.encode(), hashlib.sha256).hexdigest()

    def is_valid_for_traffic(self, sandbox_id: str, token: str) -> bool:
        expected = self.traffic_token(sandbox_id)
        return token.isascii() and hmac.compare_digest(expected, token)


@dataclass(frozen=True, slots=True)
class SignedPath:
    """The content of a signed URL; strings as the client sent them."""

    path: str
    operation: Operation
    user: str
    signature: str
    expiration: str | None

    def check(self, now: float) -> None:
        """Raise Unauthorized for a signature that is malformed or has expired."""
        expiration = self.expiration
        if len(self.signature) != _SIGNATURE_LENGTH or not self.signature.isascii():
            raise invalid_signature()
        if expiration is None:
            return
        if not (expiration.isascii() and expiration.isdigit() and len(expiration) <= _MAX_DIGITS):
            raise invalid_signature()
        if int(expiration) < now:
            raise Unauthorized("signature is already expired", hint="make a new URL with the SDK")

    def is_signed_with(self, token: str) -> bool:
        return hmac.compare_digest(self.signature, self._signature(token))

    def _signature(self, token: str) -> str:
        parts = [self.path, self.operation, self.user, token]
        if self.expiration is not None:
            parts.append(self.expiration)
        raw = ":".join(parts).encode("utf-8", "surrogateescape")
        digest = hashlib.sha256(raw).digest()
        return "v1_" + base64.b64encode(digest).rstrip(b"=").decode()


def invalid_signature() -> Unauthorized:
    return Unauthorized(
        "invalid signature", hint="use the URL of download_url or upload_url unchanged"
    )
