"""Request and response schemas of the file routes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StrictInt

from sandkasten.errors import InvalidRequest
from sandkasten.model.field_patterns import ACCOUNT, ANY_BASE64, OCTAL, form, shown_form
from sandkasten_server.api.files.file_names import decoded
from sandkasten_server.api.request.field_schemas import (
    WHOLE,
    AnyBase64,
    Path,
    PathB64,
    at_most_given,
    exactly_one,
    one_given,
    requires,
    rules,
    schema,
    shaped,
)
from sandkasten_server.api.route import Answer, Body, Query

_OCTAL = form(OCTAL)
_B64 = "The bytes of the name in base64, for names that are not UTF-8."

_Octal = Annotated[str, shaped(OCTAL)]
_base64_content = {
    "anyOf": [
        {"properties": {"encoding": {"not": {"const": "base64"}}}},
        {"properties": {"content": {"pattern": shown_form(ANY_BASE64)}}},
    ]
}
_PATH_ONCE = exactly_one("path", "path_b64")
Mode = Annotated[
    Annotated[StrictInt, schema(minimum=0, maximum=0o7777)] | _Octal | None,
    WHOLE,
    Field(description="Permissions: a number (420), or octal digits in a string (`0644`)."),
]
PathText = Annotated[
    Path | None, Field(description="`x`, `/work/x` and `/workspace/x` name the same file.")
]
PathBytes = Annotated[PathB64 | None, Field(description=_B64)]
FileUser = Annotated[
    Annotated[str, shaped(ACCOUNT)] | None,
    Field(
        description="`USER[:GROUP]` of the image, with profile dev. Default: the sandbox's user."
    ),
]
Flush = Annotated[
    bool, Field(description="`false`: answer before it is on disk; a power failure may lose it.")
]
Offset = Annotated[int, Field(ge=0, le=2**62)]


class WriteBody(Body):
    model_config = ConfigDict(
        json_schema_extra=rules(
            _PATH_ONCE,
            exactly_one("contents", "contents_b64", "content", "text", "content_base64"),
            requires("encoding", "content"),
            _base64_content,
        )
    )

    path: PathText = None
    path_b64: PathBytes = None
    user: FileUser = None
    contents: str | None = Field(None, description="The text of the file.")
    contents_b64: AnyBase64 | None = Field(None, description="Its bytes in base64.")
    content: str | None = Field(None, description="Either, as `encoding` says.")
    encoding: Literal["utf-8", "utf8", "text", "base64"] | None = None
    text: str | None = Field(None, description="As `contents`.")
    content_base64: AnyBase64 | None = Field(None, description="As `contents_b64`.")
    mode: Mode = None
    overwrite: bool = True
    flush: Flush = True

    def data(self) -> bytes:
        contents: dict[str, str] = {
            name: value
            for name in ("contents", "contents_b64", "content", "text", "content_base64")
            if (value := getattr(self, name)) is not None
        }
        if len(contents) != 1:
            raise unclear(
                f"{' and '.join(contents)} are both given"
                if contents
                else "what to write is missing",
                "send exactly one of contents, contents_b64, content, text, content_base64",
                "contents",
            )
        if self.encoding is not None and "content" not in contents:
            raise unclear("encoding belongs to content", "leave it out", "encoding")
        [(name, value)] = contents.items()
        if name in ("contents_b64", "content_base64") or self.encoding == "base64":
            return decoded(value, name)
        return value.encode()


class MkdirBody(Body):
    model_config = ConfigDict(json_schema_extra=_PATH_ONCE)

    path: PathText = None
    path_b64: PathBytes = None
    user: FileUser = None
    parents: bool = True
    exist_ok: bool = True
    mode: Mode = None


class MoveBody(Body):
    model_config = ConfigDict(
        json_schema_extra=rules(
            exactly_one("source", "source_b64"), exactly_one("destination", "destination_b64")
        )
    )

    source: PathText = None
    source_b64: PathBytes = None
    destination: PathText = None
    destination_b64: PathBytes = None
    user: FileUser = None
    overwrite: bool = False


class DeleteBody(Body):
    model_config = ConfigDict(json_schema_extra=_PATH_ONCE)

    path: PathText = None
    path_b64: PathBytes = None
    user: FileUser = None
    recursive: bool = False
    missing_ok: bool = False


class _PathQuery(Query):
    path: PathText = None
    path_b64: PathBytes = None
    user: FileUser = None


class PathQuery(_PathQuery):
    model_config = ConfigDict(json_schema_extra=one_given("path", "path_b64"))


class AnyPathQuery(_PathQuery):
    """Without a path it is the workspace."""

    model_config = ConfigDict(json_schema_extra=at_most_given("path", "path_b64"))


class DeleteQuery(PathQuery):
    recursive: bool = False
    missing_ok: bool = False


class StatQuery(PathQuery):
    follow: bool = Field(True, description="Whether a symlink is described as what it leads to.")


class ReadQuery(PathQuery):
    max_bytes: Annotated[int, Field(ge=0, le=2**62)] | None = Field(
        None, description="Maximum number of bytes; without it, the whole file or 413."
    )
    offset: Offset = 0
    encoding: Literal["utf-8", "utf8", "text", "base64"] | None = Field(
        None, description="Without it, text where the bytes are UTF-8 and base64 where not."
    )


class ListQuery(AnyPathQuery):
    recursive: bool = False
    limit: int = Field(1000, ge=1, le=5000)
    cursor: PathB64 | None = Field(None, description="`next_cursor` of the previous page.")


class FileQuery(PathQuery):
    mode: _Octal | None = Field(None, description="Permissions in octal digits.")
    overwrite: bool = True
    flush: Flush = True


class UploadQuery(AnyPathQuery):
    overwrite: bool = Field(True, description="Applies to forms. A tar always replaces.")
    flush: Flush = True


class DownloadQuery(PathQuery):
    format: Literal["raw", "tar"] | None = Field(
        None, description="`tar`: as a tar, also one file. A directory always is one."
    )


class WatchQuery(AnyPathQuery):
    recursive: bool = True


class FileEntryAnswer(Answer):
    path: str
    name: str
    type: Literal["file", "directory", "symlink", "fifo", "socket", "char", "block"]
    is_dir: bool
    size: int
    size_bytes: int
    mode: int
    mtime_unix: int
    uid: int
    gid: int
    target: str | None = Field(None, description="Where a symlink points, as written in it.")
    path_b64: str | None = Field(None, description="Only if the path is not UTF-8; exact.")


class Written(FileEntryAnswer):
    ok: Literal[True]


class Content(Answer):
    path: str
    size_bytes: int = Field(description="Size of the whole file, however much of it is returned.")
    truncated: bool
    encoding: Literal["utf-8", "base64"]
    offset: int
    next_offset: int = Field(description="Where the rest begins.")
    content_base64: str
    contents_b64: str | None = None
    content: str | None = None
    contents: str | None = None


class Entries(Answer):
    path: str
    entries: list[FileEntryAnswer]
    next_cursor: str | None
    truncated: bool


class DeletedFiles(Answer):
    ok: Literal[True]
    path: str
    deleted: str
    removed: int


class Uploaded(Answer):
    ok: Literal[True]
    path: str
    paths: list[str]
    files: list[FileEntryAnswer]
    entries: int
    size_bytes: int


def permissions(mode: int | str | None) -> int | None:
    if not isinstance(mode, str):
        return mode
    if not _OCTAL.match(mode):
        raise unclear("mode is not an octal number", "write it as 0644", "mode")
    return int(mode.replace("o", ""), 8)


def unclear(message: str, hint: str, field: str) -> InvalidRequest:
    return InvalidRequest(message, hint=hint, field=field, http_status=422)
