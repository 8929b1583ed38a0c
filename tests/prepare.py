"""Build the environments and images that tests need. Running it again does nothing.

`python -m tests.prepare debians` builds those that need neither an environment nor the runner,
while both are being built.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests import environments, imagekit
from tests.local import trees
from tests.platform_choice import LONG

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_DEBIANS: tuple[Callable[[], Path], ...] = (imagekit.debian_tar, trees.debian)
_IMAGES = (*_DEBIANS, imagekit.busybox_tar, imagekit.empty_tar, imagekit.odd_tar)
_ENVIRONMENTS: tuple[Callable[[], Path], ...] = (
    environments.compat,
    environments.s3_server,
    environments.typescript,
    *(
        (
            environments.dagger,
            environments.examples,
            environments.previews,
            environments.vite,
            environments.javascript_programs,
            environments.typescript_examples,
        )
        if LONG
        else ()
    ),
)


def main(*what: str) -> int:
    root = os.geteuid() == 0
    if what == ("debians",):
        # Whoever is not root is told below.
        _all(_DEBIANS if root else ())
        return 0
    if not root:
        _all(_ENVIRONMENTS)
        sys.stdout.write("images for tests are built by root alone; tests that need them say so\n")
        return 0
    from tests import built_images

    _all((*_IMAGES, built_images.archives, *_ENVIRONMENTS))
    return 0


def _all(builds: Sequence[Callable[[], Path]]) -> None:
    with ThreadPoolExecutor(2) as pool:
        for told in pool.map(_timed, builds):
            sys.stdout.write(told + "\n")


def _timed(build: Callable[[], Path]) -> str:
    began = time.monotonic()
    path = build()
    name = path.parents[1].name if path.name == "python" else path.name
    return f"{name}: {time.monotonic() - began:.0f} s"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
