"""Collect unused images and layers: found under locks, moved aside, then removed.

An image without a name that no sandbox uses is garbage, and so is one whose record is damaged, and
a layer of no image. Moving is fast and happens under the lock; removing happens afterwards, and a
process that dies meanwhile leaves a directory below `making` for the next sweep.
"""

from __future__ import annotations

import os
from dataclasses import field
from typing import TYPE_CHECKING

from sandkasten.disk.tree_removal import remove_tree_quietly
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.images.archives.import_cache import forget_gone

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from sandkasten_runtime.images.layers.image_records import Records
    from sandkasten_runtime.images.layers.layer_directory import Layers
    from sandkasten_runtime.images.layers.store_locks import StoreLocks


@dataclass(slots=True)
class Aside:
    """What was moved aside, and the descriptors that exclude sweeps from it."""

    images: list[str] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    bytes: int = 0
    places: list[tuple[Path, int]] = field(default_factory=list)

    def move(self, locks: StoreLocks, move: Callable[[Path], object]) -> None:
        place, fd = locks.claim_new()
        self.places.append((place, fd))
        move(place / "gone")

    def remove(self) -> None:
        for place, fd in self.places:
            remove_tree_quietly(place)
            os.close(fd)
        self.places.clear()


def set_aside(
    root: Path, records: Records, layers: Layers, locks: StoreLocks, in_use: AbstractSet[str]
) -> Aside:
    """Move garbage aside. The locks `collecting` and `editing` are held. `in_use`: ids of
    images that sandboxes use.
    """
    aside = Aside()
    named = records.names()
    aside.images += [
        image_id
        for image_id in records.ids()
        # An unreadable record cannot be used or named either, and would keep every layer.
        if image_id not in in_use and (image_id not in named or records.get(image_id) is None)
    ]
    aside.images += [image_id for image_id in records.buried() if image_id not in in_use]
    for image_id in aside.images:
        records.forget(image_id)
    records.unpoint_lost()
    kept_ids = {*records.ids(), *records.buried(), *in_use}
    layer_sets = [records.layers_of(image_id) for image_id in kept_ids]
    # An unreadable record in use may name any layer; then all of them stay.
    if None not in layer_sets:
        needed = {layer for layer_set in layer_sets for layer in layer_set or ()}
        for diff_id in [layer_id for layer_id in layers.all() if layer_id not in needed]:
            stored = layers.get(diff_id)
            aside.bytes += 0 if stored is None else stored.bytes
            aside.layers.append(diff_id)
            aside.move(locks, layers.mover(diff_id))
    skeletons = root / "skeletons"
    for name in os.listdir(skeletons):
        if f"sha256:{name}" not in kept_ids:
            aside.move(locks, (skeletons / name).rename)
    layers.forget_blobs()
    forget_gone(root / "recent", kept_ids)
    # Adding and editing are locked out: no lock has a holder, no half-written file a writer.
    for directory in ("locks", "records", "names", "blobs", "recent"):
        for name in os.listdir(root / directory):
            if directory == "locks" or name.startswith("."):
                (root / directory / name).unlink(missing_ok=True)
    return aside
