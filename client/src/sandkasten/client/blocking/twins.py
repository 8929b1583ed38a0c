"""How the blocking classes are derived from the asynchronous ones.

A twin holds the asynchronous object as `_twin`; its methods are those methods, run on the process's
loop thread, with the same arguments, results and errors.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sandkasten.client.blocking import loop_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


def waiting(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return the blocking form of a method."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return loop_thread.run(method(self._twin, *args, **kwargs))

    return call


def waiting_for(
    kind: Callable[[T], S], method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]
) -> Callable[Concatenate[Any, P], S]:
    """Return the blocking form of a method whose result has its own twin."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> S:
        return kind(loop_thread.run(method(self._twin, *args, **kwargs)))

    return _answering(call, kind)


def giving(
    kind: Callable[[T], S], method: Callable[Concatenate[A, P], T]
) -> Callable[Concatenate[Any, P], S]:
    """Return the blocking form of a method that does not wait."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> S:
        return kind(method(self._twin, *args, **kwargs))

    return _answering(call, kind)


def handing(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method that calls the same method of the object's `_agents`."""

    @functools.wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await method(self._agents, *args, **kwargs)

    return call


def waiting_alone(name: str, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return the blocking form of a function."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return loop_thread.run(function(*args, **kwargs))

    call.__name__ = call.__qualname__ = name
    return call


def arguments_of(
    source: Callable[P, object],
) -> Callable[[Callable[Concatenate[A, ...], T]], Callable[Concatenate[A, P], T]]:
    """Make a forwarding method show the arguments of `source`."""

    def decorate(method: Callable[Concatenate[A, ...], T]) -> Callable[Concatenate[A, P], T]:
        signature = inspect.signature(method)
        first = next(iter(signature.parameters.values()))
        parameters = inspect.signature(source).parameters.values()
        method.__signature__ = signature.replace(parameters=[first, *parameters])  # type: ignore[attr-defined]
        return method

    return decorate


def _answering(call: Callable[P, S], kind: Callable[..., object]) -> Callable[P, S]:
    """Make `inspect` and editors show the twin that is returned."""
    shown = inspect.signature(call).replace(return_annotation=kind.__name__)
    call.__signature__ = shown  # type: ignore[attr-defined]
    return call
