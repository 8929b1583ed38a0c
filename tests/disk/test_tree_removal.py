"""Removing a sandbox's files as root while a process may still change them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sandkasten.disk import tree_removal

if TYPE_CHECKING:
    from pathlib import Path


def test_a_directory_that_becomes_a_link_changes_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    root = tmp_path / "root"
    (root / "inner").mkdir(parents=True)
    seen = os.scandir

    def swapped(fd: int) -> list[os.DirEntry[str]]:
        """Between the look and the deed, as somebody fast enough does it."""
        found = list(seen(fd))
        if (root / "inner").is_dir() and not (root / "inner").is_symlink():
            (root / "inner").rmdir()
            (root / "inner").symlink_to(outside)
        return found

    monkeypatch.setattr(os, "scandir", swapped)
    with pytest.raises(NotADirectoryError):
        tree_removal.remove_tree(root)
    assert outside.stat().st_mode & 0o777 == 0o755
    tree_removal.remove_tree(root)
    assert outside.is_dir()
    assert not root.exists()
