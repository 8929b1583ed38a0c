"""Images for tests: real ones, built once per checkout and kept below build/test-images.

A builder answers the path of a file that is there; two runs at once build it once. Nothing here
imports the code under test: docker archives and OCI layouts are written by hand, so that they are
what other tools write and not what we read. `store_with` is the exception, for suites that need
a store with images in it.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sandkasten_runtime.images.layers.image_store import LayerStore

# The last name changes with what is in them, so that no checkout goes on with old ones.
CACHE = Path(__file__).resolve().parents[1] / "build" / "test-images" / "2"
SUITE = "bookworm"
BUSYBOX = Path("/bin/busybox")
# Of busybox's applets, those a shell session and our own suites use.
APPLETS = """
    sh ash awk base64 basename cat chmod chown cp cut date dd df dirname du echo env expr false
    find grep head hostname id kill less ln ls md5sum mkdir mkfifo mknod mktemp mount mv nc
    nproc od paste printenv printf ps pwd readlink realpath rm rmdir sed seq setsid sha256sum
    sleep sort stat stty sync tail tar tee test timeout top touch tr true truncate tty uname
    uniq unlink uptime usleep vi wc which whoami xargs yes
""".split()  # noqa: SIM905  (a list of eighty quoted names reads worse)
_PROG = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "--exit")) return atoi(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "--sleep")) { sleep(atoi(argv[2])); return 0; }
    for (int i = 1; i < argc; i++) printf("%s%s", i > 1 ? " " : "", argv[i]);
    puts("");
    return 0;
}
"""
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
FOREIGN = "arm64" if MACHINE == "amd64" else "amd64"


@contextmanager
def _held(name: str) -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    fd = os.open(CACHE / f".{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """Return the file of that name, built on first use."""
    path = CACHE / name
    if path.exists():
        return path
    with _held(name):
        if not path.exists():
            making = CACHE / f".{name}.making"
            making.unlink(missing_ok=True)
            build(making)
            making.rename(path)
    return path


# ---- root file systems


def debian_tar() -> Path:
    """A small Debian with bash and Python, from the package sources of this machine."""
    return cached("debian.tar", _bootstrap)


def _bootstrap(target: Path) -> None:
    mmdebstrap("--include=python3", "--format=tar", SUITE, str(target), *_apt_sources())


def mmdebstrap(*words: str) -> None:
    """Run mmdebstrap with its files in memory: it waits for the disk after every package."""
    CACHE.mkdir(parents=True, exist_ok=True)
    in_memory = 'mount -t tmpfs -o mode=1777 tmpfs "$TMPDIR"; exec mmdebstrap --quiet "$@"'
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        subprocess.run(
            [
                "unshare",
                "--mount",
                "sh",
                "-c",
                in_memory,
                "sh",
                "--quiet",
                "--variant=minbase",
                *words,
            ],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": folder, "SOURCE_DATE_EPOCH": "1700000000"},
        )


def _apt_sources() -> list[str]:
    apt = Path("/etc/apt")
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    wanted = re.compile(rf"(?:^|\s){SUITE}(?:\s|$)", re.MULTILINE)
    return [
        str(file)
        for file in files
        if file.suffix in (".list", ".sources")
        and file.is_file()
        and wanted.search(file.read_text())
    ]


def busybox_tar() -> Path:
    """One static program and links to it; no /tmp, /proc, /dev, /etc."""

    def build(target: Path) -> None:
        with tarfile.open(target, "w") as tar:
            _directory(tar, "bin")
            _program(tar, "bin/busybox")
            for applet in APPLETS:
                _link(tar, f"bin/{applet}", "busybox")

    return cached("busybox.tar", build)


def empty_tar() -> Path:
    """One static program, /prog, and no shell.

    It prints its words, or with `--exit N` ends with N, or with `--sleep N` sleeps.
    """

    def build(target: Path) -> None:
        program = target.with_suffix(".prog")
        subprocess.run(
            ["gcc", "-static", "-Os", "-x", "c", "-", "-o", str(program)],
            input=_PROG.encode(),
            check=True,
        )
        with tarfile.open(target, "w") as tar:
            _file(tar, "prog", program.read_bytes())
        program.unlink()

    return cached("empty.tar", build)


def odd_tar() -> Path:
    """Busybox whose /dev, /proc, /tmp and /etc/passwd are links to places of the host."""

    def build(target: Path) -> None:
        with tarfile.open(target, "w") as tar:
            _directory(tar, "bin")
            _program(tar, "bin/busybox")
            for applet in APPLETS:
                _link(tar, f"bin/{applet}", "busybox")
            for name in ("dev", "proc", "tmp", "sys", "run"):
                _link(tar, name, "/var/tmp")
            _directory(tar, "etc")
            _link(tar, "etc/passwd", "../../../../../../etc/passwd")
            _link(tar, "workspace", "/")

    return cached("odd.tar", build)


def _directory(tar: tarfile.TarFile, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE
    info.mode = 0o755
    tar.addfile(info)


def _program(tar: tarfile.TarFile, name: str) -> None:
    _file(tar, name, BUSYBOX.read_bytes())


def _file(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o755
    tar.addfile(info, io.BytesIO(data))


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type = tarfile.SYMTYPE
    info.linkname = target
    tar.addfile(info)


# ---- images, written as other tools write them


@dataclass(frozen=True)
class Sketch:
    """An image to be written: layers as uncompressed tars, lowest first."""

    layers: Sequence[bytes]
    names: Sequence[str] = ("sketch:1",)
    architecture: str = MACHINE
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def diff_ids(self) -> list[str]:
        return [digest(layer) for layer in self.layers]

    def configuration(self) -> bytes:
        return json.dumps(
            {
                "architecture": self.architecture,
                "os": "linux",
                "created": "2024-05-01T00:00:00Z",
                "config": {"Env": ["PATH=/bin", "A=1"], "Cmd": ["sh"], **self.config},
                "rootfs": {"type": "layers", "diff_ids": self.diff_ids},
                "history": [{"created_by": "sketch"} for _ in self.layers],
            }
        ).encode()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layer(entries: Mapping[str, bytes | None | str]) -> bytes:
    """A tar: bytes are a file, None a directory, a text a symlink."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in entries.items():
            if content is None:
                _directory(tar, name)
            elif isinstance(content, str):
                _link(tar, name, content)
            else:
                info = tarfile.TarInfo(name)
                info.size, info.mode, info.mtime = len(content), 0o644, 1_700_000_000
                tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def sketch(**changes: Any) -> Sketch:
    """Three small layers with a whiteout, an opaque directory and a link."""
    layers = [
        layer({"etc": None, "etc/passwd": b"root:x:0:0::/root:/bin/sh\n", "old": b"1", "d": None,
               "d/below": b"2"}),
        layer({".wh.old": b"", "d": None, "d/.wh..wh..opq": b"", "d/above": b"3"}),
        layer({"new": b"4", "link": "new"}),
    ]  # fmt: skip
    return Sketch(**{"layers": layers, **changes})


def members_tar(members: Mapping[str, bytes]) -> bytes:
    return layer(members)


def docker_members(image: Sketch) -> dict[str, bytes]:
    """As docker writes them: layers first, the table of contents last."""
    config = image.configuration()
    name = f"{digest(config)[7:]}.json"
    layers = {f"{digest(one)[7:]}/layer.tar": one for one in image.layers}
    manifest = [
        {
            "Config": name,
            "RepoTags": list(image.names),
            "Layers": [f"{one[7:]}/layer.tar" for one in image.diff_ids],
        }
    ]
    return {**layers, name: config, "manifest.json": json.dumps(manifest).encode()}


def oci_members(image: Sketch, *, compress: bool = True) -> dict[str, bytes]:
    """As skopeo writes them: one manifest, gzipped layers, the name as an annotation."""
    blobs: dict[str, bytes] = {}
    manifest = _oci_manifest(image, blobs, compress=compress)
    manifests = [
        {**manifest, "annotations": {"org.opencontainers.image.ref.name": name}}
        for name in image.names
    ] or [manifest]
    return _oci_layout(manifests, blobs)


def oci_platforms(*images: Sketch, nested: bool = True) -> dict[str, bytes]:
    """Several platforms of one image, behind an index of their own or at the top."""
    blobs: dict[str, bytes] = {}
    manifests = [_oci_manifest(image, blobs) for image in images]
    if nested:
        kind = "application/vnd.oci.image.index.v1+json"
        index = json.dumps({"schemaVersion": 2, "manifests": manifests}).encode()
        manifests = [_blob(index, kind, blobs)]
    return _oci_layout(manifests, blobs)


def _oci_layout(manifests: Sequence[Any], blobs: Mapping[str, bytes]) -> dict[str, bytes]:
    return {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": list(manifests)}).encode(),
        **blobs,
    }


def _oci_manifest(image: Sketch, blobs: dict[str, bytes], *, compress: bool = True) -> Any:
    kind = "application/vnd.oci.image.layer.v1.tar" + ("+gzip" if compress else "")
    packed = [gzip.compress(one, mtime=0) if compress else one for one in image.layers]
    manifest = {
        "schemaVersion": 2,
        "config": _blob(image.configuration(), "application/vnd.oci.image.config.v1+json", blobs),
        "layers": [_blob(one, kind, blobs) for one in packed],
    }
    found = _blob(
        json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json", blobs
    )
    return {**found, "platform": {"os": "linux", "architecture": image.architecture}}


def _blob(data: bytes, kind: str, blobs: dict[str, bytes]) -> dict[str, Any]:
    blobs[f"blobs/sha256/{digest(data)[7:]}"] = data
    return {"mediaType": kind, "digest": digest(data), "size": len(data)}


def write_tar(path: Path, members: Mapping[str, bytes]) -> Path:
    path.write_bytes(members_tar(members))
    return path


def write_directory(path: Path, members: Mapping[str, bytes]) -> Path:
    for name, content in members.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def compressed(path: Path, kind: str) -> Path:
    """The file beside itself, compressed with gzip, bzip2, xz or zstd."""
    suffix = {"gzip": ".gz", "bzip2": ".bz2", "xz": ".xz", "zstd": ".zst"}[kind]
    target = path.with_name(path.name + suffix)
    with target.open("wb") as out:
        subprocess.run([kind, "-1", "-c", str(path)], stdout=out, check=True)
    return target


def rootfs_sketch(tar: Path, **changes: Any) -> Sketch:
    """An image of one layer, which is a tar of a root file system."""
    return Sketch(**{"layers": [tar.read_bytes()], "names": (f"{tar.stem}:1",), **changes})


def docker_archive(tar: Path) -> Path:
    """The root file system as `docker save` would write it."""
    return cached(
        f"{tar.stem}.docker.tar",
        lambda target: _write(target, docker_members(rootfs_sketch(tar))),
    )


def oci_archive(tar: Path) -> Path:
    """The root file system as a tar of an OCI layout."""
    return cached(
        f"{tar.stem}.oci.tar", lambda target: _write(target, oci_members(rootfs_sketch(tar)))
    )


def foreign_archive() -> Path:
    """A docker archive whose configuration names another machine."""
    image = rootfs_sketch(busybox_tar(), architecture=FOREIGN, names=("foreign:1",))
    return cached("foreign.docker.tar", lambda target: _write(target, docker_members(image)))


def _write(path: Path, members: Mapping[str, bytes]) -> None:
    path.write_bytes(members_tar(members))


# ---- stores


def store_with(root: Path, *archives: Path | tuple[str, Path]) -> LayerStore:
    """A store below `root` with these imported; a root file system is called by its stem."""
    from sandkasten_runtime.images.archives.archive_import import Import, import_file
    from sandkasten_runtime.images.layers.image_store import LayerStore

    store = LayerStore(root)
    for one in archives:
        name, path = one if isinstance(one, tuple) else (one.name.partition(".")[0], one)
        import_file(store, Import(path, name=name))
    return store


def tree_of(root: Path) -> dict[str, tuple[Any, ...]]:
    """Everything below a directory, comparable: kind, mode, owner, size or target, content."""
    found: dict[str, tuple[Any, ...]] = {}
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(directory) / name
            seen = path.lstat()
            content: object = None
            if path.is_symlink():
                content = os.readlink(path)
            elif path.is_file():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            attributes = () if path.is_symlink() else tuple(sorted(os.listxattr(path)))
            found[str(path.relative_to(root))] = (
                oct(seen.st_mode), seen.st_uid, seen.st_gid, seen.st_rdev, content, attributes,
            )  # fmt: skip
    return found


def has(*programs: str) -> bool:
    return all(shutil.which(program) for program in programs)


def skopeo(*words: str) -> bytes:
    """Run skopeo and return its output. Root's cache of it has a fixed place: /var/lib/containers,
    which is left out of a run by a mount that only this process sees.
    """
    apart = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs cache /var/lib && exec "$@"', "sh")
    done = subprocess.run(
        [*(apart if os.geteuid() == 0 else ()), "skopeo", *words],
        capture_output=True,
        check=True,
        timeout=60,
    )
    return done.stdout
