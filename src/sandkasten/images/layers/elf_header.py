"""The architecture of a tree's programs, read from the ELF header of one of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from sandkasten.images.layers.overlay import read_merged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MACHINES: Final = {
    3: "386",
    21: "ppc64le",
    22: "s390x",
    40: "arm",
    62: "amd64",
    183: "arm64",
    243: "riscv64",
    258: "loong64",
}
_USUAL: Final = ("bin/sh", "bin/busybox", "usr/bin/env", "bin/bash", "usr/bin/python3")
_SOME: Final = 200


def architecture_of(trees: Sequence[str]) -> str:
    """Return the architecture in image spelling; empty if no program shows it."""
    for path in (*_USUAL, *_programs(trees)):
        head = read_merged(trees, path, 20)
        if head is not None and len(head) == 20 and head.startswith(b"\x7fELF"):
            code = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
            return _MACHINES.get(code, "")
    return ""


def _programs(trees: Sequence[str]) -> Iterator[str]:
    """Return the names of some files in program directories: an image may contain only its own."""
    for tree in reversed(trees):
        for directory in ("", "bin", "usr/bin", "usr/local/bin", "sbin", "app"):
            where = os.path.join(tree, directory)
            # Not through a link, which could lead anywhere on this machine.
            if directory and os.path.realpath(where) != os.path.join(
                os.path.realpath(tree), directory
            ):
                continue
            try:
                names = sorted(os.listdir(where))[:_SOME]
            except OSError:
                continue
            yield from (f"{directory}/{name}" for name in names)
