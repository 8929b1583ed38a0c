"""Builds the images that tests stand on before they begin. Again does nothing."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests import imagekit
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
)


def main() -> int:
    if os.geteuid() != 0:
        sys.stdout.write("images for tests are built by root alone; tests that need them say so\n")
        return 0
    with ThreadPoolExecutor(2) as pool:
        for built in pool.map(_timed, _IMAGES):
            sys.stdout.write(built + "\n")
    return 0


def _timed(build: Callable[[], Path]) -> str:
    began = time.monotonic()
    path = build()
    return f"{path.name}: {time.monotonic() - began:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
