"""Types of request fields whose JSON Schema has all that the rules of `model` require.

The rules refuse a value with a message and a hint; these types make the OpenAPI document say the
same beforehand. They refuse nothing themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from sandkasten.model import field_patterns as forms
from sandkasten.model.durations import DURATION, MAX_NUMBER
from sandkasten.model.files.sandbox_paths import PATH_MAX
from sandkasten.model.images.image_name import MAX_NAME
from sandkasten.model.sandbox.limit_names import limits_schema

if TYPE_CHECKING:
    from pydantic import BaseModel


def schema(**keywords: Any) -> Any:
    """Return an annotation that adds keywords to the JSON Schema of a type."""
    return Field(json_schema_extra=keywords)


def shaped(pattern: str, **keywords: Any) -> Any:
    """Return an annotation for a string that has this form as a whole."""
    return schema(pattern=forms.shown_form(pattern), **keywords)


def _whole(value: object) -> object:
    return int(value) if type(value) is float and value.is_integer() else value


# 1.0 is an integer in JSON Schema, and in languages with one kind of number. It comes last, so that
# bounds before it are part of the JSON Schema.
WHOLE = BeforeValidator(_whole)
NoNul = Annotated[str, shaped(forms.NO_NUL)]
Path = Annotated[str, shaped(forms.PATH, maxLength=PATH_MAX - 1)]
Directory = Annotated[str, shaped(forms.NO_NUL, minLength=1, maxLength=PATH_MAX - 1)]
Base64 = Annotated[str, shaped(forms.BASE64, contentEncoding="base64")]
AnyBase64 = Annotated[str, shaped(forms.ANY_BASE64, contentEncoding="base64")]
PathB64 = Annotated[str, shaped(forms.ANY_BASE64, minLength=2, contentEncoding="base64")]
ImageName = Annotated[str, shaped(forms.IMAGE_NAME, maxLength=MAX_NAME)]
WorkspaceName = Annotated[str, shaped(forms.WORKSPACE_NAME)]
FileKey = Annotated[str, shaped(forms.FILE_KEY, maxLength=512)]
ContentType = Annotated[str, shaped(forms.CONTENT_TYPE)]
Tenant = Annotated[str, shaped(forms.TENANT)]
Limits = Annotated[dict[str, int | float], schema(**limits_schema())]
Duration = (
    Annotated[float, schema(minimum=0, maximum=MAX_NUMBER)] | Annotated[str, shaped(DURATION)]
)
Printable = Annotated[str, shaped(forms.PRINTABLE + "{1,256}")]

EXACTLY_ONE = "x-exactly-one"
AT_MOST_ONE = "x-at-most-one"

_GIVEN: dict[str, Any] = {"not": {"type": "null"}}
_ABSENT: dict[str, Any] = {"type": "null"}


def exactly_one(*names: str) -> dict[str, Any]:
    """Return a rule for an object: one of these fields has a value, the others are null."""
    return {
        "oneOf": [
            {
                "required": [name],
                "properties": {field: _GIVEN if field == name else _ABSENT for field in names},
            }
            for name in names
        ]
    }


def at_most_one(first: str, second: str) -> dict[str, Any]:
    return {"anyOf": [{"properties": {field: _ABSENT}} for field in (first, second)]}


def at_least_one(*names: str) -> dict[str, Any]:
    return {"anyOf": [{"required": [field], "properties": {field: _GIVEN}} for field in names]}


def requires(name: str, other: str) -> dict[str, Any]:
    """Return a rule for an object: `name` has a value only if `other` has one."""
    return {"anyOf": [{"properties": {name: _ABSENT}}, at_least_one(other)["anyOf"][0]]}


def not_both(first: str, second: str) -> dict[str, Any]:
    """Return a rule for an object: two flags are not both true."""
    return {"anyOf": [{"properties": {field: {"const": False}}} for field in (first, second)]}


def text_schema(query: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a query or a form, in which no field is null."""
    schema = query.model_json_schema()
    for about in schema.get("properties", {}).values():
        kinds = [kind for kind in about.get("anyOf", ()) if kind != _ABSENT]
        if len(kinds) == 1 and about.pop("default", None) is None:
            del about["anyOf"]
            about.update(kinds[0])
    return schema


def one_given(*names: str) -> dict[str, Any]:
    """Return a rule for a query: exactly one of these. OpenAPI itself cannot express it."""
    return {EXACTLY_ONE: list(names)}


def at_most_given(*names: str) -> dict[str, Any]:
    return {AT_MOST_ONE: list(names)}


def rules(*several: dict[str, Any]) -> dict[str, Any]:
    """Return all rules together, as the `json_schema_extra` of a model."""
    return several[0] if len(several) == 1 else {"allOf": list(several)}
