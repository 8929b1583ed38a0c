"""Which files of a directory a `.dockerignore` leaves out. Pure.

A pattern also holds for everything below what it matches; of several, the last one decides.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_PATTERNS: Final = 1000
_LONGEST: Final = 4096
# `**` takes as little as it can; `**/` nothing, or up to a slash.
_ANY: Final = ".*?"
_BELOW: Final = "(?:.*?/)??"
_MAX_VARIANTS: Final = 8


class _Token(NamedTuple):
    text: str
    kind: Literal["text", "name", "path"]
    """`name` is `*`, `path` is `**` or `**/`."""


_SLASH: Final = _Token("/", "text")


@dataclass(frozen=True, slots=True)
class DockerIgnore:
    patterns: tuple[tuple[re.Pattern[str], bool], ...] = ()
    """Each with whether it takes back what an earlier one left out."""

    @property
    def has_exceptions(self) -> bool:
        return any(back for _, back in self.patterns)

    def excludes(self, path: str) -> bool:
        """Return whether a path below the directory is left out."""
        parts = path.split("/")
        above = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        out = False
        for pattern, back in self.patterns:
            # Cheap first: most patterns cannot change the result.
            if out == back and any(pattern.match(parent) for parent in above):
                out = not back
        return out


NOTHING: Final = DockerIgnore()


def parse_dockerignore(data: bytes) -> DockerIgnore:
    patterns: list[tuple[re.Pattern[str], bool]] = []
    for number, raw in enumerate(data.decode("utf-8-sig", "surrogateescape").split("\n"), 1):
        line = raw.strip()
        if not line or raw.startswith("#"):
            continue
        back = line.startswith("!")
        clean = posixpath.normpath("/" + line.removeprefix("!").strip()).lstrip("/")
        if clean:
            if len(patterns) == MAX_PATTERNS:
                raise InvalidRequest(
                    f".dockerignore has more than {MAX_PATTERNS} patterns",
                    hint="name directories instead of files",
                    line=number,
                )
            try:
                if len(clean) > _LONGEST:
                    raise ValueError(number)
                patterns.append((glob(clean), back))
            except (ValueError, re.error) as exc:
                raise InvalidRequest(
                    f".dockerignore line {number}: {shown(line)} is not a valid pattern",
                    hint="use *, ?, ** and [a-z]",
                    line=number,
                ) from exc
    return DockerIgnore(tuple(patterns))


def glob(pattern: str) -> re.Pattern[str]:
    """Return the expression of a pattern: `*` and `?` stay within a name, `**` does not. Raise
    ValueError.

    What follows a wildcard is looked for at its first place, and the expression does not come back
    to that (`(?>`), because a later place could not match more. So the time does not grow with the
    power of the number of wildcards.
    """
    return re.compile("|".join(map(_expression, _variants(pattern))), re.DOTALL)


def _variants(pattern: str) -> list[list[_Token]]:
    """Return the pattern without any `**/` inside a name: `a**/b` is `ab` or `a**` and `/b`.

    Elsewhere, a later beginning of `**/` does not match more than an earlier one.
    """
    variants: list[list[_Token]] = [[]]
    before = ""
    for token in _tokens(pattern):
        # `**/**/` is `**/`.
        repeated, before = token.text == before == _BELOW, token.text
        for variant in () if repeated else tuple(variants):
            begins = not variant or variant[-1].text == "/" or variant[-1].kind == "path"
            if token.text != _BELOW or begins:
                variant.append(token)
            else:
                variants.append([*variant, _Token(_ANY, "path"), _SLASH])
        if len(variants) > _MAX_VARIANTS:
            raise ValueError(pattern)
    return variants


def _expression(tokens: Iterable[_Token]) -> str:
    # Parts between `**`, each with how it begins; each has pieces between `*`.
    parts: list[tuple[str, list[str]]] = [("", [""])]
    for token in tokens:
        begins, pieces = parts[-1]
        if token.kind == "text":
            pieces[-1] += token.text
        elif token.kind == "name":
            # `**` includes a `*` after it.
            if begins != _ANY or pieces != [""]:
                pieces.append("")
        elif begins and pieces == [""]:
            parts[-1] = (begins if begins == token.text else _ANY, pieces)
        else:
            parts.append((token.text, [""]))
    out = "".join(f"(?>{begins}{_chain(pieces)})" for begins, pieces in parts[:-1])
    begins, pieces = parts[-1]
    return f"{out}{begins}{_chain(pieces, last=True)}"


def _chain(pieces: list[str], *, last: bool = False) -> str:
    """Return the expression of pieces with `*` between them; the last one ends the path."""
    first, *rest = pieces
    if not last:
        return first + "".join(f"(?>[^/]*?{piece})" for piece in rest)
    if not rest:
        return rf"{first}\Z"
    return first + "".join(f"(?>[^/]*?{piece})" for piece in rest[:-1]) + rf"[^/]*{rest[-1]}\Z"


def _tokens(pattern: str) -> Iterator[_Token]:
    """Yield each part of a pattern, as an expression."""
    at = 0
    while at < len(pattern):
        if pattern.startswith("**", at):
            at += 2
            if pattern.startswith("/", at):
                at += 1
                yield _Token(_BELOW, "path")
            else:
                yield _Token(_ANY, "path")
            continue
        character = pattern[at]
        at += 1
        if character == "*":
            yield _Token("", "name")
        elif character == "?":
            yield _Token("[^/]", "text")
        elif character == "[":
            close = pattern.index("]", at + 1)
            inner = pattern[at:close].replace("\\", "\\\\").replace("[", "\\[")
            yield _Token(f"(?!/)[{inner}]", "text")
            at = close + 1
        elif character == "\\" and at < len(pattern):
            yield _Token(re.escape(pattern[at]), "text")
            at += 1
        else:
            yield _Token(re.escape(character), "text")
