"""Request bodies that are made of the values of `model`, so that a field is stated once.

A field of the value becomes a field of the body: the same name, type, default, description and
bounds. Bodies add what only HTTP has (other spellings, `stream`, …) and replace what JSON cannot
carry (bytes). `vars` returns the fields of a body: one that the client left out has the default of
the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import GenericAlias, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, create_model

from sandkasten_server.api.request.field_schemas import WHOLE
from sandkasten_server.api.route import Body

if TYPE_CHECKING:
    from collections.abc import Iterable


def body_of(
    name: str,
    value: Any,
    *,
    without: Iterable[str] = (),
    schema: dict[str, Any] | None = None,
    **more: tuple[Any, Any],
) -> type[Body]:
    """Return a body with the fields of `value` except `without`, and with `more`.

    `schema` are rules about several fields, from `field_schemas`.
    """
    hints = get_type_hints(value)
    definitions: dict[str, Any] = dict(more)
    for field in fields(value):
        if field.name in without or field.name in more:
            continue
        about = dict(field.metadata)
        kind = _json_type(hints[field.name])
        description = about.pop("description", None)
        if about:
            kind = _narrowed(kind, Field(json_schema_extra=about.pop("schema", None), **about))
        if field.default_factory is not MISSING:
            definitions[field.name] = (kind, Field(default_factory=dict, description=description))
        elif field.default == ():
            definitions[field.name] = (kind, Field(default_factory=list, description=description))
        else:
            definitions[field.name] = (kind, Field(field.default, description=description))
    base = type(name, (Body,), {"model_config": ConfigDict(json_schema_extra=schema)})
    return create_model(name, __base__=base, **definitions)


def _narrowed(kind: Any, about: Any) -> Any:
    """Return the type with what is known about its values, which is not about null."""
    inner = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return Union[tuple(_with(member, about) for member in inner)]  # noqa: UP007  (made at runtime)


def _with(kind: Any, about: Any) -> Any:
    if kind is int:
        return Annotated[kind, about, WHOLE]
    return kind if kind is NoneType else Annotated[kind, about]


def _json_type(hint: Any) -> Any:
    """Return the type of the JSON that stands for a value: lists for tuples, dicts for mappings."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return Union[tuple(_json_type(member) for member in inner)]  # noqa: UP007  (made at runtime)
    if origin is tuple:
        return GenericAlias(list, inner[:1])
    if origin is Mapping:
        return GenericAlias(dict, tuple(_json_type(member) for member in inner))
    return hint
