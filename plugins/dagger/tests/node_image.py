"""An image with Node: the program of this machine and the libraries that it loads."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests import imagekit


def node_tar() -> Path:
    """Return the archive of its root file system, built on first use."""
    node = shutil.which("node")
    if node is None:
        pytest.fail("node is missing: scripts/apt_packages.sh setup")
    return imagekit.cached("node.tar", lambda target: _build(Path(node), target))


def _build(node: Path, target: Path) -> None:
    listing = subprocess.run(["ldd", str(node)], capture_output=True, text=True, check=True).stdout
    libraries = map(Path, re.findall(r"(/\S+) \(0x", listing))
    with tarfile.open(target, "w", dereference=True) as tar:
        tar.add(node, "bin/node")
        for path in libraries:
            tar.add(path, str(path).lstrip("/"))
