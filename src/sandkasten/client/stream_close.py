"""Leaving an asynchronous stream early, properly: one small tool for the rest of the client."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

T = TypeVar("T")


@asynccontextmanager
async def closing(source: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """The stream, closed at the end of the block where it can be (generators can).

    `async for` alone leaves that to the garbage collector, and with it whatever the stream
    holds open in the sandbox.
    """
    try:
        yield source
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()
