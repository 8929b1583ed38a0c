"""Importing an image, held against plain tar; a sandbox on one, held against the host image."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten import Images, Sandbox

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.samples import Samples

IMPORT, AGAIN, CREATE = "import of an image", "second import of it", "create on an image"
# What the promise speaks of: some 200 MB in some ten thousand files.
_SOURCES = ("/usr/lib", "/usr/bin", "/usr/share")
_MOST_BYTES = 200_000_000
_LARGEST_FILE = 20_000_000


def measure(samples: Samples, plan: Plan, scratch: Path) -> None:
    archive = _archive(scratch / "image.tar")
    # In memory where there is some: a shared disk takes anything from one to four times as long
    # for the same work, which would drown both peers.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_mount() else scratch) as place:
        for number in range(plan.rounds // 2):
            _import(samples, archive, Path(place) / str(number), number)
    home = scratch / "images"
    Images(data_dir=home).import_archive(str(archive), name="bench")
    _create(samples, plan, home)


def _import(samples: Samples, archive: Path, place: Path, number: int) -> None:
    """Each round into directories of its own, the peers taking turns to be first."""
    plain = place / "plain"
    plain.mkdir(parents=True)
    images = Images(data_dir=place / "images")
    for peer in ("sandkasten", "tar") if number % 2 else ("tar", "sandkasten"):
        os.sync()
        with samples.timed(IMPORT, peer):
            if peer == "tar":
                subprocess.run(["tar", "-xpf", archive, "-C", plain], check=True)
            else:
                images.import_archive(str(archive), name="bench")
    with samples.timed(AGAIN, "sandkasten"):
        images.import_archive(str(archive), name="bench")
    shutil.rmtree(place)


def _create(samples: Samples, plan: Plan, home: Path) -> None:
    """Ours on an image against ours on the host image, in turns."""
    for image in ("bench", "host"):
        Sandbox(image, data_dir=home).close()
    deadline = time.monotonic() + plan.section_s
    for number in range(plan.rounds):
        kinds = [("sandkasten", "bench"), ("host image", "host")]
        for peer, image in kinds if number % 2 else kinds[::-1]:
            with samples.timed(CREATE, peer):
                box = Sandbox(image, data_dir=home)
            box.close()
        if time.monotonic() > deadline:
            return


def _archive(path: Path) -> Path:
    """A root file system of this machine's own programs, as large as the promise says."""
    remaining = _MOST_BYTES
    with tarfile.open(path, "w") as tar:
        for name in ("bin", "lib", "lib64", "sbin"):
            if os.path.islink(f"/{name}"):
                tar.add(f"/{name}", name, recursive=False)
        for source in _SOURCES:
            for directory, _, files in sorted(os.walk(source)):
                for name in sorted(files):
                    full = os.path.join(directory, name)
                    size = os.lstat(full).st_size
                    if size < _LARGEST_FILE and remaining > size:
                        tar.add(full, full.lstrip("/"), recursive=False)
                        remaining -= size
    return path
