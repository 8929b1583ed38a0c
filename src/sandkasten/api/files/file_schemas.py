"""Request and response schemas of the file routes."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, StrictInt

from sandkasten.api.files.file_names import decoded
from sandkasten.api.route import Answer, Body, Query
from sandkasten.errors import InvalidRequest

_OCTAL = re.compile(r"0?o?[0-7]{1,4}\Z")
_B64 = "The bytes of the name in base64, for names that are not UTF-8."

Mode = Annotated[
    StrictInt | str | None,
    Field(description="Permissions: a number (420), or octal digits in a text (`0644`)."),
]
PathText = Annotated[
    str | None, Field(description="`x`, `/work/x` and `/workspace/x` name the same file.")
]
PathB64 = Annotated[str | None, Field(description=_B64)]
Offset = Annotated[int, Field(ge=0, le=2**62)]


class WriteBody(Body):
    path: PathText = None
    path_b64: PathB64 = None
    contents: str | None = Field(None, description="The text of the file.")
    contents_b64: str | None = Field(None, description="Its bytes in base64.")
    content: str | None = Field(None, description="Either, as `encoding` says.")
    encoding: Literal["utf-8", "utf8", "text", "base64"] | None = None
    text: str | None = Field(None, description="As `contents`.")
    content_base64: str | None = Field(None, description="As `contents_b64`.")
    mode: Mode = None
    overwrite: bool = True

    def data(self) -> bytes:
        given: dict[str, str] = {
            name: value
            for name in ("contents", "contents_b64", "content", "text", "content_base64")
            if (value := getattr(self, name)) is not None
        }
        if len(given) != 1:
            raise unclear(
                f"{' and '.join(given)} are both given" if given else "what to write is missing",
                "send exactly one of contents, contents_b64, content, text, content_base64",
                "contents",
            )
        if self.encoding is not None and "content" not in given:
            raise unclear("encoding belongs to content", "leave it out", "encoding")
        [(name, value)] = given.items()
        if name in ("contents_b64", "content_base64") or self.encoding == "base64":
            return decoded(value, name)
        return value.encode()


class MkdirBody(Body):
    path: PathText = None
    path_b64: PathB64 = None
    parents: bool = True
    exist_ok: bool = True
    mode: Mode = None


class MoveBody(Body):
    source: PathText = None
    source_b64: PathB64 = None
    destination: PathText = None
    destination_b64: PathB64 = None
    overwrite: bool = False


class DeleteBody(Body):
    path: PathText = None
    path_b64: PathB64 = None
    recursive: bool = False
    missing_ok: bool = False


class PathQuery(Query):
    path: PathText = None
    path_b64: PathB64 = None


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


class ListQuery(PathQuery):
    recursive: bool = False
    limit: int = Field(1000, ge=1, le=5000)
    cursor: str | None = Field(None, description="`next_cursor` of the previous page.")


class FileQuery(PathQuery):
    mode: str | None = Field(None, description="Permissions in octal digits.")
    overwrite: bool = True


class UploadQuery(PathQuery):
    overwrite: bool = Field(True, description="Applies to forms. A tar always replaces.")


class DownloadQuery(PathQuery):
    format: Literal["raw", "tar"] | None = Field(
        None, description="`tar`: as a tar, also one file. A directory always is one."
    )


class WatchQuery(PathQuery):
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
