"""Exceptions of plugins as errors that name the distribution they come from.

A plugin may raise anything when it is opened. An error of this project passes as it is, and so do
Ctrl-C and a cancellation; anything else becomes InvalidConfiguration.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidConfiguration, SandkastenError
from sandkasten.plugins.entry_points import entry_points

if TYPE_CHECKING:
    from collections.abc import Iterator

REMEDY: Final = "update or remove the distribution that brings it"


def described(group: str, name: str) -> str:
    """Return a plugin that was loaded, with its distribution if an entry point names it."""
    for entry in entry_points().of(group):
        module, _, attribute = (part.strip() for part in entry.target.partition(":"))
        plugin = getattr(sys.modules.get(module), attribute, None)
        if plugin is not None and getattr(plugin, "name", None) == name:
            return str(entry)
    return f"plugin {name}"


def is_failure(exc: BaseException) -> bool:
    """Return whether an exception is a failure of the code that raised it: not Ctrl-C, and not the
    cancellation of a task. A panic of PyO3 is not an Exception.
    """
    return isinstance(exc, Exception | SystemExit) or type(exc).__module__ == "pyo3_runtime"


def is_its_own(exc: BaseException) -> bool:
    """Return whether an exception is a failure of a plugin, and no error of this project."""
    return is_failure(exc) and not isinstance(exc, SandkastenError)


def text_of(exc: BaseException) -> str:
    """Return the text of an exception, also of one that fails to return its text."""
    try:
        return str(exc)
    except BaseException as failed:
        if not is_failure(failed):
            raise
        return f"its text cannot be read: {type(failed).__name__}"


def summary(exc: BaseException) -> str:
    """Return the type and the text of an exception."""
    return f"{type(exc).__name__}: {text_of(exc)}"


def failure(group: str, name: str, exc: BaseException) -> str:
    """Return the sentence about a plugin that raised an exception when it was opened."""
    return f"{group}: {described(group, name)} cannot be opened: {summary(exc)}"


@contextmanager
def opening(group: str, name: str) -> Iterator[None]:
    """Raise InvalidConfiguration for anything that the plugin `name` raises in the block."""
    try:
        yield
    except BaseException as exc:
        if not is_its_own(exc):
            raise
        raise InvalidConfiguration(failure(group, name, exc), hint=REMEDY) from exc
