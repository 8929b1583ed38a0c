"""Pull an image from a registry into the store: verified, in parallel, only what is missing.

Blocking: runs in a thread and starts a few of its own, which end with it. Layers are unpacked while
they arrive; nothing is held in memory and nothing half-made becomes visible. Raises the errors of
`registry_client`, and those of the store for an archive that cannot be unpacked.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Final, cast

from sandkasten.errors import Cancelled, InvalidImage
from sandkasten.images.image_config import diff_ids_of, parse_config
from sandkasten.images.registry.image_reference import (
    Platform,
    fit,
    parse_reference,
    wanted_platform,
)
from sandkasten.images.registry.manifests import Index, Manifest
from sandkasten.images.registry.registry_client import Registry
from sandkasten.images.registry.registry_credentials import Keyring
from sandkasten.images.registry.registry_http import Errand, Patience
from sandkasten.model.images.image_info import ImageProgress

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping
    from typing import BinaryIO

    from sandkasten.images.image_config import ImageConfig
    from sandkasten.images.layers.image_store import LayerStore, StoredImage
    from sandkasten.images.registry.image_reference import Reference
    from sandkasten.images.registry.manifests import Descriptor

    Report = Callable[[ImageProgress], None]

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
    ) -> None:
        self._store = store
        self._keyring = Keyring() if keyring is None else keyring
        self._patience = Patience() if patience is None else patience
        self._environ = environ

    def pull(
        self,
        name: str,
        *,
        platform: str | None = None,
        progress: Report | None = None,
        called_off: threading.Event | None = None,
    ) -> StoredImage:
        """Pull and store the image under its name. `progress` is called from several threads."""
        reference = parse_reference(name)
        wanted = wanted_platform(platform)
        errand = Errand(self._patience)
        if called_off is not None:
            errand.called_off = called_off
        access = self._keyring.access(reference.registry)
        with (
            self._store.working(),
            Registry(reference, access, errand, environ=self._environ) as registry,
        ):
            manifest, digest = _chosen(registry, reference, wanted)
            config, diff_ids = _configured(registry, manifest, reference, wanted)
            self._fetch(registry, manifest, diff_ids, errand, progress)
            return self._store.put_image(
                diff_ids,
                config,
                [reference.familiar],
                source=f"{reference.registry}/{reference.repository}@{digest}",
            )

    def _fetch(
        self,
        registry: Registry,
        manifest: Manifest,
        diff_ids: tuple[str, ...],
        errand: Errand,
        progress: Report | None,
    ) -> None:
        # An image may have one layer twice; it is one download and one tree.
        missing: dict[str, Descriptor] = {}
        for diff_id, blob in zip(diff_ids, manifest.layers, strict=True):
            told = _Told(blob, progress)
            if self._store.has_layer(diff_id):
                told.here()
            elif diff_id not in missing:
                told.waiting()
                missing[diff_id] = blob
        if not missing:
            return

        def one(diff_id: str, blob: Descriptor) -> None:
            told = _Told(blob, progress)
            with registry.blob(blob) as stream:

                def heed(_: int) -> None:
                    errand.check("pulling a layer")
                    told.reached(stream.got)

                self._store.add_layer(
                    cast("BinaryIO", stream),
                    expect_digest=blob.digest,
                    expect_diff_id=diff_id,
                    progress=heed,
                )
            told.finished()

        with ThreadPoolExecutor(PARALLEL, "sandkasten-pull") as pool:
            work = [pool.submit(one, diff_id, blob) for diff_id, blob in missing.items()]
            failures = []
            for future in as_completed(work):
                failure = future.exception()
                if failure is not None:
                    failures.append(failure)
                    errand.called_off.set()
        # The first error stopped the others; their cancellation says nothing.
        for failure in sorted(failures, key=lambda one: isinstance(one, Cancelled)):
            raise failure


class _Told:
    """Reports the progress of one layer, not more often than people can read."""

    def __init__(self, blob: Descriptor, progress: Report | None) -> None:
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


def _chosen(registry: Registry, reference: Reference, wanted: Platform) -> tuple[Manifest, str]:
    found, digest = registry.manifest(reference.wanted)
    if isinstance(found, Index):
        entry = found.choose(wanted, reference.familiar)
        found, _ = registry.manifest(entry.digest)
        if isinstance(found, Index):
            raise InvalidImage(
                f"image {reference.familiar} is an index of indexes",
                hint="name one of the indexes inside it by its digest",
                image=reference.familiar,
            )
    return found, digest


def _configured(
    registry: Registry, manifest: Manifest, reference: Reference, wanted: Platform
) -> tuple[ImageConfig, tuple[str, ...]]:
    name = reference.familiar
    with registry.blob(manifest.config) as stream:
        data = stream.readall()
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
