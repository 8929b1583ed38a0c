"""The toolbox on real sandboxes that tests of the tools use too."""

from __future__ import annotations

from plugins.tools.tests.conftest import anyio_backend, local, tools, unisolated_tools

__all__ = ["anyio_backend", "local", "tools", "unisolated_tools"]
