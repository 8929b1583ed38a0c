"""Cases of one test that need no sandbox of their own."""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.platform_choice import LONG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def each(
    arguments: str | tuple[str, ...], values: Iterable[Any], **options: Any
) -> Callable[[Any], Any]:
    """Run a test for each value: one after the other in its sandbox, or as tests of their own.

    The latter in `make test-long`, where this is `pytest.mark.parametrize`. A failure names the
    value.
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

        made: Any = in_a_loop if inspect.iscoroutinefunction(test) else in_a_row
        taken = inspect.signature(test)
        others = [one for name, one in taken.parameters.items() if name not in names]
        made.__signature__ = taken.replace(parameters=others)
        return made

    return decorate


def few(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Return parameters of which `make test` runs the first `count`, `make test-long` all of them.

    For values that repeat each other. A tuple has one value for each argument of the test.
    """
    later = pytest.mark.long(reason="`make test` has it with other values")
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=[later] if at >= count else []) for at, row in enumerate(rows)]


@contextmanager
def _named(case: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except BaseException as exc:
        exc.add_note(f"with {case}")
        raise
