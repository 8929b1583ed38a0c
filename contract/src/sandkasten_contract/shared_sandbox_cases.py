"""Cases of one test that share its sandbox."""

from __future__ import annotations

import functools
import inspect
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


LONG = os.environ.get("TEST_SANDKASTEN_LONG") == "1"
"""Whether every case is a test of its own, in a sandbox of its own."""


def each(
    arguments: str | tuple[str, ...], values: Iterable[Any], **options: Any
) -> Callable[[Any], Any]:
    """Run a test for each value: one after the other in its sandbox, or as separate tests.

    The latter with TEST_SANDKASTEN_LONG=1, where this is `pytest.mark.parametrize`. A failure
    names the value.
    """
    listed = list(values)
    if LONG:
        return pytest.mark.parametrize(arguments, listed, **options)
    names = (arguments,) if isinstance(arguments, str) else arguments
    rows = [(value,) if isinstance(arguments, str) else tuple(value) for value in listed]
    cases = [dict(zip(names, row, strict=True)) for row in rows]

    def decorate(test: Any) -> Any:
        @functools.wraps(test)
        async def in_a_loop(*args: Any, **fixtures: Any) -> None:
            for case in cases:
                with _named(case):
                    await test(*args, **fixtures, **case)

        @functools.wraps(test)
        def in_a_row(*args: Any, **fixtures: Any) -> None:
            for case in cases:
                with _named(case):
                    test(*args, **fixtures, **case)

        wrapper: Any = in_a_loop if inspect.iscoroutinefunction(test) else in_a_row
        signature = inspect.signature(test)
        others = [
            parameter for name, parameter in signature.parameters.items() if name not in names
        ]
        wrapper.__signature__ = signature.replace(parameters=others)
        return wrapper

    return decorate


@contextmanager
def _named(case: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except BaseException as exc:
        exc.add_note(f"with {case}")
        raise
