"""The page of grounds, and where it says something else than a run found."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from tests.hostwatch.snapshot import MARKER
from tests.matrix import record
from tests.matrix.record import REPOSITORY


def script() -> Any:
    spec = importlib.util.spec_from_file_location("matrix", REPOSITORY / "scripts" / "matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wrong() -> dict[str, Any]:
    """What the page says and what this run found so far, where the two differ."""
    made = script()
    said = made.said(made.PAGE.read_text())
    ours = {name: cell for name, cell in record.read().items() if cell["run"] == os.environ[MARKER]}
    return {
        name: (said.get(name), cell["not_asked"])
        for name, cell in ours.items()
        if said.get(name) != ("passes", set(cell["not_asked"]))
    }
