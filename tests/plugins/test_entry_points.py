"""Entry points are read from metadata of bounded size, once for each distribution."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sandkasten.plugins import entry_points as module
from sandkasten.plugins.entry_points import EntryPoint, EntryPoints, entry_points

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

GROUP = "sandkasten.backends"


def _metadata(directory: Path, name: str, text: str | bytes) -> None:
    metadata = directory / f"{name}.dist-info"
    metadata.mkdir(parents=True)
    content = text if isinstance(text, bytes) else text.encode()
    (metadata / "entry_points.txt").write_bytes(content)


def test_groups_of_ours_are_read_with_the_name_of_the_distribution(tmp_path: Path) -> None:
    _metadata(
        tmp_path,
        "My_Other.Plugin-2.0",
        "[console_scripts]\nx = y:z\n\n# a comment\n[sandkasten.backends]\n; another\n"
        "second=b.c:D\nfirst = a:B\nno target\n[sandkasten.settings]\n"
        "third = e : F \n[broken\nq = r\n",
    )
    points = entry_points([str(tmp_path), str(tmp_path), str(tmp_path / "missing")])
    assert points.of(GROUP) == (
        EntryPoint(GROUP, "first", "a:B", "my-other-plugin"),
        EntryPoint(GROUP, "second", "b.c:D", "my-other-plugin"),
    )
    assert [entry.target for entry in points.of("sandkasten.settings")] == ["e : F"]
    assert len(points.entries) == 3
    assert points.problems == ()


def test_distribution_that_is_there_twice_counts_once_as_the_one_that_is_imported(
    tmp_path: Path,
) -> None:
    _metadata(tmp_path / "a", "my_plugin-1.0", f"[{GROUP}]\nx = new:PLUGIN\n")
    _metadata(tmp_path / "b", "my-plugin-0.9", f"[{GROUP}]\nx = old:PLUGIN\n")
    [entry] = entry_points([str(tmp_path / "a"), str(tmp_path / "b")]).entries
    assert entry.target == "new:PLUGIN"


def test_metadata_that_cannot_be_read_is_ignored(tmp_path: Path) -> None:
    _metadata(tmp_path, "broken-1.0", b"\xff\xfe[sandkasten.backends]")
    _metadata(tmp_path, "unclosed-1.0", f"[{GROUP}\nx = y")
    _metadata(tmp_path, "empty-1.0", "")
    (tmp_path / "file-1.0.dist-info").write_text("a file")
    (tmp_path / "fifo-1.0.dist-info").mkdir()
    os.mkfifo(tmp_path / "fifo-1.0.dist-info" / "entry_points.txt")
    (tmp_path / "folder-1.0.dist-info" / "entry_points.txt").mkdir(parents=True)
    assert entry_points([str(tmp_path)]) == EntryPoints()


def test_file_that_is_too_large_is_a_problem(tmp_path: Path) -> None:
    text = f"[{GROUP}]\nx = y:z\n"
    _metadata(tmp_path, "large-1.0", text + "#" * module.MAX_FILE_BYTES)
    _metadata(tmp_path, "small-1.0", text)
    points = entry_points([str(tmp_path)])
    assert [entry.distribution for entry in points.entries] == ["small"]
    [problem] = points.problems
    assert "plugins of the distribution large are not used" in problem


def test_number_of_distributions_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_DISTRIBUTIONS", 2)
    for name in "abc":
        _metadata(tmp_path, f"{name}-1.0", f"[{GROUP}]\n{name} = y:z\n")
    points = entry_points([str(tmp_path)])
    assert [entry.name for entry in points.entries] == ["a", "b"]
    assert points.problems == ("plugins of more than 2 distributions are not used",)


def test_metadata_is_read_once(tmp_path: Path) -> None:
    path = [str(tmp_path)]
    assert entry_points(path) is entry_points(path)
