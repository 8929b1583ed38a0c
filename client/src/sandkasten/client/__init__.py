"""The Python SDK. Start at `sandbox.py`.

It imports `errors`, `model` and `ports`; it reaches the engine only through `server/embedded.py`.
"""

from __future__ import annotations


def __getattr__(name: str) -> object:
    """Explain a missing name: the other project's package imports `SandboxClient` from here."""
    if not name.startswith("_"):
        from sandkasten.client.import_clash import find_clash

        if clash := find_clash():
            raise ImportError(str(clash))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
