"""YAML of agents and workflows, restricted to JSON types: strings, numbers, booleans, lists,
mappings.

The file is untrusted input. Aliases, anchors, tags, directives, merge keys, repeated keys, keys
that are not strings, a second document, bytes that are not UTF-8, control characters, more bytes
than `max_bytes` and more than 32 levels are rejected, each with its line. Size and characters are
checked before parsing.

Plain words follow the core schema of YAML 1.2, without its surprises: only `true` and `false` (and
`True`, `TRUE`, …) are booleans, so `yes`, `no`, `on` and `off` are strings; dates, times, `1_000`
and `12:30` are strings; octal is `0o17`, and a number with a leading zero (`0644`) is a string,
because parsers disagree about it. A number that JSON lacks (`.inf`, `.nan`, `1e999`) is rejected.
Keys are strings as written.

Raises the error class that the caller names, with `line` in its details.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

import yaml

from sandkasten.errors import InvalidRequest
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandkasten.errors import RequestError

MAX_DEPTH: Final = 32

# Characters that YAML never allows, and line ends that only old YAML knows.
_FORBIDDEN: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]"
)
_BOM: Final = "\ufeff"
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset({"true", "True", "TRUE"})
_FALSE: Final = frozenset({"false", "False", "FALSE"})
_WHOLE: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_OCTAL: Final = re.compile(r"0o[0-7]+\Z")
_HEX: Final = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT: Final = re.compile(
    r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z"
)
_NO_NUMBER: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")
# A longer literal is not meant as a number, and parsing takes quadratic time.
_MOST_DIGITS: Final = 64

# The C parser produces the same events thirty times faster; some installations lack it.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(
    text: str | bytes,
    *,
    max_bytes: int,
    what: str,
    error: type[RequestError] = InvalidRequest,
    first_line: int = 1,
) -> Any:
    """Return the plain data of one document; None if it is empty.

    `what` is the subject of messages ("the frontmatter of x.prompt"); `first_line` is the line
    number in the file at which the text starts.
    """
    return _Reader(what, error, first_line).read(
        checked_text(text, max_bytes=max_bytes, what=what, error=error, first_line=first_line)
    )


def checked_text(
    text: str | bytes,
    *,
    max_bytes: int,
    what: str,
    error: type[RequestError] = InvalidRequest,
    first_line: int = 1,
) -> str:
    """Return the text after checking size and characters, without a byte order mark."""
    # A string has at least as many bytes as characters: reject a large one without a copy.
    if len(text) > max_bytes or (
        isinstance(text, str) and len(text.encode(errors="replace")) > max_bytes
    ):
        raise error(
            f"{what} is larger than {max_bytes} bytes",
            hint="shorten it, or let the agent read the rest from a file",
            limit=max_bytes,
        )
    try:
        text = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError as exc:
        raise error(
            f"{what} is not UTF-8: byte 0x{exc.object[exc.start]:02x} at offset {exc.start}",
            hint="save the file as UTF-8",
            offset=exc.start,
            line=first_line + exc.object.count(b"\n", 0, exc.start),
        ) from exc
    text = text.removeprefix(_BOM)
    match = _FORBIDDEN.search(text)
    if match is not None:
        line = first_line + text.count("\n", 0, match.start())
        raise error(
            f"{what} has the control character U+{ord(match[0]):04X} on line {line}",
            hint="remove it, or write it as an escape in a quoted string",
            line=line,
        )
    return text


class _Reader:
    def __init__(self, what: str, error: type[RequestError], first_line: int) -> None:
        self._what = what
        self._error = error
        self._first_line = first_line

    def read(self, text: str) -> Any:
        try:
            return self._document(yaml.parse(text, Loader=_LOADER))
        except yaml.YAMLError as exc:
            mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
            line = self._first_line + (mark.line if mark is not None else 0)
            problem = getattr(exc, "problem", None) or "it cannot be parsed"
            raise self._error(
                f"{self._what} is not valid YAML on line {line}: {str(problem)[:120]}",
                hint=_way_out(text, mark),
                line=line,
            ) from exc

    def _document(self, events: Iterator[Any]) -> Any:
        value: Any = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(event, "contains a second document", "keep one of them")
                if event.version or event.tags:
                    self._refuse(event, "has a YAML directive", "remove the line with %")
            elif isinstance(event, yaml.NodeEvent):
                value = self._node(event, events, 1)
        return value

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            self._refuse(event, "uses a YAML alias", "write the value out")
        if event.anchor is not None:
            self._refuse(event, "has a YAML anchor", "remove the word with &")
        if event.tag is not None:
            self._refuse(event, "has a YAML tag", "write a plain value, without !")
        if depth > MAX_DEPTH:
            self._refuse(event, f"is nested more than {MAX_DEPTH} levels deep", "flatten it")
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(inner := next(events), yaml.SequenceEndEvent):
                items.append(self._node(inner, events, depth + 1))
            return items
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(events, depth)
        return self._scalar(event)

    def _mapping(self, events: Iterator[Any], depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(event, "has a key that is not a string", "write `name: value`")
            # Rejects an anchor or a tag of the key.
            self._node(event, events, depth)
            plain, key = _plain(event), str(event.value)
            if plain and key == "<<":
                self._refuse(event, "uses a YAML merge key", "write the values out")
            if plain and key in _NULL:
                self._refuse(event, "has an empty key", "write `name: value`")
            if key in values:
                self._refuse(event, f"has the key {shown(key)} twice", "keep one of them")
            values[key] = self._node(next(events), events, depth + 1)
        return values

    def _scalar(self, event: Any) -> Any:
        text = str(event.value)
        if not _plain(event):
            return text
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        if _NO_NUMBER.match(text):
            self._refuse(
                event,
                f"contains {text}, which is not a number in JSON",
                "quote it if you mean a string",
            )
        for form, base in ((_WHOLE, 10), (_OCTAL, 8), (_HEX, 16)):
            if form.match(text):
                return int(self._short(event, text), base)
        if _FLOAT.match(text):
            value = float(self._short(event, text))
            if not math.isfinite(value):
                self._refuse(
                    event, "has a number that is too large", "quote it if you mean a string"
                )
            return value
        return text

    def _short(self, event: Any, digits: str) -> str:
        if len(digits) > _MOST_DIGITS:
            self._refuse(event, "has a number that is too long", "quote it if you mean a string")
        return digits

    def _refuse(self, event: Any, problem: str, hint: str) -> NoReturn:
        line = self._first_line + event.start_mark.line
        raise self._error(f"{self._what} {problem} on line {line}", hint=hint, line=line)


def _way_out(text: str, mark: Any) -> str:
    # The parser reports a character that cannot start a token, and an editor shows nothing.
    lines = text.split("\n")
    at = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    if "\t" in at[: len(at) - len(at.lstrip())]:
        return "indent with spaces: YAML does not allow tabs"
    return "check its indentation, colons and quotes"


def _plain(event: Any) -> bool:
    """Describe a plain scalar. The two parsers use the same words only here."""
    return bool(event.implicit[0])
