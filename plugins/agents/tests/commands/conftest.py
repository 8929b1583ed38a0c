"""The command line in this process, as in its own tests."""

from __future__ import annotations

from tests.cli.conftest import cli, process, same_logging, unisolated_only

__all__ = ["cli", "process", "same_logging", "unisolated_only"]
