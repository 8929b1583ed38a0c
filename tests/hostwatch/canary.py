"""A small tree with known contents on the host that nothing may change or read."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def plant(root: Path) -> str:
    """Create the tree below `root` and return its secret, which must never be seen inside."""
    secret = "canary-" + secrets.token_hex(16)
    (root / "nested" / "deeper").mkdir(parents=True)
    (root / "open.txt").write_text(secret + "\n")
    (root / "nested" / "private.txt").write_text(secret + "\n")
    os.chmod(root / "nested" / "private.txt", 0o600)
    (root / "nested" / "deeper" / "run.sh").write_text(f"#!/bin/sh\necho {secret}\n")
    os.chmod(root / "nested" / "deeper" / "run.sh", 0o755)
    (root / "link").symlink_to("nested/private.txt")
    return secret
