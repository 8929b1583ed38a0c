"""Find the signatures of an image in its registry, as cosign stores them.

Looks at the tag `sha256-<digest>.sig` and at the referrers of the digest, by the referrers API or
its fallback tag. Bounded; what is malformed is skipped, because it is not a signature that could be
accepted. Raises what `registry_client` raises if the registry cannot be asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidImage
from sandkasten.images.image_config import DIGEST
from sandkasten.images.registry.manifests import Descriptor
from sandkasten.images.signatures.image_signature import (
    BUNDLE_PREFIX,
    SIMPLE_LAYER,
    from_bundle,
    from_layer,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sandkasten.images.registry.registry_client import Registry
    from sandkasten.images.signatures.image_signature import ImageSignature

MAX_SIGNATURES: Final = 32
_MAX_BLOB: Final = 256 * 1024
_COSIGN: Final = "application/vnd.dev.cosign.artifact.sig"


async def find_signatures(registry: Registry, digests: Sequence[str]) -> list[ImageSignature]:
    """Return the signatures of these digests: of an index, and of the manifest chosen from it."""
    found: list[ImageSignature] = []
    for digest in digests:
        async for manifest in _manifests(registry, digest):
            async for one in _signatures(registry, manifest):
                found.append(one)
                if len(found) >= MAX_SIGNATURES:
                    return found
    return found


async def _manifests(registry: Registry, digest: str) -> AsyncIterator[dict[str, Any]]:
    tagged = await registry.artifact(f"{digest.replace(':', '-')}.sig")
    if tagged is not None:
        yield tagged
    for one in (await registry.referrers(digest))[:MAX_SIGNATURES]:
        kind = str(one.get("artifactType") or "")
        if not kind.startswith((_COSIGN, BUNDLE_PREFIX)):
            continue
        named = str(one.get("digest") or "")
        # Anything else could be another path of the registry.
        found = await registry.artifact(named) if DIGEST.match(named) else None
        if found is not None:
            yield found


async def _signatures(
    registry: Registry, manifest: dict[str, Any]
) -> AsyncIterator[ImageSignature]:
    layers = manifest.get("layers")
    for layer in layers[:MAX_SIGNATURES] if isinstance(layers, list) else ():
        kind = str(layer.get("mediaType") if isinstance(layer, dict) else "")
        if kind != SIMPLE_LAYER and not kind.startswith(BUNDLE_PREFIX):
            continue
        try:
            size, named = int(layer["size"]), str(layer["digest"])
            if not 0 < size <= _MAX_BLOB or not DIGEST.match(named):
                continue
            data = await registry.blob(Descriptor(kind, named, size)).read_all()
            annotations = layer.get("annotations") or {}
            yield from_layer(data, annotations) if kind == SIMPLE_LAYER else from_bundle(data)
        except (InvalidImage, ValueError, KeyError, TypeError, AttributeError):
            continue
