"""Remember imported files, so that a second import need not read them again.

A file is recognised by its path, size, times and first bytes; a changed file is read again. An
entry is only used while its images still exist.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Final

from sandkasten.disk.atomic_file import write_file
from sandkasten.disk.small_file import read_json_object
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.images.canonical_json import canonical_json
from sandkasten_runtime.images.image_config import DIGEST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

HEAD_BYTES: Final = 64 * 1024
MOST_REMEMBERED: Final = 200


@dataclass(frozen=True, slots=True)
class Remembered:
    id: str
    names: tuple[str, ...]
    """Names given by the archive itself."""


def fingerprint(fd: int, platform: str) -> str:
    status = os.fstat(fd)
    parts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    head = hashlib.sha256(os.pread(fd, HEAD_BYTES, 0)).hexdigest()
    return hashlib.sha256(canonical_json([*parts, head, platform])).hexdigest()


def recall(directory: Path, key: str) -> list[Remembered]:
    row = read_json_object(directory / key)
    images = row.get("images") if row is not None else None
    remembered = []
    for image in images if isinstance(images, list) else ():
        the_id, names = image.get("id"), image.get("names")
        if not isinstance(the_id, str) or not DIGEST.match(the_id) or not isinstance(names, list):
            return []
        remembered.append(Remembered(the_id, tuple(str(name) for name in names)))
    return remembered


def remember(directory: Path, key: str, images: Sequence[Remembered]) -> None:
    rows = [{"id": image.id, "names": list(image.names)} for image in images]
    write_file(directory / key, canonical_json({"images": rows}))
    files = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for path in files[: max(0, len(files) - MOST_REMEMBERED)]:
        path.unlink(missing_ok=True)


def forget_gone(directory: Path, there: AbstractSet[str]) -> None:
    """Drop the entries of files whose images no longer exist."""
    for name in os.listdir(directory):
        remembered = recall(directory, name)
        if not remembered or not {image.id for image in remembered} <= there:
            (directory / name).unlink(missing_ok=True)
