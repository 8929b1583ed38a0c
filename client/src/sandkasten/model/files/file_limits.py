"""How large a file may be that is read or written as one value.

A larger one is streamed, or read in ranges. A streamed upload has the limit of the daemon
(`api/http_limits.py`).
"""

from __future__ import annotations

from typing import Final

MAX_WHOLE_READ: Final = 512 << 20
MAX_JSON_FILE: Final = 10 << 20
"""In the body of an HTTP request or response."""
