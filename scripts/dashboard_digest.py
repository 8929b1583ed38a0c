#!/usr/bin/env python3
"""Prints the digest of the sources of the dashboard.

It is built into a file of the same commit, so that a test finds sources that were changed and not
built. The TypeScript client is not part of it: a change there does not have to build the page.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

DASHBOARD = Path(__file__).resolve().parent.parent / "dashboard"
_PARTS = ("src", "public", "index.html", "package-lock.json", "vite.config.ts", "tsconfig.json")


def digest(folder: Path = DASHBOARD) -> str:
    hashed = hashlib.sha256()
    for part in _PARTS:
        whole = folder / part
        files = sorted(whole.rglob("*")) if whole.is_dir() else [whole]
        for file in files:
            if file.is_file():
                content = file.read_bytes()
                name = str(file.relative_to(folder))
                hashed.update(f"{name} {len(content)}\n".encode() + content)
    return hashed.hexdigest()


if __name__ == "__main__":
    print(digest())
