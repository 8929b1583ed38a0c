"""Pull an image from a registry into the store: verified, in parallel, only what is missing.

Layers are unpacked while they arrive, in a few threads that end with the pull; nothing is held in
memory and nothing half-made becomes visible. Raises the errors of `registry_client`, and those of
the store for an archive that cannot be unpacked.
"""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from sandkasten.disk.cleanup import finish
from sandkasten.errors import InvalidImage, PayloadTooLarge
from sandkasten.model.images.image_info import ImageProgress
from sandkasten_runtime.images.image_config import diff_ids_of, parse_config
from sandkasten_runtime.images.registry.blob_stream import ThreadReader
from sandkasten_runtime.images.registry.image_reference import (
    Platform,
    fit,
    parse_reference,
    wanted_platform,
)
from sandkasten_runtime.images.registry.manifests import Index, Manifest
from sandkasten_runtime.images.registry.registry_client import opened
from sandkasten_runtime.images.registry.registry_credentials import Keyring
from sandkasten_runtime.images.registry.registry_http import Patience
from sandkasten_runtime.images.thread_work import all_or_none, to_the_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from typing import BinaryIO

    from sandkasten.model.images.image_info import OnProgress
    from sandkasten_runtime.images.image_config import ImageConfig
    from sandkasten_runtime.images.image_plugins import SignatureCheck
    from sandkasten_runtime.images.layers.image_store import Layer, LayerStore, StoredImage
    from sandkasten_runtime.images.registry.image_reference import Reference
    from sandkasten_runtime.images.registry.manifests import Descriptor
    from sandkasten_runtime.images.registry.registry_client import Registry

# As other registry clients do; more only divides the same bandwidth.
PARALLEL: Final = 3
# Often enough for a moving progress bar, rarely enough to cost nothing.
_REPORT_EVERY_S: Final = 0.1


class Puller:
    """`keyring` has the credentials for each registry; `patience` the deadlines."""

    def __init__(
        self,
        store: LayerStore,
        keyring: Keyring | None = None,
        *,
        patience: Patience | None = None,
        environ: Mapping[str, str] | None = None,
        max_bytes: int | None = None,
        trust: SignatureCheck | None = None,
        unsigned: bool = False,
    ) -> None:
        """`max_bytes` limits the layers of one image, compressed and unpacked. `trust` decides
        about an image before its layers are fetched; `unsigned`: see `SignatureCheck.collect`.
        """
        self._trust = trust
        self._unsigned = unsigned
        self._store = store
        self._keyring = Keyring() if keyring is None else keyring
        self._patience = Patience() if patience is None else patience
        self._environ = environ
        self._max_bytes = max_bytes

    async def pull(
        self, name: str, *, platform: str | None = None, progress: OnProgress | None = None
    ) -> StoredImage:
        """Pull and store the image under its name. A cancelled pull has stopped when it raises."""
        reference = parse_reference(name)
        wanted = wanted_platform(platform)
        if self._trust is not None:
            # No registry is asked for an image that no rule accepts.
            self._trust.require_rule(reference.familiar)
        access = await asyncio.to_thread(self._keyring.access, reference.registry)
        async with (
            _working(self._store),
            opened(reference, access, self._patience, environ=self._environ) as registry,
        ):
            manifest, digests = await _chosen(registry, reference, wanted)
            signatures = None
            if self._trust is not None:
                signatures = await self._trust.collect(
                    registry, reference.familiar, digests, unsigned=self._unsigned
                )
            self._check_size(reference.familiar, sum(layer.size for layer in manifest.layers))
            config, diff_ids = await _configured(registry, manifest, reference, wanted)
            await self._fetch(registry, manifest, diff_ids, reference.familiar, progress)
            return await to_the_end(
                self._store.put_image,
                diff_ids,
                config,
                [reference.familiar],
                source=f"{reference.registry}/{reference.repository}@{digests[0]}",
                signatures=signatures,
            )

    async def _fetch(
        self,
        registry: Registry,
        manifest: Manifest,
        diff_ids: tuple[str, ...],
        name: str,
        progress: OnProgress | None,
    ) -> None:
        here = await asyncio.to_thread(lambda: set(filter(self._store.has_layer, diff_ids)))
        # An image may have one layer twice; it is one download and one tree.
        missing: dict[str, Descriptor] = {}
        for diff_id, blob in zip(diff_ids, manifest.layers, strict=True):
            report = _Told(blob, progress)
            if diff_id in here:
                report.here()
            elif diff_id not in missing:
                report.waiting()
                missing[diff_id] = blob
        slots = asyncio.Semaphore(PARALLEL)
        unpacked = 0
        # Separate threads: those of the event loop are needed to resolve host names, and an
        # unpacker waits for what is fetched.
        with ThreadPoolExecutor(PARALLEL, "sandkasten-pull") as pool:

            async def fetch_one(diff_id: str, blob: Descriptor) -> None:
                nonlocal unpacked
                async with slots:
                    report = _Told(blob, progress)
                    layer = await self._fetch_layer(pool, registry, diff_id, blob, name, report)
                    unpacked += layer.bytes
                    self._check_size(name, unpacked)

            await all_or_none([asyncio.create_task(fetch_one(*layer)) for layer in missing.items()])

    async def _fetch_layer(
        self,
        pool: ThreadPoolExecutor,
        registry: Registry,
        diff_id: str,
        blob: Descriptor,
        name: str,
        report: _Told,
    ) -> Layer:
        reader = ThreadReader(registry.blob(blob))
        unpack = partial(
            self._store.add_layer,
            cast("BinaryIO", reader),
            expect_digest=blob.digest,
            expect_diff_id=diff_id,
            progress=reader.check,
            max_bytes=self._max_bytes,
        )
        feeding = asyncio.create_task(reader.feed(report.reached))
        try:
            unpacking = asyncio.get_running_loop().run_in_executor(pool, unpack)
            layer = await finish(unpacking, hurry=reader.abort)
        except InvalidImage as exc:
            if exc.details.get("kind") == "limit" and self._max_bytes is not None:
                raise _too_large(name, self._max_bytes) from exc
            raise
        finally:
            feeding.cancel()
            await all_or_none([feeding])
        report.finished()
        return layer

    def _check_size(self, name: str, size: int) -> None:
        if self._max_bytes is not None and size > self._max_bytes:
            raise _too_large(name, self._max_bytes)


def _too_large(name: str, most: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the layers of image {name} take more than {most} bytes",
        hint="use a smaller image, or raise images.pull_max_bytes",
        image=name,
    )


@asynccontextmanager
async def _working(store: LayerStore) -> AsyncIterator[None]:
    """Hold the store's lock against collection; waiting for it must not block the event loop."""
    with ExitStack() as stack:
        await to_the_end(stack.enter_context, store.working())
        yield


class _Told:
    """Reports the progress of one layer, not more often than people can read."""

    def __init__(self, blob: Descriptor, progress: OnProgress | None) -> None:
        self._step = f"layer {blob.digest.removeprefix('sha256:')[:12]}"
        self._total = blob.size
        self._progress = progress
        self._next = 0.0

    def here(self) -> None:
        self._say(f"{self._step} (already here)", self._total)

    def waiting(self) -> None:
        self._say(self._step, 0)

    def reached(self, done: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _REPORT_EVERY_S
            self._say(self._step, done)

    def finished(self) -> None:
        self._say(self._step, self._total)

    def _say(self, step: str, done: int) -> None:
        if self._progress is not None:
            self._progress(ImageProgress(step, done, self._total))


async def _chosen(
    registry: Registry, reference: Reference, wanted: Platform
) -> tuple[Manifest, tuple[str, ...]]:
    """Return the manifest for this platform, and the digests that a signature may be of: that of
    the index, if there is one, and its own.
    """
    manifest, digest = await registry.manifest(reference.wanted)
    digests: tuple[str, ...] = (digest,)
    if isinstance(manifest, Index):
        entry = manifest.choose(wanted, reference.familiar)
        manifest, own = await registry.manifest(entry.digest)
        digests = (digest, own)
        if isinstance(manifest, Index):
            raise InvalidImage(
                f"image {reference.familiar} is an index of indexes",
                hint="name one of the indexes inside it by its digest",
                image=reference.familiar,
            )
    return manifest, digests


async def _configured(
    registry: Registry, manifest: Manifest, reference: Reference, wanted: Platform
) -> tuple[ImageConfig, tuple[str, ...]]:
    name = reference.familiar
    data = await registry.blob(manifest.config).read_all()
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise InvalidImage(f"the configuration of {name} is not JSON", image=name) from exc
    config, diff_ids = parse_config(raw), diff_ids_of(raw)
    if len(diff_ids) != len(manifest.layers):
        raise InvalidImage(
            f"image {name} names {len(manifest.layers)} layers in its manifest "
            f"and {len(diff_ids)} in its configuration",
            hint="it is damaged; have it pushed again",
            image=name,
        )
    made_for = Platform(config.os, config.architecture, config.variant)
    if config.architecture and fit(wanted, made_for) is None:
        raise InvalidImage(
            f"image {name} is not made for {wanted}",
            hint=f"it is made for {made_for}; --platform {made_for} stores it all the same",
            image=name,
        )
    return config, diff_ids
