"""Collect a file of known size in one allocation that becomes its `bytes` without a copy.

Large reads are limited by the kernel handing out memory page by page, so a large buffer asks for
huge pages before it is touched. Knows neither files nor the wire. Where the interpreter does not
support this, an ordinary buffer does the same with a copy; nothing here fails.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

# Below this size, huge pages are not faster.
LARGE = 4 << 20
_PAGE = 4096
# PyBUF_WRITE of <cpython/object.h>
_FOR_WRITING = 0x200
_HASH_BYTES = 8


class ReadBuffer:
    """Room for `size` bytes: fill `view` from its beginning, then take the bytes, once.

    The view is valid only as long as the buffer itself is referenced. The bytes are of the type
    `kind` if they fill the buffer and this interpreter allows it, otherwise plain bytes.
    """

    __slots__ = ("_kept", "view")

    def __init__(self, size: int, kind: type[bytes] = bytes) -> None:
        functions = _functions() if size else None
        self._kept: bytes | bytearray
        self.view: memoryview
        if functions is None:
            self._kept = bytearray(size)
            self.view = memoryview(self._kept)
        else:
            self._kept, self.view = functions.make(size, kind)

    def taken(self, filled: int) -> bytes:
        """Return the first `filled` bytes. Nothing may be written afterwards."""
        if isinstance(self._kept, bytes) and filled == len(self._kept):
            return self._kept
        return bytes(self.view[:filled])


@dataclass(frozen=True, slots=True)
class _Functions:
    """Functions of the interpreter that make a `bytes` object and fill it before it is shared."""

    new: Callable[[None, int], bytes]
    new_of: Callable[[type[bytes], int], bytes] | None
    hash_before: Callable[[int], Any]
    address_of: Callable[[bytes], int]
    view_of: Callable[[int, int, int], memoryview]
    advise: Callable[[int, int, int], int]
    huge_pages: int

    def make(self, size: int, kind: type[bytes]) -> tuple[bytes, memoryview]:
        if kind is not bytes and self.new_of is not None:
            return self._make_of(size, kind, self.new_of)
        content = self.new(None, size)
        address = self.address_of(content)
        if size >= LARGE:
            first, last = -(-address // _PAGE) * _PAGE, (address + size) // _PAGE * _PAGE
            # Only advice: a kernel without huge pages refuses, and pages come one by one.
            self.advise(first, last - first, self.huge_pages)
        return content, self.view_of(address, size, _FOR_WRITING)

    def _make_of(
        self, size: int, kind: type[bytes], new_of: Callable[[type[bytes], int], bytes]
    ) -> tuple[bytes, memoryview]:
        """Make an object of a subclass, which the interpreter itself could only copy into."""
        content = new_of(kind, size)
        address = self.address_of(content)
        # The cached hash is the field before the bytes; -1 means that there is none yet.
        self.hash_before(address - _HASH_BYTES).value = -1
        return content, self.view_of(address, size, _FOR_WRITING)

    def checked(self) -> _Functions:
        """Give up subclasses if this interpreter lays out its objects in another way."""

        class Probe(bytes):
            pass

        content, view = self.make(3, Probe)
        view[:] = b"abc"
        if type(content) is Probe and content == b"abc" and {b"abc": 1}.get(content) == 1:
            return self
        return replace(self, new_of=None)


@cache
def _functions() -> _Functions | None:
    if sys.platform != "linux" or platform.python_implementation() != "CPython":
        return None
    # Imported here because most processes never read a large file.
    import ctypes
    import mmap

    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)
    address_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)
    view_of = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    new_of = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_ssize_t)
    functions = _Functions(
        new(("PyBytes_FromStringAndSize", ctypes.pythonapi)),
        new_of(("PyType_GenericAlloc", ctypes.pythonapi)),
        ctypes.c_ssize_t.from_address,
        address_of(("PyBytes_AsString", ctypes.pythonapi)),
        view_of(("PyMemoryView_FromMemory", ctypes.pythonapi)),
        advise,
        mmap.MADV_HUGEPAGE,
    )
    return functions.checked()
