"""A bucket of an S3 server: whole objects are put, read, deleted and listed.

Every request can be repeated without harm, and is repeated with growing pauses if the server is
away, slow or busy. What does not help itself by waiting is a named error at once. Errors never
contain a header or a key. Knows neither files nor tenants.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import io
import re
import ssl
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import aiohttp
from yarl import URL

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.retries import Backoff, retry_after_s
from sandkasten.outgoing_http import new_http_session, read_start
from sandkasten_cluster_store.bucket.bucket_errors import damaged_object, refused, unreachable
from sandkasten_cluster_store.bucket.signature_v4 import (
    EMPTY_SHA256,
    Request,
    encoded_path,
    encoded_query,
    signed_headers,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandkasten_cluster_store.bucket.bucket_options import BucketOptions

_BACKOFF: Final = Backoff(0.2, 4.0)
_ATTEMPTS: Final = 5
_LONGEST_PAUSE_S: Final = 10.0
# A page of a list has at most a thousand names, each of at most 1024 bytes.
_LIST_BYTES: Final = 8 * 1024 * 1024
_ERROR_BYTES: Final = 64 * 1024
# Each request has an object in memory, up to twice.
_AT_ONCE: Final = 16
_ENTRY: Final = re.compile(rb"<Contents>(.*?)</Contents>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ListedObject:
    name: str
    modified_at: float


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Bucket:
    """`async with Bucket(options) as bucket:`. Connects at its first request."""

    def __init__(self, options: BucketOptions, attempts: int = _ATTEMPTS) -> None:
        self.options = options
        self._attempts = attempts
        parts = urlsplit(options.endpoint)
        self._scheme = parts.scheme
        self._host, self._base = parts.netloc, f"/{options.bucket}"
        if not options.path_style:
            self._host, self._base = f"{options.bucket}.{parts.netloc}", ""
        self._session: aiohttp.ClientSession | None = None
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> Bucket:
        return self

    async def __aexit__(self, *_: object) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def put(self, name: str, data: bytes, sha256: str) -> None:
        """Store an object, or replace it. The server refuses data that was damaged on its way."""
        md5 = await asyncio.to_thread(_md5, data)
        await self._ask("PUT", name, data=data, sha256=sha256, md5=md5)

    async def get(self, name: str, size_bytes: int, sha256: str) -> bytes:
        """Return an object. One of another size or hash is read once more, and then refused."""
        for _ in range(2):
            data = await self._ask("GET", name, most=size_bytes + 1)
            if len(data) == size_bytes and await object_sha256(data) == sha256:
                return data
        raise damaged_object("is not what was stored")

    async def delete(self, name: str) -> None:
        """Delete an object. Twice is fine."""
        await self._ask("DELETE", name)

    async def list(self, prefix: str) -> AsyncIterator[ListedObject]:
        """Yield the objects whose names begin so."""
        query = {"list-type": "2", "prefix": prefix, "encoding-type": "url"}
        while True:
            body = await self._ask("GET", "", query=query, most=_LIST_BYTES)
            for entry in _ENTRY.finditer(body):
                yield ListedObject(unquote(_field(entry[1], "Key")), _modified_at(entry[1]))
            token = _field(body, "NextContinuationToken")
            if _field(body, "IsTruncated") != "true" or not token:
                return
            query["continuation-token"] = token

    async def _ask(
        self,
        method: str,
        name: str,
        *,
        query: Mapping[str, str] | None = None,
        data: bytes = b"",
        sha256: str = EMPTY_SHA256,
        md5: str = "",
        most: int = _ERROR_BYTES,
    ) -> bytes:
        """Return the body of a good answer, at most `most` bytes of it."""
        path = encoded_path(f"{self._base}/{name}")
        request = Request(method, self._host, path, encoded_query(query or {}), sha256, md5)
        loop = asyncio.get_running_loop()
        # The last attempt begins before this time.
        until = loop.time() + self.options.timeout_s
        failures = 0
        while True:
            wanted_pause_s = 0.0
            try:
                async with self._turns, asyncio.timeout(self.options.timeout_s):
                    answer = await self._send(request, data, most)
            except (TimeoutError, OSError, aiohttp.ClientError) as exc:
                failure = unreachable(exc, self.options)
                failure.error.__cause__ = exc
            else:
                if 200 <= answer.status < 300:
                    return answer.body
                code = _field(answer.body, "Code")
                if method == "DELETE" and code == "NoSuchKey":
                    return b""
                failure = refused(answer.status, code, self.options)
                wanted_pause_s = retry_after_s(answer.headers, time.time())
            failures += 1
            pause_s = max(_BACKOFF.pause_s(failures), min(wanted_pause_s, _LONGEST_PAUSE_S))
            if not failure.passing or failures == self._attempts or loop.time() + pause_s > until:
                raise failure.error
            await asyncio.sleep(pause_s)

    async def _send(self, request: Request, data: bytes, most: int) -> _Answer:
        if self._session is None:
            self._session = new_http_session(
                aiohttp.TCPConnector(ssl=_tls(self.options)),
                skipped_headers=("Accept", "Content-Type", "User-Agent"),
            )
        question = f"?{request.query}" if request.query else ""
        url = URL(f"{self._scheme}://{self._host}{request.path}{question}", encoded=True)
        async with self._session.request(
            request.method,
            url,
            headers=signed_headers(request, self.options, datetime.now(UTC)),
            data=io.BytesIO(data) if request.method == "PUT" else None,
            allow_redirects=False,
        ) as response:
            most = most if 200 <= response.status < 300 else _ERROR_BYTES
            return _Answer(response.status, response.headers, await read_start(response, most))


async def object_sha256(data: bytes) -> str:
    return await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())


def _md5(data: bytes) -> str:
    # Not for security: many servers compare no other hash with the data.
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _tls(options: BucketOptions) -> ssl.SSLContext | bool:
    if options.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=options.ca_file)
    except OSError as exc:
        raise InvalidConfiguration(
            f"the certificates in {options.ca_file} cannot be read",
            hint="write the certificate of the authority into it, in PEM",
            setting="store.files.ca_file",
        ) from exc


def _field(body: bytes, name: str) -> str:
    """Return the text of the first element with a name; empty if there is none."""
    tag = name.encode()
    match = re.search(rb"<%b>([^<]{0,4096})</%b>" % (tag, tag), body)
    return "" if match is None else html.unescape(match[1].decode("utf-8", "replace"))


def _modified_at(entry: bytes) -> float:
    try:
        return datetime.fromisoformat(_field(entry, "LastModified")).timestamp()
    except ValueError:
        # No timestamp: treat it as new.
        return time.time()
