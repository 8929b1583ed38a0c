"""Unpacking layers: the same tree as GNU tar, digests, and failures."""

from __future__ import annotations

import bz2
import functools
import gzip
import hashlib
import io
import lzma
import os
import shutil
import stat
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import BackendUnavailable, InternalError, InvalidImage, QuotaExceeded
from sandkasten_runtime.images.archives import compression
from sandkasten_runtime.images.layers import layer_unpack
from sandkasten_runtime.images.layers.layer_unpack import Caps, Unpacked, unpack_layer
from tests.images.tars import END, directory, file, header, old_sparse, pax, symlink, tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.root

KiB, MiB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    kind: str
    mode: str
    owner: tuple[int, int]
    content: str
    mtime_ns: int


def entries(root: Path) -> dict[bytes, Entry]:
    found: dict[bytes, Entry] = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in [*folders, *files, b"."]:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            content = ""
            if stat.S_ISREG(info.st_mode):
                content = hashlib.sha256(Path(os.fsdecode(path)).read_bytes()).hexdigest()
            elif stat.S_ISLNK(info.st_mode):
                content = repr(os.readlink(path))
            found[os.path.relpath(path, os.fsencode(root))] = Entry(
                kind=stat.filemode(info.st_mode)[0],
                mode=oct(stat.S_IMODE(info.st_mode) & ~0o6000),
                owner=(info.st_uid, info.st_gid),
                content=content,
                mtime_ns=info.st_mtime_ns,
            )
    return found


def linked(root: Path) -> list[list[str]]:
    """Return groups of names that are one file."""
    groups: dict[int, list[str]] = {}
    for path in sorted(root.rglob("*")):
        if not path.is_dir() and path.lstat().st_nlink > 1:
            groups.setdefault(path.lstat().st_ino, []).append(str(path.relative_to(root)))
    return sorted(groups.values())


@pytest.fixture
def target(tmp_path: Path) -> Path:
    made = tmp_path / "target"
    made.mkdir()
    return made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tree with one of everything an image has."""
    root = tmp_path / "source"
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "usr" / "bin" / "tool").write_bytes(os.urandom(300_000))
    (root / "usr" / "bin" / "tool").chmod(0o4755)
    os.link(root / "usr" / "bin" / "tool", root / "usr" / "bin" / "same-tool")
    (root / "bin").symlink_to("usr/bin")
    (root / "usr" / "bin" / "dangling").symlink_to("/nowhere/" + "x" * 150)
    os.link(root / "usr" / "bin" / "dangling", root / "usr" / "dangling-too", follow_symlinks=False)
    (root / "etc").mkdir(mode=0o750)
    (root / "etc" / "shadow").write_text("secret")
    (root / "etc" / "shadow").chmod(0o640)
    os.chown(root / "etc" / "shadow", 0, 42)
    (root / "home" / "u").mkdir(parents=True)
    os.chown(root / "home" / "u", 1000, 1001)
    (root / "home" / "u" / ("long " * 30)).write_text("a long name")
    (root / "home" / "u" / ("d" * 200) / ("e" * 200)).mkdir(parents=True)
    (root / "home" / "u" / ("d" * 200) / ("e" * 200) / "f").write_text("deep")
    (root / "home" / "u" / "ünï").write_text("text")
    (root / "home" / "u" / "link").symlink_to("ünï")
    os.lchown(root / "home" / "u" / "link", 1000, 1001)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    (root / "empty").touch()
    (root / "closed").mkdir()
    (root / "closed" / "f").write_text("behind a closed door")
    (root / "closed").chmod(0o000)
    with (root / "sparse").open("wb") as holes:
        for at in range(40):
            holes.seek(at * 256 * KiB)
            holes.write(b"%d" % at)
        holes.truncate(16 * MiB)
    with (root / "all-hole").open("wb") as holes:
        holes.truncate(3 * MiB)
    for number, path in enumerate(sorted(root.rglob("*"), reverse=True)):
        os.utime(
            path, ns=(0, 1_500_000_000_000_000_000 + number * 1_000_000_000), follow_symlinks=False
        )
    os.utime(root, (0, 1_400_000_000))
    return root


FORMATS = {
    "gnu": ["--format=gnu"],
    "gnu, sparse": ["--format=gnu", "--sparse"],
    "pax": ["--format=pax"],
    "pax, sparse 0.0": ["--format=pax", "--sparse", "--sparse-version=0.0"],
    "pax, sparse 0.1": ["--format=pax", "--sparse", "--sparse-version=0.1"],
    "pax, sparse 1.0": ["--format=pax", "--sparse", "--sparse-version=1.0"],
}


@pytest.mark.promise("P48")
@pytest.mark.parametrize("form", FORMATS)
def test_the_tree_is_the_one_gnu_tar_makes(form: str, source: Path, target: Path, tmp_path: Path):
    packed, expected = tmp_path / "layer.tar", tmp_path / "expected"
    expected.mkdir()
    subprocess.run(["tar", *FORMATS[form], "-cf", packed, "-C", source, "."], check=True)
    subprocess.run(["tar", "-xp", "--numeric-owner", "-f", packed, "-C", expected], check=True)
    with packed.open("rb") as layer:
        done = unpack_layer(layer, target)
    assert entries(target) == entries(expected)
    assert linked(target) == linked(expected) != []
    assert entries(target)[b"usr/bin/tool"].mode == "0o755"
    assert not (target / "usr" / "bin" / "tool").stat().st_mode & 0o6000
    assert done.files == len(entries(source))
    if "sparse" in form:
        assert (target / "sparse").stat().st_blocks * 512 < MiB
        assert (target / "all-hole").stat().st_blocks == 0
        assert done.bytes < 2 * MiB


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_python_come_out_the_same(
    form: int, source: Path, target: Path, tmp_path: Path
):
    if form == tarfile.USTAR_FORMAT:
        # Too long for it.
        shutil.rmtree(source / "home" / "u" / ("d" * 200))
        (source / "home" / "u" / ("long " * 30)).unlink()
        (source / "usr" / "bin" / "dangling").unlink()
        (source / "usr" / "dangling-too").unlink()
    packed, expected = tmp_path / "layer.tar", tmp_path / "expected"
    expected.mkdir()
    with tarfile.open(packed, "w", format=form) as archive:
        archive.add(source, ".")
    subprocess.run(["tar", "-xp", "--numeric-owner", "-f", packed, "-C", expected], check=True)
    with packed.open("rb") as layer:
        unpack_layer(layer, target)
    assert entries(target) == entries(expected)
    assert linked(target) == linked(expected)


def test_old_sparse_files_with_many_pieces_are_unpacked(target: Path):
    extents = [(at * 8192, 512) for at in range(60)]
    data = b"".join(bytes([at]) * 512 for at in range(60))
    content = bytearray(500_000)
    for at, (offset, length) in enumerate(extents):
        content[offset : offset + length] = bytes([at]) * 512
    unpack_layer(io.BytesIO(old_sparse(b"s", data, extents, 500_000) + END), target)
    assert (target / "s").read_bytes() == content


def test_directory_timestamps_survive_entries_created_later(target: Path):
    archive = (
        directory(b"a", mtime=1000)
        + directory(b"a/b", mtime=2000)
        + file(b"a/b/f", mtime=3000)
        + file(b"z", mtime=4000)
        # Back again, twice, and once without going down.
        + file(b"a/b/g", mtime=5000)
        + symlink(b"a/l", b"b", mtime=6000)
        + file(b"a/.wh.gone")
        + file(b"implied/f", mtime=7000)
        + directory(b".", mtime=8000)
        + file(b"y", mtime=9000)
        + END
    )
    unpack_layer(io.BytesIO(archive), target)
    times = {str(p.relative_to(target)): p.lstat().st_mtime for p in target.rglob("*")}
    times["."] = target.stat().st_mtime
    del times["a/gone"]
    assert times == {
        ".": 8000,
        "a": 1000,
        "a/b": 2000,
        "a/b/f": 3000,
        "a/b/g": 5000,
        "a/l": 6000,
        "implied": 0,
        "implied/f": 7000,
        "y": 9000,
        "z": 4000,
    }


def test_a_layer_without_a_root_entry_gets_a_readable_root(target: Path):
    target.chmod(0o2700)
    unpack_layer(io.BytesIO(file(b"d/f", mode=0o600) + END), target)
    assert oct(stat.S_IMODE(target.stat().st_mode)) == "0o755"
    assert oct(stat.S_IMODE((target / "d").stat().st_mode)) == "0o755"


def test_pax_fields_override_the_header(target: Path):
    words = [
        (b"path", b"p\xc3\xa4th"),
        (b"size", b"5"),
        (b"mtime", b"12.25"),
        (b"uid", b"1000"),
        (b"gid", b"1001"),
    ]
    globally = pax((b"mtime", b"99.5"), (b"uid", b"7"), flag=b"g")
    unpack_layer(
        io.BytesIO(globally + pax(*words) + file(b"x", b"hello", size=0) + file(b"y") + END), target
    )
    assert tree(target) == {"päth": "file hello", "y": "file "}
    found = (target / "päth").stat()
    assert (found.st_uid, found.st_gid, found.st_mtime) == (1000, 1001, 12.25)
    assert ((target / "y").stat().st_uid, (target / "y").stat().st_mtime) == (7, 99.5)


def zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout


def several(data: bytes) -> bytes:
    return gzip.compress(data[:700]) + gzip.compress(b"") + gzip.compress(data[700:])


PLAIN = file(b"f", os.urandom(3 * MiB)) + directory(b"d") + END
# Compressing at the usual level would take longer than all of these tests.
xz = functools.partial(lzma.compress, preset=0)
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": functools.partial(gzip.compress, compresslevel=1),
    "gzip in several members": several,
    "bzip2": bz2.compress,
    "bzip2 in two streams": lambda data: bz2.compress(data[:9]) + bz2.compress(data[9:]),
    "xz": xz,
    "xz in two streams": lambda d: xz(d[:9]) + bytes(4) + xz(d[9:]),
    "zstd": zstd,
    "zstd behind a frame to skip": lambda d: b"\x50\x2a\x4d\x18\4\0\0\0abcd" + zstd(d),
}


@functools.cache
def compressed(way: str) -> bytes:
    return COMPRESSIONS[way](PLAIN)


@pytest.mark.parametrize("way", COMPRESSIONS)
def test_unpacking_returns_digests_and_sizes(way: str, target: Path):
    blob = compressed(way)
    seen: list[int] = []
    done = unpack_layer(io.BytesIO(blob), target, progress=seen.append)
    assert done == Unpacked(
        diff_id="sha256:" + hashlib.sha256(PLAIN).hexdigest(),
        blob_digest="sha256:" + hashlib.sha256(blob).hexdigest(),
        bytes=3 * MiB,
        files=2,
        skipped=0,
    )
    assert seen == sorted(seen)
    assert seen[-1] == len(blob)
    assert (target / "f").read_bytes() == PLAIN[512 : 512 + 3 * MiB]


def test_data_after_the_end_marker_is_part_of_the_digest(target: Path):
    blob = file(b"f") + END + b"more" * 5000
    done = unpack_layer(io.BytesIO(blob), target)
    assert done.diff_id == done.blob_digest == "sha256:" + hashlib.sha256(blob).hexdigest()


def test_a_tar_whose_first_name_looks_compressed_is_a_tar(target: Path):
    unpack_layer(io.BytesIO(file(b"BZh91AY", b"!") + END), target)
    assert tree(target) == {"BZh91AY": "file !"}


def test_a_source_may_deliver_single_bytes(target: Path):
    class Crumbs(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 7) if size != -1 else 7)

    done = unpack_layer(Crumbs(gzip.compress(file(b"f", b"x" * 2000) + END)), target)
    assert (done.files, done.bytes) == (1, 2000)


def test_missing_zstd_is_reported_with_the_package_to_install(
    target: Path, monkeypatch: pytest.MonkeyPatch
):
    blob = zstd(PLAIN)
    monkeypatch.setattr(compression, "_SYSTEM_PATH", "/nonexistent")
    with pytest.raises(InvalidImage, match="zstd") as caught:
        unpack_layer(io.BytesIO(blob), target)
    assert "install zstd" in caught.value.hint


def test_a_missing_unpack_program_is_reported(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(layer_unpack, "_PROGRAM", tmp_path / "nothing")
    with pytest.raises(BackendUnavailable, match="cannot be run"):
        unpack_layer(io.BytesIO(PLAIN), target)


@pytest.mark.parametrize("found", ["missing", "file", "symlink", "not empty"])
def test_a_layer_is_unpacked_only_into_an_empty_directory(found: str, tmp_path: Path):
    place = tmp_path / "place"
    if found == "file":
        place.touch()
    elif found == "symlink":
        place.symlink_to(tmp_path)
    elif found == "not empty":
        place.mkdir()
        (place / "x").touch()
    with pytest.raises(InternalError, match="cannot unpack a layer into"):
        unpack_layer(io.BytesIO(PLAIN), place)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    options = "size=1m,nr_inodes=100"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], check=True)
    try:
        (place / "target").mkdir()
        yield place / "target"
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.promise("P49")
@pytest.mark.parametrize("way", ["plain", "gzip", "zstd"])
def test_unpacking_onto_a_full_disk_is_a_typed_error(way: str, small_disk: Path):
    with pytest.raises(QuotaExceeded, match="No space left") as caught:
        unpack_layer(io.BytesIO(compressed(way)), small_disk)
    assert "free space" in caught.value.hint


def test_unpacking_onto_a_disk_without_inodes_is_a_typed_error(small_disk: Path):
    many = b"".join(file(b"f%d" % number) for number in range(200))
    with pytest.raises(QuotaExceeded, match="No space left"):
        unpack_layer(io.BytesIO(many + END), small_disk)


class Stop(Exception):
    pass


@pytest.mark.parametrize("way", COMPRESSIONS)
def test_an_exception_of_the_progress_callback_ends_the_unpacking(way: str, target: Path):
    def stop(count: int) -> None:
        if count > MiB:
            raise Stop

    with pytest.raises(Stop):
        unpack_layer(io.BytesIO(compressed(way)), target, progress=stop)
    assert running() == []


@pytest.mark.parametrize("way", COMPRESSIONS)
def test_an_error_of_the_source_is_raised_unchanged(way: str, target: Path):
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > MiB:
                raise TimeoutError("the registry went away")
            return super().read(size)

    with pytest.raises(TimeoutError, match="went away"):
        unpack_layer(Broken(compressed(way)), target)
    assert running() == []


def running() -> list[str]:
    """Return our programs that are still running."""
    listed = subprocess.run(
        ["ps", "-o", "args=", "--ppid", str(os.getpid())],
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in listed.stdout.splitlines() if "unpack" in line or "zstd" in line]


@pytest.mark.promise("P47")
def test_a_layer_exactly_at_the_limits_is_unpacked(target: Path):
    archive = file(b"a", b"12345") + file(b"d/b", b"67890") + END
    with pytest.raises(InvalidImage, match="more than 9 bytes"):
        unpack_layer(io.BytesIO(archive), target, caps=Caps(bytes=9))
    shutil.rmtree(target)
    target.mkdir()
    with pytest.raises(InvalidImage, match="more than 2 entries"):
        unpack_layer(io.BytesIO(archive), target, caps=Caps(entries=2))
    shutil.rmtree(target)
    target.mkdir()
    assert unpack_layer(io.BytesIO(archive), target, caps=Caps(bytes=10, entries=3)).bytes == 10


@pytest.mark.promise("P47")
def test_the_unpack_program_drops_unneeded_privileges(target: Path):
    """Examined from outside while it waits for more of the archive."""
    seen: dict[str, str] = {}

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            # More than the pipe holds, so the program has begun to read.
            if self.tell() > 2 * MiB and not seen:
                child = Path("/proc") / str(_child())
                for line in (child / "status").read_text().splitlines():
                    key, _, value = line.partition(":")
                    seen[key] = value.strip()
                seen["root"] = str((child / "root").readlink())
                seen["cwd"] = str((child / "cwd").readlink())
                seen["environ"] = (child / "environ").read_text()
                seen["fds"] = str(len(list((child / "fd").iterdir())))
            return super().read(size)

    unpack_layer(Watched(PLAIN), target)
    # CHOWN, DAC_OVERRIDE, FOWNER; and SYS_ADMIN in reserve, for `trusted.*`.
    assert int(seen["CapEff"], 16) == 0b1011
    assert int(seen["CapPrm"], 16) == 0b1011 | 1 << 21
    assert int(seen["CapInh"], 16) == 0
    assert seen["NoNewPrivs"] == "1"
    assert seen["Umask"] == "0000"
    assert seen["root"] == seen["cwd"] == str(target)
    assert seen["environ"] == ""
    # The three of every program, the target, and the file it is writing.
    assert int(seen["fds"]) <= 5


def _child() -> int:
    listed = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())],
        capture_output=True,
        text=True,
        check=True,
    )
    (found,) = [line.split()[0] for line in listed.stdout.splitlines() if "unpack" in line]
    return int(found)


def test_a_device_entry_of_the_archive_is_not_a_whiteout(target: Path):
    # A device 0:0 in an archive is a device, and left out like any other.
    done = unpack_layer(io.BytesIO(header(b"w", flag=b"3") + file(b".wh.v") + END), target)
    assert tree(target) == {"v": "whiteout"}
    assert done.skipped == 1


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Callable[[bytes, bytes], dict[str, str]]]:
    """Show two layers with overlayfs, the second above the first."""
    merged = tmp_path / "merged"

    def mounted(below: bytes, above: bytes) -> dict[str, str]:
        trees = [tmp_path / "below", tmp_path / "above"]
        for place, archive in zip(trees, (below, above), strict=True):
            place.mkdir()
            unpack_layer(io.BytesIO(archive), place)
        merged.mkdir()
        lower = f"lowerdir={trees[1]}:{trees[0]}"
        subprocess.run(["mount", "-t", "overlay", "-o", lower, "none", merged], check=True)
        return tree(merged)

    yield mounted
    if merged.is_mount():
        subprocess.run(["umount", merged], check=True)


@pytest.mark.promise("P48")
def test_overlayfs_hides_whiteouts(
    overlay: Callable[[bytes, bytes], dict[str, str]],
):
    below = b"".join(
        file(b"%s/%s" % (d, f), b"below") for d in (b"a", b"b", b"c") for f in (b"x", b"y")
    )
    above = (
        file(b"a/.wh.x")
        + file(b"b/.wh..wh..opq")
        + file(b"b/z", b"above")
        + file(b".wh.c")
        + file(b"c/z", b"above")
    )
    assert overlay(below + END, above + END) == {
        "a": "directory",
        "a/y": "file below",
        "b": "directory",
        "b/z": "file above",
        "c": "directory",
        "c/z": "file above",
    }
