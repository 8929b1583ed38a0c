"""Import a framework, or report how to install it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from sandkasten.model.optional_extras import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def framework_import(framework: str, extra: str) -> Iterator[None]:
    """Wrap the imports of a framework; ImportError with the install command if one fails."""
    try:
        yield
    except ImportError as exc:
        raise ImportError(
            f"this adapter requires {framework}: {exc}; install it with: {install_command(extra)}",
            name=exc.name,
        ) from exc
