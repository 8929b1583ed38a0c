"""Hostile archives: each is refused or unpacked harmlessly, and none writes outside.

Run as root, where the program sees only its target, and once more as an ordinary user, where only
its handling of names protects the host.
"""

from __future__ import annotations

import gc
import io
import os
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import pytest

from sandkasten.errors import InvalidImage
from sandkasten_runtime.images.layers.layer_unpack import unpack_layer
from tests.images.hostile import SMALL, Endless, tar
from tests.images.hostile_harmless import HARMLESS
from tests.images.hostile_refused import REFUSED
from tests.images.tars import directory, file, pax, record, symlink, tree
from tests.ordinary_user import OrdinaryUser
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Ground:
    target: Path
    canary: Path

    def outside(self) -> list[tuple[object, ...]]:
        """Return everything beside the target that an escape would change."""
        seen: list[tuple[object, ...]] = []
        for path in sorted([self.canary.parent, self.canary, *self.canary.rglob("*")]):
            info = path.lstat()
            content = (
                path.read_bytes()
                if stat.S_ISREG(info.st_mode)
                else os.readlink(path)
                if stat.S_ISLNK(info.st_mode)
                else sorted(os.listdir(path))
            )
            seen.append(
                (
                    path,
                    info.st_mode,
                    info.st_uid,
                    info.st_nlink,
                    info.st_mtime_ns,
                    info.st_ctime_ns,
                    content,
                )
            )
        return seen


def children() -> set[int]:
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        try:
            found.update(map(int, (thread / "children").read_text().split()))
        except OSError:
            continue  # the thread has ended
    return found


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    canary = tmp_path / "canary"
    (canary / "below").mkdir(parents=True)
    (canary / "kept").write_text("as it was")
    (canary / "below" / "file").write_text("as it was")
    (canary / "link").symlink_to("kept")
    target = tmp_path / "target"
    target.mkdir()
    made = Ground(target, canary)
    gc.disable()  # it would close what earlier tests left open
    try:
        before, running = made.outside(), children()
        descriptors = len(os.listdir("/proc/self/fd"))
        yield made
        assert made.outside() == before
        assert children() == running
        # Fewer, if something of an earlier test was closed meanwhile. A thread of an earlier test
        # may have a file open for a moment.
        deadline = time.monotonic() + PATIENCE_S
        while len(os.listdir("/proc/self/fd")) > descriptors:
            assert time.monotonic() < deadline, os.listdir("/proc/self/fd")
            time.sleep(0.05)
    finally:
        gc.enable()
    # Whatever came of it, its owner can remove it.
    shutil.rmtree(target)


def opened(archive: bytes | Endless) -> BinaryIO:
    return cast("BinaryIO", io.BytesIO(archive) if isinstance(archive, bytes) else archive)


@pytest.mark.promise("P47", "P49")
@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_archive_is_refused_with_a_typed_error(ground: Ground, name: str):
    case = REFUSED[name]
    archive = case.archive()
    with pytest.raises(InvalidImage, match=case.words) as caught:
        unpack_layer(opened(archive), ground.target, caps=case.caps)
    assert caught.value.details["kind"] == case.kind
    assert caught.value.hint
    assert len(str(caught.value)) < 1000
    if isinstance(archive, Endless):
        assert archive.taken < case.most_read
    assert [kind for kind in tree(ground.target).values() if kind.startswith("something")] == []


@pytest.mark.promise("P47")
@pytest.mark.parametrize("name", HARMLESS)
def test_a_hostile_archive_is_unpacked_harmlessly(ground: Ground, name: str):
    case = HARMLESS[name]
    done = unpack_layer(opened(case.archive()), ground.target, caps=SMALL)
    assert tree(ground.target) == dict(sorted(case.left.items()))
    assert done.skipped == case.skipped
    for path, mode in case.modes.items():
        assert oct(stat.S_IMODE((ground.target / path).lstat().st_mode)) == oct(mode), path


@pytest.mark.promise("P48")
def test_only_user_attributes_are_kept(ground: Ground):
    given = {
        b"user.note": b"kept",
        b"user.overlay.redirect": b"/etc",
        b"user.overlay.opaque": b"y",
        b"trusted.overlay.opaque": b"y",
        b"trusted.overlay.metacopy": b"",
        b"security.capability": b"\1\0\0\2\0\x20\0\0" + bytes(12),
        b"security.selinux": b"x",
        b"system.posix_acl_access": b"\2\0\0\0",
    }
    records = [(b"SCHILY.xattr." + key, value) for key, value in given.items()]
    archive = tar(
        pax(*records),
        file(b"f", b"!"),
        pax(*records),
        directory(b"d"),
        pax(*records),
        symlink(b"s", b"f"),
    )
    unpack_layer(opened(archive), ground.target)
    for name in ("f", "d"):
        path = ground.target / name
        assert {key: os.getxattr(path, key) for key in os.listxattr(path)} == {"user.note": b"kept"}
    assert os.listxattr(ground.target / "s", follow_symlinks=False) == []


@pytest.mark.promise("P48")
def test_opaque_directories_are_marked_for_overlayfs(ground: Ground):
    unpack_layer(
        opened(
            tar(
                file(b".wh..wh..opq"),
                file(b"new/.wh..wh..opq"),
                directory(b"old"),
                file(b"old/f"),
                file(b"old/.wh..wh..opq"),
                # A directory in the place of a whiteout hides what the whiteout hid.
                file(b".wh.again"),
                directory(b"again"),
                file(b".wh.implied"),
                file(b"implied/f"),
                directory(b"before"),
                file(b".wh.before"),
                directory(b"plain"),
            )
        ),
        ground.target,
    )
    key = "trusted.overlay.opaque" if os.geteuid() == 0 else "user.overlay.opaque"
    marked = {
        path.name: os.getxattr(path, key)
        for path in [ground.target, *ground.target.iterdir()]
        if key in os.listxattr(path)
    }
    assert marked == dict.fromkeys(["target", "new", "old", "again", "implied", "before"], b"y")


def test_owners_past_the_range_of_a_sandbox_are_refused(ground: Ground):
    if os.geteuid() != 0:
        unpack_layer(opened(tar(file(b"f", uid=70_000, gid=70_000))), ground.target)
        assert (ground.target / "f").stat().st_uid == os.geteuid()
        return
    for refused in [
        file(b"f", uid=65_536),
        file(b"f", gid=65_536),
        pax((b"uid", b"4294967296")) + file(b"f"),
        pax((b"gid", b"4294967295")) + file(b"f"),
    ]:
        with pytest.raises(InvalidImage, match="above 65535"):
            unpack_layer(opened(tar(refused)), ground.target)
    unpack_layer(opened(tar(file(b"f", uid=65_535, gid=1))), ground.target)
    assert (ground.target / "f").stat().st_uid == 65_535


def test_the_archive_builder_counts_the_length_of_a_record():
    # The builder of these archives, not the program: a wrong one would test nothing.
    assert record(b"path", b"x" * 91) == b"101 path=" + b"x" * 91 + b"\n"
    assert record(b"a", b"b") == b"6 a=b\n"


@pytest.mark.long(reason="`make test` tests them as root")
@pytest.mark.promise("P47")
@pytest.mark.root
@pytest.mark.timeout(600)
def test_hostile_archives_are_harmless_for_an_ordinary_user_too():
    file = "tests/images/test_hostile_archives.py"
    with OrdinaryUser() as user:
        ran = user.pytest(
            file,
            *("--basetemp", str(user.home / "tmp")),
            *("--deselect", f"{file}::test_hostile_archives_are_harmless_for_an_ordinary_user_too"),
            timeout_s=540,
        )
        assert ran.returncode == 0, f"{ran.stdout[-20_000:]}\n{ran.stderr[-5_000:]}"
        assert f"{len(REFUSED) + len(HARMLESS) + 4} passed, 1 deselected" in ran.stdout
