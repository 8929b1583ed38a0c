"""Lines of `doctor` about the bucket of `store.files`: server, rights and encryption.

They are not required: sandboxes work without stored files.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final

from sandkasten.errors import SandkastenError
from sandkasten.model.sandbox.readiness import Requirement
from sandkasten_cluster_store.bucket.bucket import Bucket, object_sha256

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sandkasten_cluster_store.bucket.bucket_options import BucketOptions

# Shorter than a probe may take, so that the other lines are shown too.
_TIMEOUT_S: Final = 3.0
_CONTENT: Final = b"written by sandkasten doctor"


async def bucket_requirements(options: BucketOptions) -> Sequence[Requirement]:
    """Write, read and delete an object. An unreachable bucket is a line and not an error."""
    async with Bucket(options, attempts=1) as bucket:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return [
                    Requirement("bucket", True, f"{options.location} at {options.endpoint}"),
                    await _rights(bucket),
                    _encryption(options),
                ]
        except SandkastenError as exc:
            return [_unusable(exc.message, exc.hint)]
        except TimeoutError:
            state = f"{options.endpoint} does not answer in {_TIMEOUT_S:g} s"
            return [_unusable(state, "check the server of store.files.endpoint")]


def _unusable(state: str, remedy: str) -> Requirement:
    return Requirement("bucket", False, state, remedy, required=False)


async def _rights(bucket: Bucket) -> Requirement:
    name = f"{bucket.options.prefix}doctor-{secrets.token_hex(8)}"
    digest = await object_sha256(_CONTENT)

    async def listed() -> None:
        async for _ in bucket.list(name):
            pass

    missing: dict[str, SandkastenError] = {}
    trials: Sequence[tuple[str, Callable[[], Awaitable[object]]]] = (
        ("write", lambda: bucket.put(name, _CONTENT, digest)),
        ("list", listed),
        ("read", lambda: bucket.get(name, len(_CONTENT), digest)),
        ("delete", lambda: bucket.delete(name)),
    )
    for right, trial in trials:
        # What was not written cannot be read.
        if right == "read" and "write" in missing:
            continue
        try:
            await trial()
        except SandkastenError as exc:
            missing[right] = exc
    if not missing:
        return Requirement("bucket rights", True, "may list, read, write and delete")
    if len(missing) == len(trials) - 1:
        # Nothing works: its keys or its name are wrong, or it is unreachable.
        raise missing["write"]
    return Requirement(
        "bucket rights",
        False,
        f"may not {', '.join(missing)}",
        next(iter(missing.values())).hint,
        required=False,
    )


def _encryption(options: BucketOptions) -> Requirement:
    https = options.endpoint.startswith("https://")
    return Requirement(
        "bucket TLS",
        https or options.is_local,
        "the server is checked" if https else "none, on this machine" if options.is_local
        else "not encrypted",
        "use an https URL in store.files.endpoint",
        required=False,
    )  # fmt: skip
