"""Values with expressions in them: `${steps.plan.output.title}` in any text of a JSON value.

A text that is one expression and nothing else becomes the expression's value, whatever its kind. In
any other text each expression is replaced by the text of its value. `$${` stands for `${`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Part:
    """Of a text: as it stands, or an expression."""

    text: str
    expression: bool


def parts(text: str) -> list[Part]:
    """ValueError when an expression has no end."""
    found: list[Part] = []
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
            found.append(Part("".join(plain), expression=False))
        found.append(Part(text[start + 2 : end].strip(), expression=True))
        plain, at = [], end + 1
    plain.append(text[at:])
    if any(plain) or not found:
        found.append(Part("".join(plain), expression=False))
    return found


def _end(text: str, at: int) -> int:
    """Where the brace that was opened before `at` is closed; braces in quotes do not count."""
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
    """Every text in a JSON value, with where it stands. Keys are no templates."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from texts(inner, f"{path}[{index}]")


def expressions(value: Any) -> list[str]:
    """All that have to be evaluated, in the order of the text."""
    return [
        part.text
        for _, text in texts(value)
        if "${" in text
        for part in parts(text)
        if part.expression
    ]


def filled(value: Any, results: Sequence[Any]) -> Any:
    """The value with these results in place of its expressions, in the same order."""
    return _filled(value, iter(results))


def _filled(value: Any, results: Iterator[Any]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(inner, results) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, results) for inner in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    found = parts(value)
    if len(found) == 1 and found[0].expression:
        return next(results)
    return "".join(text_of(next(results)) if part.expression else part.text for part in found)


def text_of(value: Any) -> str:
    """As it is put into a text, and compared with one: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
