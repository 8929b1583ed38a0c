"""Decode the output of a code context, which is hostile, into values. Pure.

Every line is bounded before it is parsed; types are checked, unknown ones ignored, and strings and
JSON values are freed of NaN and surrogates. Data over a limit is cut and marked. Invalid data is
KernelFailed.
"""

from __future__ import annotations

import json
import math
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import KernelFailed
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.model.commands.code_values import CodeDisplay, CodeError, CodeItem, CodeText
from sandkasten.model.json_structure import has_more_values

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINE_BYTES: Final = 256 * 1024
MAX_RESULT_BYTES: Final = 10_000_000
"""Maximum size of all results of one call, as JSON."""
MAX_RESULTS: Final = 1000
_MAX_MESSAGE: Final = MAX_RESULT_BYTES + 64 * 1024
MAX_LONG_BYTES: Final = 4 * _MAX_MESSAGE
"""Maximum size of all messages of one call that are parsed in a thread, besides its text.

The program sends the results of a call and an error of the same size, and no more.
"""
# A control character takes six bytes as JSON.
_JSON_FACTOR: Final = 8
# Numbers, strings, lists and objects of one message: 60 ms in the parser, and no other thread runs
# meanwhile. A line that is not a part of a longer message has at most 32 kB.
MAX_VALUES: Final = 400_000
_MAX_LINE_VALUES: Final = 20_000
# A limit for all results of one call, which become one answer.
_MAX_NODES: Final = 400_000
_MAX_DEPTH: Final = 32
_MAX_EXTRA: Final = 16
_MAX_ERROR_TEXT: Final = 64 * 1024
# Longer messages are parsed in a thread, because parsing them would delay other requests.
SLOW_BYTES: Final = 32 * 1024
_ANSI: Final = lazy_pattern.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])"
)
_STATUSES: Final = frozenset(
    ("ok", "timed_out", "interrupted", "restarted", "died", "busy", "no_kernel", "not_started")
)
_TEXTS: Final = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/png": "png",
    "image/svg+xml": "svg",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/javascript": "javascript",
}
_BASE64: Final = frozenset(("png", "jpeg", "pdf"))
_VALUES: Final = {
    "application/json": "json",
    "application/vnd.sandkasten.data+json": "data",
    "application/vnd.sandkasten.chart+json": "chart",
}


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a call."""

    status: str
    count: int | None
    truncated: bool
    restarted: bool
    detail: str


@dataclass(slots=True)
class CallLines:
    """The lines of one call among those of a context."""

    call: str
    most_out: int
    most_err: int
    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)
    results: list[CodeDisplay] = field(default_factory=list)
    error: CodeError | None = None
    truncated: bool = False
    seen: bool = False
    """True if the context has answered this call."""
    owed: int = 0
    """Bytes that are not acknowledged yet."""
    _buffer: bytearray = field(default_factory=bytearray)
    _parts: list[str] = field(default_factory=list)
    _parts_bytes: int = 0
    _result_bytes: int = 0
    _long_left: int = field(init=False)
    _nodes_left: list[int] = field(default_factory=lambda: [_MAX_NODES])
    _first: bool = True

    def __post_init__(self) -> None:
        self._long_left = MAX_LONG_BYTES + _JSON_FACTOR * (self.most_out + self.most_err)

    def feed(self, data: bytes) -> Iterator[str]:
        """Yield the messages of this call that `data` completes, as JSON."""
        self._buffer += data
        if b"\n" not in data and len(self._buffer) <= MAX_LINE_BYTES:
            return
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = rest
        if len(rest) > MAX_LINE_BYTES:
            raise invalid("a line is too long")
        for line in lines:
            first, self._first = self._first, False
            try:
                body = _parsed(bytes(line), MAX_LINE_BYTES, _MAX_LINE_VALUES)
            except KernelFailed:
                # Reading begins at a chunk, which may be in the middle of a line.
                if first:
                    continue
                raise
            if body.get("call") != self.call:
                continue
            self.seen = True
            self.owed += len(line) + 1
            if "part" not in body:
                yield line.decode()
            elif (whole := self._joined(body)) is not None:
                yield whole

    def _joined(self, body: dict[str, Any]) -> str | None:
        part = body["part"]
        if not isinstance(part, str):
            raise invalid("a part is not a string")
        self._parts.append(part)
        # An empty part takes memory too.
        self._parts_bytes += len(part) + 1
        if self._parts_bytes > _MAX_MESSAGE:
            raise invalid("a message is too long")
        if body.get("last") is not True:
            return None
        whole = "".join(self._parts)
        self._parts, self._parts_bytes = [], 0
        return whole

    def take(self, message: str) -> CodeItem | Done | None:
        """Return the value of a message; None if there is nothing to show."""
        raw = message.encode("utf-8", "replace")
        if len(raw) > SLOW_BYTES:
            self._long_left -= len(raw)
            if self._long_left < 0:
                raise invalid("more data than a call may display")
        if has_more_values(raw, MAX_VALUES):
            # The program shows such a value as text; only a false one sends it.
            self.truncated = True
            return None
        body = _parsed(raw, _MAX_MESSAGE, MAX_VALUES)
        match body.get("type"):
            case "text":
                return self._text(body)
            case "result":
                return self._result(body, len(message))
            case "error":
                self.error = CodeError(
                    _string(body.get("name"))[:1000],
                    _string(body.get("value")),
                    plain(_string(body.get("traceback"))[-_MAX_ERROR_TEXT:]),
                )
            case "done":
                return _done(body)
        return None

    def _text(self, body: dict[str, Any]) -> CodeText | None:
        text, out = _string(body.get("text")), body.get("stream") == "stdout"
        room = self.most_out if out else self.most_err
        raw = text.encode()
        if len(raw) > room:
            self.truncated = True
            raw = raw[:room]
            text = raw.decode(errors="ignore")
        if not text:
            return None
        if out:
            self.most_out -= len(raw)
            self.stdout.append(text)
        else:
            self.most_err -= len(raw)
            self.stderr.append(text)
        return CodeText("stdout" if out else "stderr", text)

    def _result(self, body: dict[str, Any], size: int) -> CodeDisplay | None:
        self._result_bytes += size
        if self._result_bytes > _MAX_MESSAGE or len(self.results) >= MAX_RESULTS:
            self.truncated = True
            return None
        nodes_left = self._nodes_left
        shown = display_of(body.get("data"), main=body.get("main") is True, nodes_left=nodes_left)
        self.truncated = self.truncated or nodes_left[0] < 0
        self.results.append(shown)
        return shown


def display_of(
    bundle: object, *, main: bool = False, nodes_left: list[int] | None = None
) -> CodeDisplay:
    """Return a MIME bundle of Jupyter as a CodeDisplay.

    `nodes_left` counts the values that may still be kept; below 0, some were replaced by null.
    """
    if not isinstance(bundle, dict):
        raise invalid("a result is not an object")
    fields: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    nodes_left = [_MAX_NODES] if nodes_left is None else nodes_left
    for mime, value in bundle.items():
        if mime in _TEXTS:
            name = _TEXTS[mime]
            text = _string("".join(map(str, value)) if isinstance(value, list) else value)
            fields[name] = "".join(text.split()) if name in _BASE64 else text
        elif mime in _VALUES:
            fields[_VALUES[mime]] = cleaned(value, nodes_left)
        elif len(extra) < _MAX_EXTRA:
            extra[_string(mime)[:200]] = cleaned(value, nodes_left)
    return CodeDisplay(**fields, extra=extra, main=main)


def cleaned(value: object, nodes_left: list[int], depth: int = 0) -> Any:
    """Return a JSON value that is bounded in depth and size, without NaN and surrogates."""
    nodes_left[0] -= 1
    if nodes_left[0] < 0 or depth > _MAX_DEPTH:
        return None
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, dict):
        return {_string(k)[:1000]: cleaned(v, nodes_left, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [cleaned(item, nodes_left, depth + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if type(value) is int and abs(value) >= 1 << 63:
        return str(value) if abs(value) < 1 << 1024 else None
    return value


def plain(text: str) -> str:
    """Return a string without the escape sequences of a terminal."""
    return _ANSI.sub("", text)


def invalid(what: str) -> KernelFailed:
    return KernelFailed(
        f"the code context sent invalid data: {what}",
        hint="it was ended; a new call starts another context",
    )


def _done(body: dict[str, Any]) -> Done:
    status, count = body.get("status"), body.get("count")
    if not isinstance(status, str) or status not in _STATUSES:
        raise invalid("a call ended with an unknown status")
    checked_count = count if type(count) is int and 0 <= count < 1 << 53 else None
    return Done(
        status,
        checked_count,
        body.get("truncated") is True,
        body.get("restarted") is True,
        plain(_string(body.get("detail")))[:2000],
    )


def _string(value: object) -> str:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _parsed(line: bytes, most: int, most_values: int) -> dict[str, Any]:
    if len(line) > most:
        raise invalid("a line is too long")
    if has_more_values(line, most_values):
        raise invalid("a line has too many values")
    try:
        # From a string: bytes could be UTF-16 too.
        body = json.loads(line.decode())
    except (ValueError, RecursionError) as exc:
        raise invalid("a line is not JSON") from exc
    if not isinstance(body, dict):
        raise invalid("a line is not an object")
    return body
