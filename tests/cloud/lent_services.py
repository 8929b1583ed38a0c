"""Services that stand for providers in a test run: each is started once in a process, on first use,
and ended with the run (`close`, called by conftest.py).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

T = TypeVar("T")
_open: dict[str, Any] = {}
_stack = ExitStack()


def lent(name: str, start: Callable[[], AbstractContextManager[T]]) -> T:
    """Return the service of that name; the first caller starts it. Blocks."""
    if name not in _open:
        _open[name] = _stack.enter_context(start())
    found: T = _open[name]
    return found


def close() -> None:
    _open.clear()
    _stack.close()
