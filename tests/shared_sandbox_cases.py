"""Values of a test of which `make test` runs a few."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable


def few(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Return parameters of which `make test` runs the first `count`, `make test-long` all of them.

    For values that repeat each other. A tuple has one value for each argument of the test.
    """
    later = pytest.mark.long(reason="`make test` has it with other values")
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=[later] if at >= count else []) for at, row in enumerate(rows)]
