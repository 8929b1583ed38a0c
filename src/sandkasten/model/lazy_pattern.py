"""`re.compile` for patterns of a module: compiled when they are first used.

A command imports a hundred patterns and uses ten; to compile them took an eighth of its imports. An
invalid pattern is found by the first use too, which every one has in the tests.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from re import compile as compile
else:

    class compile:
        """Stands for a compiled pattern."""

        def __init__(self, pattern: str | bytes, flags: int = 0) -> None:
            self._uncompiled = pattern, flags

        def __getattr__(self, name: str) -> Any:
            compiled = re.compile(*self._uncompiled)
            # Found there from now on, without coming here again.
            for one in ("match", "fullmatch", "search", "sub", "finditer", "findall", "pattern"):
                setattr(self, one, getattr(compiled, one))
            return getattr(compiled, name)
