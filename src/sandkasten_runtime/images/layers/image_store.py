"""The image store: layers by content, records, names, and garbage collection.

Blocking; safe for several threads and several processes at once. There are no reference counts:
what is still needed is computed from the records and from the ids of images that sandboxes use, so
a crash can leave garbage, which `collect` finds, but never a wrong count. A missing directory is an
empty store; it is created when something is added.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from sandkasten.disk.os_errors import translated
from sandkasten.errors import Busy, Conflict, ImageNotFound, InvalidImage
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.images.image_config import (
    DIGEST,
    MAX_LAYERS,
    ImageConfig,
    machine_architecture,
)
from sandkasten_runtime.images.image_names import canonical_name, new_name
from sandkasten_runtime.images.layers.garbage import set_aside
from sandkasten_runtime.images.layers.image_records import Records, StoredImage, image_id
from sandkasten_runtime.images.layers.layer_directory import Layer, Layers
from sandkasten_runtime.images.layers.skeleton import make_build_skeleton, make_skeleton
from sandkasten_runtime.images.layers.store_locks import StoreLocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

__all__ = ["Collected", "ImageConfig", "Layer", "LayerStore", "StoredImage"]

_DIRECTORIES: Final = (
    "layers", "records", "names", "skeletons", "making", "locks", "blobs", "recent",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Collected:
    """What a garbage collection removed."""

    images: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    bytes: int = 0


class LayerStore:
    """`root` is `<data_dir>/images`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._locks = StoreLocks(root)
        self._layers = Layers(root, self._locks)
        self._records = Records(root)
        self._ready = False

    # ---- adding

    @contextmanager
    def working(self) -> Iterator[None]:
        """Held around adding layers and the image made of them, so that none is collected."""
        self._prepare()
        with translated("use the store of images"), self._locks.working():
            yield

    def add_layer(
        self,
        source: BinaryIO,
        *,
        expect_digest: str | None = None,
        expect_diff_id: str | None = None,
        progress: Callable[[int], None] | None = None,
        max_bytes: int | None = None,
    ) -> Layer:
        """Unpack a layer unless it exists. A mismatch raises InvalidImage and leaves nothing.

        So does content of more than `max_bytes`, with `kind` limit. `progress` is called with the
        number of bytes read so far; it may raise to give up.
        """
        with self.working():
            if expect_diff_id is not None:
                layer = self._layers.get(expect_diff_id)
                if layer is not None:
                    return layer
            return self._layers.add(
                source,
                expect_digest=expect_digest,
                expect_diff_id=expect_diff_id,
                progress=progress,
                max_bytes=max_bytes,
            )

    @contextmanager
    def place(self) -> Iterator[Path]:
        """Yield a scratch directory on the store's disk, removed afterwards or when the process
        dies.
        """
        self._prepare()
        with self._locks.place() as path:
            yield path

    def has_layer(self, diff_id: str) -> bool:
        return self._layers.get(diff_id) is not None

    def layer(self, diff_id: str) -> Layer | None:
        return self._layers.get(diff_id)

    def layers(self) -> Sequence[Layer]:
        """Return every layer, needed or not."""
        if not self._there():
            return []
        return [
            layer
            for diff_id in self._layers.all()
            if (layer := self._layers.get(diff_id)) is not None
        ]

    def tree(self, diff_id: str) -> str:
        """Return the unpacked tree of one layer."""
        return str(self._layers.tree(diff_id))

    def known_blob(self, blob_digest: str) -> str | None:
        """Return the diff id of a compressed blob that was unpacked here before."""
        return self._layers.known_blob(blob_digest)

    def put_image(
        self,
        layers: Sequence[str],
        config: ImageConfig,
        names: Sequence[str],
        *,
        source: str = "",
        signatures: Mapping[str, Any] | None = None,
    ) -> StoredImage:
        """Record an image of existing layers. Its name is taken from the image that had it."""
        if len(layers) > MAX_LAYERS:
            raise InvalidImage(
                f"an image of {len(layers)} layers is too deep", hint=f"at most {MAX_LAYERS}"
            )
        wanted = [new_name(name) for name in names]
        if not config.architecture:
            config = replace(config, architecture=machine_architecture())
        with self.working(), translated("record an image"):
            size = 0
            for diff_id in layers:
                layer = self._layers.get(diff_id)
                if layer is None:
                    raise Busy(
                        f"layer {diff_id} is not in the store any more",
                        hint="garbage was collected meanwhile; import the image again",
                    )
                size += layer.bytes
            image = StoredImage(
                id=image_id(layers, config),
                names=(),
                layers=tuple(layers),
                config=config,
                bytes=size,
                created_at=time.time(),
                source=source,
            )
            self._skeleton(image)
            with self._locks.editing():
                # First: an image is never there without the signatures that it needs.
                if signatures is not None:
                    self._records.sign(image.id, signatures)
                if self._records.get(image.id) is None:
                    self._records.put(image)
                for name in wanted:
                    if self._records.pointed(name) != image.id:
                        self._records.point(name, image.id)
            return self._named(self._records.get(image.id) or image)

    # ---- finding

    def find(self, name_or_id: str) -> StoredImage | None:
        """Find by name (`:latest` may be left out), by id, or by a unique prefix of an id."""
        image = self.lookup(name_or_id)
        return None if image is None else self._named(image)

    def lookup(self, name_or_id: str) -> StoredImage | None:
        """Find an image without its names, which is faster."""
        if not self._there():
            return None
        the_id = self._records.pointed(canonical_name(name_or_id))
        if the_id is None:
            ids = self._records.starting_with(name_or_id)
            if len(ids) > 1:
                raise InvalidImage(
                    f"{len(ids)} images have ids that begin with {name_or_id}",
                    hint="give more digits of the id",
                )
            the_id = ids[0] if ids else None
        return None if the_id is None else self._records.get(the_id)

    def list(self) -> Sequence[StoredImage]:
        """Return every image, by name."""
        if not self._there():
            return []
        with translated("list the images"):
            names = self._records.names()
            images = [
                replace(image, names=tuple(names.get(image.id, ())))
                for the_id in self._records.ids()
                if (image := self._records.get(the_id)) is not None
            ]
        return sorted(images, key=lambda image: (not image.names, image.names, image.id))

    def signatures(self, the_id: str) -> Sequence[dict[str, Any]]:
        """Return the signatures that an image was pulled with, by pull."""
        return self._records.signatures(the_id)

    def there(self, the_id: str) -> bool:
        """Return whether an image of this id can still be found."""
        return self._there() and self._records.there(the_id)

    def build_trees(
        self, layers: Sequence[str], place: Path, mounts: Sequence[str]
    ) -> tuple[str, ...]:
        """Return the directories to stack for a step of a build, which shows the image's own
        accounts and directories. Its skeleton is made in `place`, with `mounts`.
        """
        trees = self._stacked(layers)
        skeleton = place / "tree"
        with translated("prepare a step"):
            skeleton.mkdir()
            make_build_skeleton(skeleton, trees, mounts)
        return (*trees, str(skeleton))

    def trees(self, image: StoredImage) -> tuple[str, ...]:
        """Return the directories to stack, lowest first, the skeleton last."""
        missing = [layer for layer in image.layers if not self._layers.tree(layer).is_dir()]
        if missing:
            raise InvalidImage(
                f"image {image.id} is missing {len(missing)} of its layers in the store",
                hint="import it again",
            )
        skeleton = self.root / "skeletons" / _hex(image.id) / "tree"
        if not skeleton.is_dir():
            with self.working():
                self._skeleton(image)
        return (*self._stacked(image.layers), str(skeleton))

    # ---- naming and removing

    def tag(self, name_or_id: str, name: str) -> StoredImage:
        """Add a name to an image; a name in use moves."""
        new = new_name(name)
        with self.working(), translated("name an image"), self._locks.editing():
            image = self.lookup(name_or_id)
            if image is None:
                raise not_in_store(name_or_id)
            self._records.point(new, image.id)
            return self._named(image)

    def remove(self, name_or_id: str, *, in_use: AbstractSet[str]) -> StoredImage:
        """Remove a name, and the image with its last name. Its layers are removed by `collect`.

        An id removes the image with all its names. Raise Conflict if a sandbox uses it.
        """
        if not self._there():
            raise not_in_store(name_or_id)
        with translated("remove an image"), self._locks.editing():
            image = self.find(name_or_id)
            if image is None:
                raise not_in_store(name_or_id)
            name = canonical_name(name_or_id)
            leaving = [name] if name in image.names else list(image.names)
            staying = [name for name in image.names if name not in leaving]
            if not staying and image.id in in_use:
                raise Conflict(
                    f"image {name_or_id} is in use",
                    hint="destroy the sandboxes that use it first",
                    image=image.id,
                )
            for old_name in leaving:
                self._records.unpoint(old_name)
            if not staying:
                self._records.bury(image.id)
            return replace(image, names=tuple(leaving))

    def collect(self, in_use: AbstractSet[str], *, wait_s: float = 30.0) -> Collected:
        """Remove what no name refers to and no sandbox uses. Raise Busy while an image is being
        added.
        """
        if not self._there():
            return Collected()
        with translated("collect garbage"):
            with self._locks.collecting(wait_s), self._locks.editing():
                aside = set_aside(self.root, self._records, self._layers, self._locks, in_use)
            aside.remove()
            self._locks.sweep()
        return Collected(tuple(aside.images), tuple(aside.layers), aside.bytes)

    # ---- within

    def _named(self, image: StoredImage) -> StoredImage:
        return replace(image, names=tuple(self._records.names().get(image.id, ())))

    def _stacked(self, layers: Sequence[str]) -> tuple[str, ...]:
        # Overlayfs refuses the same directory twice, and the upper one hides the lower completely.
        upper = dict.fromkeys(reversed(layers))
        return tuple(str(self._layers.tree(layer)) for layer in reversed(upper))

    def _skeleton(self, image: StoredImage) -> None:
        final = self.root / "skeletons" / _hex(image.id)
        if (final / "tree").is_dir():
            return
        with self._locks.place() as place:
            tree = place / "tree"
            tree.mkdir()
            make_skeleton(tree, [str(self._layers.tree(layer)) for layer in image.layers])
            try:
                place.rename(final)
            except OSError:
                # Another process was faster.
                if not (final / "tree").is_dir():
                    raise

    def _there(self) -> bool:
        return (self.root / "records").is_dir()

    def _prepare(self) -> None:
        # Checked each time: a data directory may be emptied while it is in use.
        if self._ready and all((self.root / name).is_dir() for name in _DIRECTORIES):
            return
        with translated("prepare the store of images"):
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in _DIRECTORIES:
                (self.root / name).mkdir(mode=0o700, exist_ok=True)
            self._ready = True
            self._locks.sweep()


def not_in_store(name: str) -> ImageNotFound:
    return ImageNotFound(
        f"image {name} is not in the store",
        hint="list the images with: sandkasten image ls",
        image=name,
    )


def _hex(the_id: str) -> str:
    if not DIGEST.match(the_id):
        raise InvalidImage(
            f"{the_id[:80]!r} is not a valid image id",
            hint="image ids look like sha256:<hex digits>",
        )
    return the_id.removeprefix("sha256:")
