"""Builds what tests stand on before they begin: environments and images. Again does nothing."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests import built, environments, imagekit
from tests.local import trees

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_IMAGES: tuple[Callable[[], Path], ...] = (
    trees.debian,
    imagekit.debian_tar,
    imagekit.busybox_tar,
    imagekit.empty_tar,
    imagekit.odd_tar,
    built.archives,
)


_ENVIRONMENTS: tuple[Callable[[], Path], ...] = (environments.compat, environments.examples)


def main() -> int:
    for build in _ENVIRONMENTS:
        sys.stdout.write(_timed(build) + "\n")
    if os.geteuid() != 0:
        sys.stdout.write("images for tests are built by root alone; tests that need them say so\n")
        return 0
    with ThreadPoolExecutor(2) as pool:
        for told in pool.map(_timed, _IMAGES):
            sys.stdout.write(told + "\n")
    return 0


def _timed(build: Callable[[], Path]) -> str:
    began = time.monotonic()
    path = build()
    name = path.parents[1].name if path.name == "python" else path.name
    return f"{name}: {time.monotonic() - began:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
