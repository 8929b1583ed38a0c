"""Values of `model` as JSON and back: one codec for HTTP, the client and the stores.

A value is a frozen dataclass; its JSON is an object of the same names. A field with
`metadata={"json": name}` has another one. Three types take a second key, as the public contract
says: `bytes` and `FileName` have `<name>_b64` where they are not UTF-8, `Timestamp` is a date and
has `<name>_unix`. Decoding is strict: another type is ShapeError, an unknown key is ignored, a
missing one has its default. Annotations are read once for each class.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import os
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin

T = TypeVar("T")
Json = dict[str, Any]
Decode = Callable[[Any, str], Any]
"""Takes a value and the key it was under; raises ShapeError."""

Timestamp = Annotated[float, "timestamp"]
"""Unix seconds."""
FileName = Annotated[str, "file name"]
"""A string with surrogate escapes for bytes that are not UTF-8."""
OPEN: Final = "open"
"""Marks a Literal to which a newer version may add."""
_STEP: Final = 64 * 1024


class ShapeError(ValueError):
    """JSON that does not stand for a value of the type; `field` is the first that is wrong."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field} must be {expected}")
        self.field = field


class Public(NamedTuple):
    """Marks a field that other functions encode and decode."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def to_json(value: Any) -> Json:
    """Return a dataclass as JSON types."""
    kind: Any = type(value)
    keys, plain, writers = _writers(kind)
    body: Json = dict(zip(keys, plain(value), strict=True))
    for name, key, write in writers:
        write(body, key, getattr(value, name))
    return body


def from_json(kind: type[T], body: object, name: str = "value") -> T:
    """Return the value that JSON stands for; ShapeError when it stands for none."""
    if not isinstance(body, dict):
        raise ShapeError(name, "an object")
    values, get = {}, body.get
    plan: Any = kind
    for reader in _readers(plan):
        if reader.second is not None and get(reader.second) is not None:
            values[reader.name] = reader.decode(body[reader.second], reader.second)
            continue
        value = get(reader.key, MISSING)
        if value is MISSING or (value is None and reader.null_is_absent):
            if reader.required:
                raise ShapeError(reader.key, "given")
        else:
            values[reader.name] = reader.decode(value, reader.key)
    return kind(**values)


def iso(unix: float) -> str:
    """Return a time as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


class _Type(NamedTuple):
    """An annotation taken apart."""

    kind: Any
    """Without None, and without what Annotated adds."""
    mark: Any
    optional: bool

    @classmethod
    def of(cls, hint: Any) -> _Type:
        mark, optional = None, False
        for _ in range(2):  # Annotated[X | None, mark] or Annotated[X, mark] | None
            if get_origin(hint) is Annotated:
                hint, mark = get_args(hint)[:2]
            if get_origin(hint) in (typing.Union, UnionType):
                rest = [argument for argument in get_args(hint) if argument is not NoneType]
                optional = len(rest) < len(get_args(hint))
                hint = rest[0] if len(rest) == 1 else float if set(rest) == {int, float} else Any
        return cls(getattr(hint, "__supertype__", hint), mark, optional)

    @property
    def inner(self) -> _Type:
        """The type of the elements; of a mapping, of its values."""
        return _Type.of(get_args(self.kind)[1 if get_origin(self.kind) is Mapping else 0])

    @property
    def second(self) -> str | None:
        """How the second key ends."""
        if self.mark == "timestamp":
            return "_unix"
        return (
            "_b64" if self.kind is bytes and self.mark is None or self.mark == "file name" else None
        )


@cache
def _hints(kind: Any) -> dict[str, _Type]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: _Type.of(hints[field.name]) for field in fields(kind)}


# ---- encoding


@cache
def _writers(kind: Any) -> tuple[Any, Any, Any]:
    """Return the keys of plain fields, what gets their values, and how to write each other one."""
    plain: list[tuple[str, str]] = []
    others: list[tuple[str, str, Callable[[Json, str, Any], None]]] = []
    for field in fields(kind):
        key, hint = field.metadata.get("json", field.name), _hints(kind)[field.name]
        encode = _encoder(hint)
        if hint.second is not None:
            write = _write_timestamp if hint.mark == "timestamp" else _write_bytes
            others.append((field.name, key, write))
        elif encode is not None:
            others.append((field.name, key, _writer(encode)))
        else:
            plain.append((key, field.name))
    names = [name for _, name in plain]
    get = attrgetter(*names) if len(names) > 1 else lambda value: [getattr(value, n) for n in names]
    return tuple(key for key, _ in plain), get, others


def _encoder(hint: _Type) -> Callable[[Any], Any] | None:
    """Return what makes JSON of a value; None where it is JSON already."""
    if isinstance(hint.mark, Public):
        return hint.mark.encode
    origin = get_origin(hint.kind)
    if origin is tuple:
        each = _encoder(hint.inner)
        return list if each is None else lambda value: [each(item) for item in value]
    if origin in (frozenset, Mapping):
        return sorted if origin is frozenset else dict
    if is_dataclass(hint.kind):
        return to_json
    return attrgetter("value") if _is_enum(hint.kind) else None


def _writer(encode: Callable[[Any], Any]) -> Callable[[Json, str, Any], None]:
    def write(body: Json, key: str, value: Any) -> None:
        body[key] = None if value is None else encode(value)

    return write


def _write_timestamp(body: Json, key: str, unix: float | None) -> None:
    body[key] = None if unix is None else iso(unix)
    body[f"{key}_unix"] = unix


def _write_bytes(body: Json, key: str, value: str | bytes | None) -> None:
    if value is None:
        body[key] = None
        return
    raw = os.fsencode(value) if isinstance(value, str) else value
    try:
        body[key] = raw.decode()
    except UnicodeDecodeError:
        body[key] = _replaced(raw)
        body[f"{key}_b64"] = base64.b64encode(raw).decode("ascii")


def _replaced(raw: bytes) -> str:
    """Decode in short steps: each one keeps the interpreter to itself, for 100 ms if it decodes
    10 MB of noise at once.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    steps = [decoder.decode(raw[at : at + _STEP]) for at in range(0, len(raw), _STEP)]
    return "".join([*steps, decoder.decode(b"", final=True)])


# ---- decoding


class _Reader(NamedTuple):
    name: str
    key: str
    second: str | None
    """A key that wins over `key`."""
    decode: Decode
    required: bool
    null_is_absent: bool
    """An empty list or object may be null."""


@cache
def _readers(kind: Any) -> tuple[_Reader, ...]:
    readers = []
    for field in fields(kind):
        key, hint = field.metadata.get("json", field.name), _hints(kind)[field.name]
        container = get_origin(hint.kind) in (tuple, frozenset, Mapping) or is_dataclass(hint.kind)
        readers.append(
            _Reader(
                field.name,
                key,
                None if hint.second is None else key + hint.second,
                _decoder(hint),
                field.default is MISSING and field.default_factory is MISSING,
                container and not hint.optional,
            )
        )
    return tuple(readers)


def _decoder(hint: _Type) -> Decode:
    decode = _present(hint)
    if not hint.optional or isinstance(hint.mark, Public):
        return decode
    return lambda value, key: None if value is None else decode(value, key)


def _present(hint: _Type) -> Decode:
    kind, mark, origin = hint.kind, hint.mark, get_origin(hint.kind)
    if isinstance(mark, Public):
        return lambda value, key: mark.decode(value)
    if mark == "timestamp":
        return _timestamp
    if mark == "file name":
        return lambda value, key: os.fsdecode(_bytes(value, key))
    if is_dataclass(kind):
        return lambda value, key: from_json(kind, value, key)  # type: ignore[arg-type]
    if origin is Literal and mark != OPEN:
        return lambda value, key: _choice(value, key, get_args(kind))
    if origin in (tuple, frozenset):
        each = _decoder(hint.inner)
        return lambda value, key: origin(each(item, key) for item in _object(list, value, key))
    if origin is Mapping:
        each = _decoder(hint.inner)
        return lambda value, key: {
            name: each(item, key) for name, item in _object(dict, value, key).items()
        }
    if _is_enum(kind):
        return lambda value, key: kind(_choice(value, key, tuple(member.value for member in kind)))
    scalars = {float: _number, int: _whole, bool: _flag, bytes: _bytes, Any: lambda value, _: value}
    return scalars.get(kind, _string)


def _is_enum(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _object(kind: type[T], value: object, key: str) -> T:
    if not isinstance(value, kind):
        raise ShapeError(key, "a list" if kind is list else "an object")
    return value


def _string(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise ShapeError(key, "a string")
    return value


def _flag(value: object, key: str) -> bool:
    if not isinstance(value, bool):
        raise ShapeError(key, "true or false")
    return value


def _number(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ShapeError(key, "a number")
    # False for NaN, infinity and an integer that no float can hold.
    if not abs(value) <= sys.float_info.max:
        raise ShapeError(key, "a number")
    return value


def _whole(value: object, key: str) -> int:
    number = value if type(value) is int else _number(value, key)
    if number != int(number):
        raise ShapeError(key, "a whole number")
    return int(number)


def _choice(value: object, key: str, allowed: tuple[Any, ...]) -> Any:
    if not isinstance(value, str) or value not in allowed:
        raise ShapeError(key, f"one of {', '.join(allowed)}")
    return value


def _timestamp(value: object, key: str) -> float:
    if not isinstance(value, str):
        return _number(value, key)
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError):
        raise ShapeError(key, "a date") from None


def _bytes(value: object, key: str) -> bytes:
    text = _string(value, key)
    if not key.endswith("_b64"):
        return text.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ShapeError(key, "base64") from None


BASE64: Final = Public(
    lambda data: None if data is None else base64.b64encode(data).decode("ascii"),
    lambda text: None if text is None else _bytes(text, "content_b64"),
)
"""Marks bytes that are base64 in JSON and nothing else."""
