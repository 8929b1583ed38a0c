"""Keyword arguments of the client, which the values of `model` define.

A method that takes all options of a sandbox or of a command is declared with
`**options: Unpack[…Keywords]` and marked with `takes`, so that `help()`, editors and the reference
show each option. Rules about values (ranges, names, policy) are the engine's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, ForwardRef, TypeVar

from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions

Command = str | Sequence[str]
"""A string for the persistent shell, or the arguments of a fresh process."""

F = TypeVar("F", bound=Callable[..., Any])


def takes(keywords: type) -> Callable[[F], F]:
    """Have the signature of a function show the keyword arguments of a TypedDict."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        shown = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        shown += [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default(name, _source(hint)),
                annotation=_source(hint),
            )
            for name, hint in keywords.__annotations__.items()
        ]
        function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        return function

    return decorate


def check_keywords(function: str, keywords: type, arguments: Mapping[str, object]) -> None:
    """Raise TypeError for a keyword argument that `function` does not have."""
    for name in arguments:
        if name not in keywords.__annotations__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def _source(hint: object) -> str:
    return hint.__forward_arg__ if isinstance(hint, ForwardRef) else str(hint)


def _default(name: str, hint: str) -> object:
    """Return the default that the value class has; None and False are what is left out."""
    for option in (*fields(SandboxOptions), *fields(ExecRequest)):
        if option.name == name and option.default not in (MISSING, None):
            return option.default
    return None if "None" in hint else False
