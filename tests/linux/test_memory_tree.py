"""A /tmp as one file and back: hostile trees have a limit, and every link is a link again."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import Busy, Cancelled, QuotaExceeded
from sandkasten_runtime.linux.storage import memory_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system"),
]

DEPTH, LINKS = 400, 100


@pytest.fixture
def memory(tmp_path):
    mounted: list[Path] = []

    def mount(inodes: int = 1000) -> Path:
        at = tmp_path / f"memory{len(mounted)}"
        at.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size=1m,nr_inodes={inodes}", "none", at]
        subprocess.run(words, check=True)
        mounted.append(at)
        return at

    yield mount
    for at in reversed(mounted):
        subprocess.run(["umount", at], check=True)


@contextmanager
def opened(at: Path) -> Iterator[int]:
    root = os.open(at, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield root
    finally:
        os.close(root)


def save(tree: Path, target: Path) -> Path:
    with opened(tree) as root, target.open("wb") as out:
        memory_tree.save(root, out, 0, Event())
    return target


def restore(saved: Path, tree: Path, stop: Event | None = None) -> None:
    with opened(tree) as root, saved.open("rb") as source:
        memory_tree.restore(source, root, 0, stop or Event())


def names(tree: Path) -> list[tuple[str, int]]:
    """Return every name, with the place in the list of the first name of the same file."""
    listed: list[tuple[str, int]] = []
    for at, directories, files in os.walk(tree):
        listed += [
            (os.path.relpath(os.path.join(at, name), tree), os.lstat(os.path.join(at, name)).st_ino)
            for name in directories + files
        ]
    inodes = [inode for _, inode in sorted(listed)]
    return [(name, inodes.index(inode)) for name, inode in sorted(listed)]


def test_deep_links_take_no_more_than_their_names_and_are_links_again(memory, tmp_path):
    # Not one inode more than the tree has: root, directories, two files and their links.
    inodes = 1 + DEPTH + 2 * LINKS
    source = memory(inodes)
    deep = source
    for _ in range(DEPTH):
        deep = deep / "d"
        deep.mkdir()
    for file in ("a", "b"):
        (deep / f"{file}0").write_text(file)
        for number in range(1, LINKS):
            os.link(deep / f"{file}0", (deep.parent if number % 2 else deep) / f"{file}{number}")
    assert os.statvfs(source).f_ffree == 0
    saved = save(source, tmp_path / "saved")
    assert saved.stat().st_size < inodes * 250
    target = memory(inodes)
    restore(saved, target)
    assert names(target) == names(source)
    assert os.stat(target).st_mtime_ns == os.stat(source).st_mtime_ns


def test_a_tree_whose_names_take_more_than_its_memory_is_refused(memory, tmp_path):
    source = memory(inodes=300)
    for number in range(200):
        # Six bytes of JSON for each.
        os.symlink("\x01" * 4000, source / str(number))
    with pytest.raises(QuotaExceeded) as raised:
        save(source, tmp_path / "saved")
    assert raised.value.details == {"quota": "tmp"}
    limits = os.statvfs(source)
    assert (tmp_path / "saved").stat().st_size <= limits.f_blocks * 4096 + limits.f_files * 4096


def test_a_tree_that_takes_too_long_is_refused(memory, tmp_path, monkeypatch):
    source = memory()
    (source / "f").write_text("content")
    monkeypatch.setattr(memory_tree, "_NAMES_S", -1e9)
    with pytest.raises(Busy):
        save(source, tmp_path / "saved")


def test_a_restore_can_be_stopped(memory, tmp_path):
    source = memory()
    (source / "f").write_text("content")
    stop = Event()
    stop.set()
    target = memory()
    with pytest.raises(Cancelled):
        restore(save(source, tmp_path / "saved"), target, stop)
    assert os.listdir(target) == []


def test_what_is_mounted_in_it_is_not_part_of_it(memory, tmp_path):
    source = memory()
    (source / "own").write_text("content")
    (source / "other").mkdir()
    subprocess.run(["mount", "--bind", tmp_path, source / "other"], check=True)
    try:
        restore(save(source, tmp_path / "saved"), target := memory())
    finally:
        subprocess.run(["umount", source / "other"], check=True)
    assert os.listdir(target) == ["own"]
