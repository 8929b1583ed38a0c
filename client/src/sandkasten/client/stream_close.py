"""Closing an asynchronous stream that is left early."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

T = TypeVar("T")


@asynccontextmanager
async def closing(source: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Yield the stream and close it at the end of the block if it can be closed.

    `async for` by itself leaves that to the garbage collector, and with it whatever the stream
    holds open in the sandbox.
    """
    try:
        yield source
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()
