"""A backend without a kernel: places that live in this process and speak the runner protocol.

It isolates nothing and runs no real program. It exists so that everything above the port can
be tested anywhere, against the same contract suite as the real backends. It knows the port,
the model and the wire; errors leave it as every backend's do.
"""

from __future__ import annotations

from sandkasten.backends.memory.backend import MemoryBackend, MemoryCell

__all__ = ["MemoryBackend", "MemoryCell"]
