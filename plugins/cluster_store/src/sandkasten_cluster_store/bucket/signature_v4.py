"""Signatures of requests to an S3 server: AWS Signature Version 4, in headers. Pure."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from sandkasten_cluster_store.bucket.bucket_options import BucketOptions

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    host: str
    path: str
    """Encoded by `encoded_path`."""
    query: str = ""
    """Encoded by `encoded_query`."""
    sha256: str = EMPTY_SHA256
    """The hash of the body."""
    md5: str = ""
    """The hash of the body, in base64; empty: not sent."""


def encoded_path(path: str) -> str:
    return quote(path, safe="/-_.~")


def encoded_query(values: Mapping[str, str]) -> str:
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~"))
                   for name, value in values.items())  # fmt: skip
    return "&".join(f"{name}={value}" for name, value in pairs)


def signed_headers(request: Request, options: BucketOptions, now: datetime) -> dict[str, str]:
    """Return the headers of a request with its signature. `now` is in UTC."""
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/{options.region}/s3/aws4_request"
    # In the order of their names, which the signature requires.
    headers = {
        **({"content-md5": request.md5} if request.md5 else {}),
        "host": request.host,
        "x-amz-content-sha256": request.sha256,
        "x-amz-date": stamp,
    }
    if options.session_token is not None:
        headers["x-amz-security-token"] = options.session_token
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = "\n".join(
        (request.method, request.path, request.query, lines, names, request.sha256)
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{options.secret_key}".encode()
    for part in scope.split("/"):
        key = _hmac(key, part)
    signature = _hmac(key, "\n".join((_ALGORITHM, stamp, scope, digest))).hex()
    headers["authorization"] = (
        f"{_ALGORITHM} Credential={options.access_key}/{scope}, SignedHeaders={names},"
        f" Signature={signature}"
    )
    return headers


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
