"""Layer trees for tests of the backend, made without the image store.

A Debian root is unpacked once and kept below build/; a busybox root is a few links. `skeleton` is
the layer that the store adds to every image.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.model.images.resolved_image import Image
from tests import imagekit
from tests.platform_choice import LONG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CACHE = Path(__file__).resolve().parents[2] / "build" / "test-images"
PACKAGES = ("gcc", "libc6-dev", "nodejs", "python3")
BUSYBOX = shutil.which("busybox") or "/bin/busybox"


def image(name: str, *layers: Path, env: Mapping[str, str] | None = None) -> Image:
    return Image(name, "layers", tuple(str(layer) for layer in layers), f"sha256:{name}", env or {})


def debian() -> Path:
    """A complete Debian, in `make test-long` with a C compiler and node; unpacked once."""
    archive = _debian_with_compiler() if LONG else imagekit.debian_tar()
    tree = CACHE / archive.stem
    if tree.is_dir():
        return tree
    making = CACHE / f"making-{os.getpid()}"
    making.mkdir(parents=True)
    # Devices are not part of a layer, and set-id bits are cleared by the importer.
    run("tar", "--numeric-owner", "-xpf", str(archive), "-C", str(making), "--exclude=./dev/*")
    run("find", str(making), "-xdev", "-perm", "/6000", "-type", "f", "-exec", "chmod", "a-s",
        "{}", "+")  # fmt: skip
    try:
        making.rename(tree)
    except OSError:
        shutil.rmtree(making)
    return tree


def _debian_with_compiler() -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:12]
    archive = CACHE / f"debian-{key}.tar"
    if not archive.exists():
        unfinished = archive.with_suffix(f".{os.getpid()}.tar")
        imagekit.mmdebstrap(f"--include={','.join(PACKAGES)}", "bookworm", str(unfinished))
        unfinished.rename(archive)
    return archive


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=600)


def busybox(at: Path, *, applets: Sequence[str] | None = None) -> Path:
    """/bin/busybox and its applets and nothing else; may be called twice."""
    if at.exists():
        return at
    at.mkdir(parents=True)
    (at / "bin").mkdir()
    shutil.copy(BUSYBOX, at / "bin" / "busybox")
    names = subprocess.run(
        [BUSYBOX, "--list"], capture_output=True, text=True, check=True
    ).stdout.split()
    for name in names if applets is None else applets:
        if name != "busybox":
            (at / "bin" / name).symlink_to("busybox")
    return at


def skeleton(at: Path) -> Path:
    """Real directories for the mount points, which hide what the image has in their place."""
    if at.exists():
        return at
    for name in (
        *("proc", "dev", "tmp", "run", "workspace", "home", "home/sandbox", "etc", "var", "sys"),
        *("run/sandkasten",),
    ):
        (at / name).mkdir(parents=True, exist_ok=True)
    (at / "tmp").chmod(0o1777)
    (at / "work").symlink_to("workspace")
    passwd = "root:x:0:0:root:/root:/bin/sh\n"
    group = "root:x:0:\n"
    for name, number in (("sandbox", 1000), ("runner", 999)):
        passwd += f"{name}:x:{number}:{number}:{name}:/home/sandbox:/bin/sh\n"
        group += f"{name}:x:{number}:\n"
    for name, text in {
        "passwd": passwd,
        "group": group,
        "hosts": "127.0.0.1 localhost sandbox\n",
        "hostname": "sandbox\n",
        "resolv.conf": "",
    }.items():
        (at / "etc" / name).write_text(text)
    return at


def debian_skeleton(at: Path) -> Path:
    """As the store builds it: the image's own users, and ours."""
    if at.exists():
        return at
    skeleton(at)
    for name in ("passwd", "group"):
        own = (debian() / "etc" / name).read_text()
        ours = (at / "etc" / name).read_text().splitlines(keepends=True)[1:]
        (at / "etc" / name).write_text(own + "".join(ours))
    return at
