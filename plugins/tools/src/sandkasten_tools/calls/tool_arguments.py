"""Validation of a model's arguments against a tool's schema, before anything is done with them.

A violation is InvalidRequest with each problem, so that the model can fix its call. Values are not
repeated at length. The schemas are ours, so the library's own validator is safe; inputs that would
take it long are rejected first. A large string takes no time.
"""

from __future__ import annotations

import base64
import binascii
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from jsonschema import Draft202012Validator

from sandkasten.errors import InvalidRequest
from sandkasten.model.spelling import did_you_mean, shown
from sandkasten_tools.calls.tool_schemas import TOOLS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jsonschema import ValidationError

    from sandkasten_tools.calls.tool_schemas import ToolSpec

_MOST_PROBLEMS: Final = 5
# Enough for a command of ten thousand words, or a thousand files or variables.
_MOST_PARTS: Final = 20_000
_MOST_LEVELS: Final = 8
_MOST_TEXT: Final = 200


def checked(spec: ToolSpec, arguments: object) -> Mapping[str, Any]:
    """Return the arguments unchanged, or raise InvalidRequest."""
    if not isinstance(arguments, dict):
        raise _refused(spec, ["the arguments are not an object"])
    if _is_too_much(arguments):
        raise _refused(spec, ["the arguments have too many parts"])
    problems = _choice(spec, arguments) + _lacking(spec, arguments) + _unknown(spec, arguments)
    if not problems:
        errors = _validator(spec.name).iter_errors(arguments)
        problems = [_describe(error) for error in islice(errors, _MOST_PROBLEMS)]
    if problems:
        raise _refused(spec, problems)
    return arguments


def decoded(field: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(
            f"{field} is not valid base64", hint="encode the bytes as in RFC 4648", field=field
        ) from exc


def encoded(field: str, text: str) -> bytes:
    """Encode a string; JSON can carry lone surrogates, which have no encoding."""
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidRequest(
            f"{field} contains an unpaired surrogate",
            hint="send valid Unicode, or the bytes in base64",
            field=field,
        ) from exc


def _is_too_much(arguments: object) -> bool:
    """Return whether there are too many values; count level by level, no further than needed."""
    here, parts = [arguments], 0
    for _ in range(_MOST_LEVELS):
        inner: list[object] = []
        for item in here:
            if isinstance(item, dict | list):
                parts += len(item)
                if parts > _MOST_PARTS:
                    return True
                inner += item.values() if isinstance(item, dict) else item
        if not inner:
            return False
        here = inner
    return True


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(TOOLS[name].parameters)


def _choice(spec: ToolSpec, arguments: Mapping[str, Any]) -> list[str]:
    chosen = [name for name in spec.one_of if name in arguments]
    if not spec.one_of or len(chosen) == 1:
        return []
    if chosen:
        return [f"{' and '.join(chosen)} are mutually exclusive; pass one of them"]
    return [f"{spec.one_of[0]} is missing (or {', '.join(spec.one_of[1:])})"]


def _lacking(spec: ToolSpec, arguments: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} requires {other}"
        for name, other in spec.needs
        if name in arguments and other not in arguments
    ]


def _unknown(spec: ToolSpec, arguments: Mapping[str, Any]) -> list[str]:
    properties = spec.parameters["properties"]
    return [
        f"unknown argument {shown(str(name))} ({did_you_mean(str(name), properties)})"
        for name in list(arguments)[: len(properties) + _MOST_PROBLEMS]
        if name not in properties
    ][:_MOST_PROBLEMS]


def _describe(error: ValidationError) -> str:
    where = error.json_path.removeprefix("$").removeprefix(".")
    text = error.message if len(error.message) <= _MOST_TEXT else error.message[:_MOST_TEXT] + "…"
    return f"{where[:_MOST_TEXT]}: {text}" if where else text


def _refused(spec: ToolSpec, problems: list[str]) -> InvalidRequest:
    return InvalidRequest(
        f"{spec.name} rejected its arguments: {'; '.join(problems)}",
        hint="fix the arguments and call it again",
        tool=spec.name,
        problems=problems,
    )
