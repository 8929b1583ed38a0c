"""The host image has `python`, its `pip` says how a sandbox gets packages, and it finds fonts.

Its files are those of the host, through an overlay.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from sandkasten.model.images.resolved_image import Image
from sandkasten_runtime.linux.storage import host_root

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def usr(tmp_path) -> Path:
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "usr" / "bin" / "python3").touch(0o755)
    return tmp_path / "usr"


def programs(tmp_path: Path, usr: Path) -> dict[str, str]:
    (tmp_path / "etc").mkdir(exist_ok=True)
    made = host_root.etc_skeleton(tmp_path / "etc", usr) / "sandkasten" / "bin"
    return {
        one.name: str(one.readlink()) if one.is_symlink() else one.read_text().split("\n")[0]
        for one in made.iterdir()
    }


def test_python_is_linked_only_where_the_host_has_none(tmp_path, usr):
    pip = dict.fromkeys(("pip", "pip3"), "#!/bin/sh")
    assert programs(tmp_path, usr) == {"python": "/usr/bin/python3", **pip}
    (usr / "bin" / "python").touch(0o755)
    assert programs(tmp_path, usr) == pip
    (usr / "bin" / "python").unlink()
    (usr / "bin" / "python3").unlink()
    assert programs(tmp_path, usr) == {}


@pytest.mark.skipif(shutil.which("python3", path="/usr/bin") is None, reason="no python3 in /usr")
def test_python_runs_and_pip_names_the_way_to_packages(make_box):
    with make_box(Image("host")) as box:
        same = "python -c 'import sys; print(sys.prefix, sys.version_info[0])'"
        ran = box.exec(f"{same}; python -m venv --without-pip v && v/bin/{same}")
        assert (ran.code, ran.text) == (0, "/usr 3\n/workspace/v 3\n")
        for program in ("pip", "pip3"):
            ran = box.exec(f"{program} install --quiet --retries 0 requests 2>&1")
            assert ran.code != 0
            assert "pip_packages" in ran.text
            assert "--pip requests" in ran.text


@pytest.mark.skipif(
    shutil.which("fc-match", path="/usr/bin") is None
    or not os.path.exists("/etc/fonts/fonts.conf"),
    reason="no fontconfig on this host",
)
def test_fonts_are_found_without_an_error(make_box):
    with make_box(Image("host")) as box:
        ran = box.exec("fc-match sans 2>&1; find /etc/fonts -xtype l; touch /etc/fonts/x 2>&1")
        assert ".ttf" in ran.text or ".otf" in ran.text
        assert "error" not in ran.text
        assert ran.text.endswith("Read-only file system\n")


def test_sandboxes_read_the_same_files_of_the_host(make_box):
    """Each has an overlay of its own; the file below is in the page cache once."""
    program = os.path.realpath("/usr/bin/python3")
    real = os.stat(program)
    shown = "import os, sys; print(os.stat(sys.executable).st_dev, open('/proc/self/maps').read())"
    for _ in range(2):
        with make_box(Image("host")) as box:
            device, maps = box.exec([program, "-c", shown]).text.split(" ", 1)
            assert int(device) != real.st_dev
            used = {int(line.split()[4]) for line in maps.splitlines() if program in line}
            assert used == {real.st_ino}
            refused = box.exec("touch /usr/bin/env; touch /usr/new; rm /usr/bin/env")
            assert refused.stderr.count(b"Read-only file system") == 3
