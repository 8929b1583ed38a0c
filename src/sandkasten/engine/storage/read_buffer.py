"""Collect a file of known size in one allocation that becomes its `bytes` without a copy.

Large reads are limited by the kernel handing out memory page by page, so a large buffer asks for
huge pages before it is touched. Knows neither files nor the wire. Where the interpreter does not
support this, or the size is small, an ordinary buffer does the same; nothing here fails.
"""

from __future__ import annotations

import platform
import sys
from io import BytesIO
from typing import Protocol

# Below this size an ordinary buffer is as fast.
LARGE = 4 << 20
_PAGE = 4096


class Collector(Protocol):
    def write(self, data: bytes | bytearray, /) -> int: ...
    def getvalue(self) -> bytes:
        """Return what was written. Called once, last."""
        ...


def collector(expected: int) -> Collector:
    """Return a buffer for `expected` bytes; more or fewer may arrive."""
    if expected < LARGE or sys.platform != "linux" or platform.python_implementation() != "CPython":
        return BytesIO()
    return _OneAllocation(expected)


class _OneAllocation:
    """A `bytes` object that is filled before it is shared, as C extensions do."""

    def __init__(self, size: int) -> None:
        # Imported here because most processes never read a large file.
        import ctypes
        import mmap

        new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
            ("PyBytes_FromStringAndSize", ctypes.pythonapi)
        )
        address_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
            ("PyBytes_AsString", ctypes.pythonapi)
        )
        self._bytes: bytes = new(None, size)
        address = address_of(self._bytes)
        first, last = -(-address // _PAGE) * _PAGE, (address + size) // _PAGE * _PAGE
        # Only advice: a kernel without huge pages refuses, and pages come one by one.
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_HUGEPAGE
        )
        self._view = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        self._size = size
        self._filled = 0
        self._more: BytesIO | None = None

    def write(self, data: bytes | bytearray, /) -> int:
        end = self._filled + len(data)
        if self._more is None and end <= self._size:
            self._view[self._filled : end] = data
            self._filled = end
            return len(data)
        if self._more is None:
            # The file grew while it was read.
            self._more = BytesIO()
            self._more.write(self._view[: self._filled])
        return self._more.write(data)

    def getvalue(self) -> bytes:
        if self._more is not None:
            return self._more.getvalue()
        if self._filled == self._size:
            return self._bytes
        return bytes(self._view[: self._filled])
