"""Values with embedded expressions: `${steps.plan.output.title}` in any string of a JSON value.

A string that is exactly one expression becomes the value of the expression, of any type. In any
other string each expression is replaced by its value as text. `$${` stands for `${`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class TemplatePart:
    """Part of a string: literal text, or an expression."""

    text: str
    expression: bool


def split_template(text: str) -> list[TemplatePart]:
    """Split a string into parts. Raise ValueError when an expression is not closed."""
    parts: list[TemplatePart] = []
    plain: list[str] = []
    at = 0
    while (start := text.find("${", at)) >= 0:
        if start > at and text[start - 1] == "$":  # `$${`
            plain += [text[at : start - 1], "${"]
            at = start + 2
            continue
        end = _end(text, start + 2)
        plain.append(text[at:start])
        if any(plain):
            parts.append(TemplatePart("".join(plain), expression=False))
        parts.append(TemplatePart(text[start + 2 : end].strip(), expression=True))
        plain, at = [], end + 1
    plain.append(text[at:])
    if any(plain) or not parts:
        parts.append(TemplatePart("".join(plain), expression=False))
    return parts


def _end(text: str, at: int) -> int:
    """Return the index of the closing brace; braces in quotes do not count."""
    depth, quote = 0, ""
    index = at
    while index < len(text):
        char = text[index]
        if quote:
            if char == "\\":
                index += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char == "{":
            depth += 1
        elif char == "}":
            if depth == 0:
                return index
            depth -= 1
        index += 1
    raise ValueError("an expression starts with ${ but is never closed")


def texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Return every string in a JSON value with its path. Keys are not templates."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from texts(inner, f"{path}[{index}]")


def expressions(value: Any) -> list[str]:
    """Return all expressions to evaluate, in textual order."""
    return [
        part.text
        for _, text in texts(value)
        if "${" in text
        for part in split_template(text)
        if part.expression
    ]


def filled(value: Any, results: Sequence[Any]) -> Any:
    """Return the value with its expressions replaced by these results, in the same order."""
    return _filled(value, iter(results))


def _filled(value: Any, results: Iterator[Any]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(inner, results) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, results) for inner in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    parts = split_template(value)
    if len(parts) == 1 and parts[0].expression:
        return next(results)
    return "".join(text_of(next(results)) if part.expression else part.text for part in parts)


def text_of(value: Any) -> str:
    """Return a value as text for insertion and comparison: a string unchanged, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
