"""The generated reference pages are up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "reference.py", "--check"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")
