"""A client of one registry, by the OCI distribution protocol: manifests and blobs, pull only.

Every document and blob is checked against its digest. Raises RegistryUnavailable (down,
overloaded), Unauthorized (401), PolicyDenied (403), ImageNotFound (404) and InvalidImage (content
with another digest).
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import (
    ImageNotFound,
    InvalidImage,
    PolicyDenied,
    RegistryUnavailable,
    SandkastenError,
)
from sandkasten.model.spelling import shown
from sandkasten.outgoing_http import read_start
from sandkasten_runtime.images.registry.blob_stream import BlobStream
from sandkasten_runtime.images.registry.manifests import (
    MAX_MANIFEST_BYTES,
    SPOKEN,
    Index,
    Manifest,
    digest_of,
    read_manifest,
)
from sandkasten_runtime.images.registry.registry_http import (
    BROKEN,
    TRY_AGAIN,
    Connections,
    NotTls,
    Patience,
    connected,
    loopback,
)
from sandkasten_runtime.images.registry.registry_tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import aiohttp

    from sandkasten_runtime.images.registry.image_reference import Reference
    from sandkasten_runtime.images.registry.manifests import Descriptor
    from sandkasten_runtime.images.registry.registry_credentials import Access

_MOST_REFUSAL: Final = 64 * 1024


@asynccontextmanager
async def opened(
    reference: Reference,
    access: Access,
    patience: Patience | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[Registry]:
    """Yield the registry of a reference, once it has answered; `patience` limits the block."""
    async with connected(
        reference.registry,
        Patience() if patience is None else patience,
        ca_file=access.ca_file,
        environ=os.environ if environ is None else environ,
    ) as connections:
        registry = Registry(reference, access, connections)
        await registry.reach()
        yield registry


class Registry:
    """One repository of one registry, for as long as one pull takes."""

    def __init__(self, reference: Reference, access: Access, connections: Connections) -> None:
        self._name = reference.registry
        self._host = reference.api_host
        self._repository = reference.repository
        self._scope = f"repository:{self._repository}:pull"
        self._access = access
        self._connections = connections
        self._tokens = Tokens(self._name, access, connections)
        self._base = ""

    async def manifest(self, wanted: str) -> tuple[Index | Manifest, str]:
        """Return the manifest that a tag or digest names, and its digest, which is verified."""
        name = self._shown(wanted)
        data, headers = await self._document(f"manifests/{wanted}", name)
        if len(data) > MAX_MANIFEST_BYTES:
            raise InvalidImage(f"the manifest of {name} is larger than {MAX_MANIFEST_BYTES} bytes")
        digest = digest_of(data)
        header_digest = headers.get("Docker-Content-Digest", "")
        promised = wanted if wanted.startswith("sha256:") else header_digest
        if promised.startswith("sha256:") and promised != digest:
            raise InvalidImage(
                f"the manifest of {name} has digest {digest}, not {promised[:80]}",
                hint="the registry sent damaged or changed content; nothing was stored",
                image=name,
            )
        return read_manifest(data, headers.get("Content-Type", ""), name), digest

    async def artifact(self, wanted: str) -> dict[str, Any] | None:
        """Return a manifest that is not an image's, as it is; None if there is none."""
        name = self._shown(wanted)
        try:
            data, _ = await self._document(f"manifests/{wanted}", name)
        except InvalidImage:
            return None
        if wanted.startswith("sha256:") and digest_of(data) != wanted:
            return None
        return _tree(data)

    async def referrers(self, digest: str) -> list[dict[str, Any]]:
        """Return the descriptors of what refers to a digest: by the API, or, in a registry that
        does not have it, by the tag that stands in for it.
        """
        try:
            data, _ = await self._document(f"referrers/{digest}", self._shown(digest))
            tree = _tree(data)
        except InvalidImage:
            tree = await self.artifact(digest.replace(":", "-"))
        listed = (tree or {}).get("manifests")
        return [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []

    def blob(self, blob: Descriptor) -> BlobStream:
        """Return a blob as a stream, opened on the first read."""

        async def open_at(offset: int) -> aiohttp.ClientResponse:
            headers = {"Range": f"bytes={offset}-"} if offset else {}
            return await self._get(f"blobs/{blob.digest}", headers, self._shown(blob.digest))

        what = f"fetching {blob.digest[7:19]} from {self._name}"
        return BlobStream(open_at, blob.digest, blob.size, self._connections.patience, what)

    async def _document(self, path: str, name: str) -> tuple[bytes, Mapping[str, str]]:
        patience = self._connections.patience
        failures = 0
        while True:
            answer = await self._get(path, {"Accept": ", ".join(SPOKEN)}, name)
            try:
                return await read_start(answer, MAX_MANIFEST_BYTES + 1), answer.headers
            except BROKEN as exc:
                failures += 1
                if failures >= patience.attempts:
                    raise RegistryUnavailable(
                        f"{self._name} broke off while sending the manifest of {name}",
                        hint="try again",
                        registry=self._name,
                    ) from exc
            finally:
                answer.close()
            await asyncio.sleep(patience.pause_s(failures))

    async def reach(self) -> None:
        """Connect: by TLS, unless plain HTTP is allowed and TLS is not offered."""
        plain_is_fine = self._access.insecure or loopback(self._host)
        self._base = f"https://{self._host}/v2/"
        try:
            await self._ping()
        except NotTls as exc:
            if not plain_is_fine or self._access.ca_file:
                raise RegistryUnavailable(
                    f"{self._name} does not speak TLS",
                    hint=f"plain HTTP needs images.registries.{self._name}.insecure: true",
                    registry=self._name,
                ) from exc
            self._base = f"http://{self._host}/v2/"
            await self._ping()

    async def _ping(self) -> None:
        """Check that a registry answers. Its answer is checked with the manifest."""
        (await self._connections.open(self._base, headers={})).close()

    async def _get(
        self, path: str, headers: Mapping[str, str], name: str
    ) -> aiohttp.ClientResponse:
        url = f"{self._base}{self._repository}/{path}"
        authorization = self._tokens.header(self._scope)
        answer = await self._connections.open(url, headers=headers, authorization=authorization)
        # Twice: a kept token may have expired, and then the challenge is a new one.
        for _ in range(2):
            if answer.status != 401:
                break
            challenge = answer.headers.get("WWW-Authenticate")
            answer.close()
            authorization = await self._tokens.answer(challenge, self._scope, authorization)
            answer = await self._connections.open(url, headers=headers, authorization=authorization)
        if answer.status not in (200, 206):
            try:
                raise await self._refusal(answer, name)
            finally:
                answer.close()
        return answer

    async def _refusal(self, answer: aiohttp.ClientResponse, name: str) -> SandkastenError:
        reason = await _reason(answer)
        if answer.status == 401:
            return self._tokens.refused()
        if answer.status == 403:
            return PolicyDenied(
                f"{self._name} denies access to {name}{reason}",
                hint=f"ask for access, or use other credentials: images.registries.{self._name}",
                registry=self._name,
            )
        if answer.status == 404:
            return ImageNotFound(
                f"{self._name} has no {name}{reason}", hint="check the name and the tag", image=name
            )
        if answer.status in TRY_AGAIN:
            return RegistryUnavailable(
                f"{self._name} answered {answer.status} for {name}{reason}",
                hint="try again later",
                registry=self._name,
            )
        return InvalidImage(
            f"{self._name} answered {answer.status} for {name}{reason}",
            hint=f"check that {self._name} is an image registry",
            image=name,
        )

    def _shown(self, wanted: str) -> str:
        return f"{self._repository}{'@' if wanted.startswith('sha256:') else ':'}{wanted}"


def _tree(data: bytes) -> dict[str, Any] | None:
    if len(data) > MAX_MANIFEST_BYTES:
        return None
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) else None


async def _reason(answer: aiohttp.ClientResponse) -> str:
    """Return the registry's own error message as harmless text."""
    try:
        tree = json.loads(await read_start(answer, _MOST_REFUSAL))
        first = tree["errors"][0]
        return f": {shown(str(first.get('message') or first.get('code')), 200)}"
    except (*BROKEN, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return ""
