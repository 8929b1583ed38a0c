"""Import images from files; the format is recognised by content.

Supports three kinds: `docker save` archives, OCI layouts (a directory, or a tar of one), and a tar
of a root file system; tars may be compressed. Blocking. No name refers to an import that failed;
layers it had finished are garbage until the next collection.
"""

from __future__ import annotations

import os
import stat
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from sandkasten.disk.os_errors import translated
from sandkasten.errors import FileTrouble, InvalidImage
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.images.image_info import ImageProgress
from sandkasten_runtime.images.archives.archive_members import (
    DirectoryMembers,
    TarMembers,
    open_directory,
    whole,
)
from sandkasten_runtime.images.archives.archive_streams import Keeping, Seeking
from sandkasten_runtime.images.archives.compression import kind_of, uncompressed
from sandkasten_runtime.images.archives.docker_archive import docker_images, is_docker_archive
from sandkasten_runtime.images.archives.import_cache import (
    Remembered,
    fingerprint,
    recall,
    remember,
)
from sandkasten_runtime.images.archives.oci_layout import is_oci_layout, oci_images
from sandkasten_runtime.images.archives.tar_index import BLOCK
from sandkasten_runtime.images.archives.tar_index import members as tar_members
from sandkasten_runtime.images.image_config import ImageConfig
from sandkasten_runtime.images.image_names import new_name
from sandkasten_runtime.images.layers.overlay import read_merged
from sandkasten_runtime.images.registry.image_reference import wanted_platform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sandkasten.model.images.image_info import OnProgress
    from sandkasten_runtime.images.archives.archive_contents import FoundImage
    from sandkasten_runtime.images.archives.archive_members import Members
    from sandkasten_runtime.images.archives.tar_index import Member, Stream
    from sandkasten_runtime.images.layers.image_store import LayerStore, StoredImage

# Each is a separate file in the store, and is read whenever images are listed.
MAX_NAMES: Final = 1000
# Names at the top of a root file system and of no other archive.
_ROOT_NAMES: Final = frozenset(
    (
        *("bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "media", "mnt"),
        *("opt", "proc", "root", "run", "sbin", "srv", "sys", "tmp", "usr", "var"),
    )
)
_ELF_MACHINES: Final = {
    3: "386",
    21: "ppc64le",
    22: "s390x",
    40: "arm",
    62: "amd64",
    183: "arm64",
    243: "riscv64",
    258: "loong64",
}
_USUAL_PROGRAMS: Final = ("bin/sh", "bin/busybox", "usr/bin/env", "bin/bash", "usr/bin/python3")
_MAX_PROGRAMS: Final = 200


@dataclass(frozen=True, slots=True)
class Import:
    """One import request."""

    path: Path
    name: str | None = None
    platform: str | None = None
    progress: OnProgress | None = None

    def progress_of(self, step: str, total: int | None) -> Callable[[int], None]:
        """Return a callback for the number of bytes done in one step; it may raise, which ends
        the import.
        """

        def so_far(done: int) -> None:
            if self.progress is not None:
                self.progress(ImageProgress(step, done, total))

        return so_far


def import_file(store: LayerStore, order: Import) -> Sequence[StoredImage]:
    """Import every image of the file. `name` replaces the names in it, and requires a single
    image.
    """
    if order.name is not None:
        new_name(order.name)
    wanted = wanted_platform(order.platform)
    with store.working(), _opened(order.path) as fd:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            members = DirectoryMembers(fd)
            if not is_oci_layout(members):
                raise InvalidImage(
                    f"{order.path} is a directory but not an OCI layout",
                    hint="give an archive, or a directory with oci-layout and index.json in it",
                )
            return _take_all(store, order, oci_images(members, wanted), "oci-layout")
        recent = store.root / "recent"
        key = fingerprint(fd, str(wanted))
        images = _known(store, order, recall(recent, key))
        if images is not None:
            return images
        stored, names = _import_tar(store, order, fd)
        # A file that changed while it was read will not be recognised again.
        if fingerprint(fd, str(wanted)) == key:
            rows = [
                Remembered(image.id, tuple(own)) for image, own in zip(stored, names, strict=True)
            ]
            # Without the cache only the next import is slower.
            with suppress(OSError):
                remember(recent, key, rows)
        return stored


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        # Checked before it is opened: opening a FIFO or a device may block or have side effects.
        kind = path.stat().st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise InvalidImage(f"{path} is not a regular file", hint="write the archive to a file")
        if stat.S_ISDIR(kind):
            fd = open_directory(path)
        else:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise FileTrouble(
            f"reading {path} failed: {reason}", hint="check that the file exists and is readable"
        ) from exc
    try:
        yield fd
    finally:
        os.close(fd)


def _known(
    store: LayerStore, order: Import, remembered: Sequence[Remembered]
) -> Sequence[StoredImage] | None:
    """Return the images of a file imported before, with new names; None if some are gone."""
    images = [store.lookup(entry.id) for entry in remembered]
    if not images or any(image is None for image in images):
        return None
    if not all(store.has_layer(layer) for image in images if image for layer in image.layers):
        return None
    names = _names(order, [entry.names for entry in remembered])
    return [
        store.put_image(image.layers, image.config, own, source=image.source)
        for image, own in zip(images, names, strict=True)
        if image is not None
    ]


def _import_tar(
    store: LayerStore, order: Import, fd: int
) -> tuple[Sequence[StoredImage], list[Sequence[str]]]:
    if kind_of(os.pread(fd, BLOCK, 0)) == "plain":
        return _import_index(store, order, fd, _index(Seeking(fd)), fd)
    # A docker archive has its table of contents anywhere, so a compressed one is first written out;
    # a root file system is recognised at once and needs no copy.
    with translated("decompress an archive"), store.place() as place:
        copy = place / "archive"
        index = _laid_out(order, fd, copy)
        if index is None:
            copy.unlink()
            return _import_index(store, order, fd, None, fd)
        plain = os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _import_index(store, order, plain, index, fd)
        finally:
            os.close(plain)


def _laid_out(order: Import, fd: int, copy: Path) -> list[Member] | None:
    with copy.open("xb") as out:
        pieces = uncompressed(whole(fd)).pieces
        with closing(pieces):
            stream = Keeping(pieces, out, order.progress_of("decompressing", None))
            index = _index(stream)
            if index is not None:
                stream.drain()
    return index


def _index(stream: Stream) -> list[Member] | None:
    """Return every member; None as soon as one shows that this is a root file system."""
    members: list[Member] = []
    for member in tar_members(stream):
        if member.name.partition("/")[0] in _ROOT_NAMES:
            return None
        members.append(member)
    if not any(member.name not in ("", ".") for member in members):
        raise InvalidImage("the archive is empty", hint="an image must contain at least one file")
    return members


def _import_index(
    store: LayerStore, order: Import, fd: int, index: Sequence[Member] | None, original: int
) -> tuple[Sequence[StoredImage], list[Sequence[str]]]:
    members: Members = TarMembers(fd, index or ())
    if is_docker_archive(members):
        images, source = docker_images(members), "docker-archive"
    elif is_oci_layout(members):
        images, source = oci_images(members, wanted_platform(order.platform)), "oci-layout"
    else:
        return [_take_rootfs(store, order, original)], [()]
    return _take_all(store, order, images, source), [image.names for image in images]


def _take_all(
    store: LayerStore, order: Import, images: Sequence[FoundImage], source: str
) -> Sequence[StoredImage]:
    names = _names(order, [image.names for image in images])
    return [
        _take(store, order, image, own, source) for image, own in zip(images, names, strict=True)
    ]


def _take(
    store: LayerStore, order: Import, image: FoundImage, names: Sequence[str], source: str
) -> StoredImage:
    for number, layer in enumerate(image.layers, 1):
        if store.has_layer(layer.diff_id):
            continue
        step = f"layer {number}/{len(image.layers)}"
        with layer.open() as file:
            store.add_layer(
                file,
                expect_digest=layer.digest,
                expect_diff_id=layer.diff_id,
                progress=order.progress_of(step, layer.size),
            )
    diff_ids = [layer.diff_id for layer in image.layers]
    return store.put_image(diff_ids, image.config, names, source=source)


def _take_rootfs(store: LayerStore, order: Import, fd: int) -> StoredImage:
    names = _names(order, [()])[0]
    size = os.fstat(fd).st_size
    layer = store.add_layer(whole(fd), progress=order.progress_of("layer 1/1", size))
    config = ImageConfig(architecture=architecture_of([store.tree(layer.diff_id)]))
    return store.put_image([layer.diff_id], config, names, source="rootfs")


def _names(order: Import, image_names: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return the future name of each image, known before anything is unpacked."""
    if order.name is not None:
        if len(image_names) != 1:
            raise InvalidImage(
                f"{order.path} holds {len(image_names)} images, but only one name was given",
                hint="omit the name to use those in the archive",
            )
        return [[order.name]]
    if not all(image_names):
        raise InvalidImage(
            f"{order.path} does not contain an image name",
            hint="give it a name (--name on the command line)",
        )
    if sum(map(len, image_names)) > MAX_NAMES:
        raise InvalidImage(
            f"{order.path} names its images more than {MAX_NAMES} times",
            hint="give it one name (--name on the command line)",
        )
    for own in image_names:
        for name in own:
            new_name(name)
    return [*image_names]


def architecture_of(trees: Sequence[str]) -> str:
    """Return the architecture of a tree's programs in image spelling; empty if none shows it."""
    for path in (*_USUAL_PROGRAMS, *_programs(trees)):
        head = read_merged(trees, path, 20)
        if head is not None and len(head) == 20 and head.startswith(b"\x7fELF"):
            code = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
            return _ELF_MACHINES.get(code, "")
    return ""


def _programs(trees: Sequence[str]) -> Iterator[str]:
    """Return the names of some files in program directories: an image may contain only its own."""
    for tree in reversed(trees):
        for directory in ("", "bin", "usr/bin", "usr/local/bin", "sbin", "app"):
            where = os.path.join(tree, directory)
            # Not through a link, which could lead anywhere on this machine.
            if directory and os.path.realpath(where) != os.path.join(
                os.path.realpath(tree), directory
            ):
                continue
            try:
                names = sorted(os.listdir(where))[:_MAX_PROGRAMS]
            except OSError:
                continue
            yield from (f"{directory}/{name}" for name in names)
