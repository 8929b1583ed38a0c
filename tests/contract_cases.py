"""The tests of a contract, for a folder that runs them on an implementation of its own.

A test module of that folder defines the fixture of the contract and takes its tests:
`globals().update(cases(test_directory, "store"))`.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType


def cases(module: ModuleType, fixture: str) -> Mapping[str, Any]:
    """Return the tests of a module that use a fixture, by their names."""
    tests = {
        name: value
        for name, value in vars(module).items()
        if name.startswith("test_") and fixture in inspect.signature(value).parameters
    }
    assert tests, f"no test of {module.__name__} uses {fixture}"
    return tests
