"""Compile the patterns of a module at their first use: a replacement of `re.compile`.

A command imports a hundred patterns and uses ten; compiling all of them took an eighth of the time
of its imports. An invalid pattern raises `re.error` at its first use; the tests use every pattern.
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
            # Python finds these attributes from now on, and does not call this method again.
            for method in ("match", "fullmatch", "search", "sub", "finditer", "findall", "pattern"):
                setattr(self, method, getattr(compiled, method))
            return getattr(compiled, name)
