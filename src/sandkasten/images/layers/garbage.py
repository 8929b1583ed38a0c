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
from sandkasten.images.archives.import_cache import forget_gone
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from sandkasten.images.layers.image_records import Records
    from sandkasten.images.layers.layer_directory import Layers
    from sandkasten.images.layers.store_locks import StoreLocks


@dataclass(slots=True)
class Aside:
    """What was moved aside, and the descriptors that keep sweeps away from it."""

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
        one
        for one in records.ids()
        # An unreadable record cannot be used or named either, and would keep every layer.
        if one not in in_use and (one not in named or records.get(one) is None)
    ]
    aside.images += [one for one in records.buried() if one not in in_use]
    for one in aside.images:
        records.forget(one)
    records.unpoint_lost()
    kept = {*records.ids(), *records.buried(), *in_use}
    held = [records.layers_of(one) for one in kept]
    # An unreadable record in use may name any layer; then all of them stay.
    if None not in held:
        needed = {layer for one in held for layer in one or ()}
        for diff_id in [one for one in layers.all() if one not in needed]:
            found = layers.get(diff_id)
            aside.bytes += 0 if found is None else found.bytes
            aside.layers.append(diff_id)
            aside.move(locks, layers.mover(diff_id))
    skeletons = root / "skeletons"
    for name in os.listdir(skeletons):
        if f"sha256:{name}" not in kept:
            aside.move(locks, (skeletons / name).rename)
    layers.forget_blobs()
    forget_gone(root / "recent", kept)
    # Adding and editing are locked out: no lock has a holder, no half-written file a writer.
    for directory in ("locks", "records", "names", "blobs", "recent"):
        for name in os.listdir(root / directory):
            if directory == "locks" or name.startswith("."):
                (root / directory / name).unlink(missing_ok=True)
    return aside
