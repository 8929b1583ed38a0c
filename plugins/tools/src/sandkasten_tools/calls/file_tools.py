"""File tools: small files whole in JSON, files of any size between sandbox and store.

`max_file_size_bytes` and `max_files` of the agent's file limit what these tools write; written
files are counted here, per sandbox, since this process first used it.
"""

from __future__ import annotations

import base64
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidRequest, PayloadTooLarge, PolicyDenied, UnsupportedByBackend
from sandkasten.model.files.file_entries import utf8_text
from sandkasten.model.files.sandbox_paths import sandbox_path
from sandkasten.model.sandbox.limit_names import parse_limits
from sandkasten_tools.calls import tool_answers
from sandkasten_tools.calls.tool_arguments import decoded, encoded
from sandkasten_tools.calls.tool_schemas import CONTENTS, MOST_ENTRIES, READ_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_runtime.engine.storage.stage_publish import StagePublish
    from sandkasten_tools.calls.call_sandboxes import CallSandbox
    from sandkasten_tools.calls.run_context import RunContext
    from sandkasten_tools.calls.tool_answers import Answer

_COUNTED_SANDBOXES: Final = 1000


class FileTools:
    def __init__(self, engine: Engine, filing: StagePublish | None) -> None:
        self._engine = engine
        self._filing = filing
        self._written: dict[str, set[str]] = {}

    async def write(
        self, arguments: Mapping[str, Any], context: RunContext, target: CallSandbox
    ) -> Answer:
        data = _content(arguments)
        self._check(context, target, arguments["path"], len(data))
        entry = await self._engine.files.write(
            target.info.id,
            arguments["path"],
            data,
            mode=_permissions(arguments.get("mode")),
            overwrite=arguments.get("overwrite", True),
        )
        self._count(target, arguments["path"])
        return {"ok": True, **tool_answers.name("path", entry.path), "size_bytes": entry.size}

    async def read(
        self, arguments: Mapping[str, Any], context: RunContext, target: CallSandbox
    ) -> Answer:
        contents = await self._engine.files.read(
            target.info.id, arguments["path"], max_bytes=int(arguments.get("max_bytes", READ_BYTES))
        )
        return {
            **tool_answers.name("path", contents.path),
            "size_bytes": contents.size,
            "truncated": contents.truncated,
            **_shown(contents.data, arguments.get("encoding"), truncated=contents.truncated),
        }

    async def list(
        self, arguments: Mapping[str, Any], context: RunContext, target: CallSandbox
    ) -> Answer:
        path = arguments.get("path", ".")
        page = await self._engine.files.list(
            target.info.id, path, recursive=arguments.get("recursive", False), limit=MOST_ENTRIES
        )
        return {
            **tool_answers.name("path", sandbox_path(path)),
            "entries": [tool_answers.entry(entry) for entry in page.entries],
            "truncated": page.next is not None,
        }

    async def delete(
        self, arguments: Mapping[str, Any], context: RunContext, target: CallSandbox
    ) -> Answer:
        removed = await self._engine.files.remove(
            target.info.id, arguments["path"], recursive=arguments.get("recursive", False)
        )
        path = tool_answers.name("path", sandbox_path(arguments["path"]))
        self._written.get(target.info.id, set()).discard(sandbox_path(arguments["path"]))
        return {"ok": True, **path, "deleted": path["path"], "removed": removed}

    async def stage(
        self, arguments: Mapping[str, Any], context: RunContext, target: CallSandbox
    ) -> Answer:
        self._check(context, target, arguments["destination"], 0)
        done = await self._stored().stage(
            context.tenant, target.info.id, arguments["file_key"], arguments["destination"]
        )
        self._count(target, arguments["destination"])
        return {
            "ok": True,
            **tool_answers.name("path", done.path),
            "size_bytes": done.size_bytes,
            "file_key": done.file_key,
            "checksum": done.checksum,
        }

    async def publish(
        self, arguments: Mapping[str, Any], context: RunContext, target: CallSandbox
    ) -> Answer:
        row = await self._stored().publish(
            context.tenant,
            target.info.id,
            arguments["source"],
            arguments.get("file_key"),
            max_stored_bytes=partial(self._engine.max_stored_bytes, context.tenant, context.quota),
        )
        return {
            "ok": True,
            "file_key": row.key,
            "size_bytes": row.size_bytes,
            "checksum": row.checksum,
            "content_type": row.content_type,
        }

    def forget(self, sandbox_id: str) -> None:
        self._written.pop(sandbox_id, None)

    def _stored(self) -> StagePublish:
        if self._filing is None:
            raise UnsupportedByBackend(
                "no file store is available",
                hint="use sandbox_fs_read and sandbox_fs_write, or run against a daemon",
            )
        return self._filing

    def _check(self, context: RunContext, target: CallSandbox, path: str, size: int) -> None:
        limits = parse_limits(context.sandbox.options.limits, self._engine.policy.limits)
        written = self._written.get(target.info.id, set())
        again = sandbox_path(path) in written
        check_tool_write(
            size,
            0 if again else len(written),
            max_bytes=limits.tool_file_bytes,
            max_files=max(limits.tool_files, 1) if again else limits.tool_files,
        )

    def _count(self, target: CallSandbox, path: str) -> None:
        self._written.setdefault(target.info.id, set()).add(sandbox_path(path))
        if len(self._written) > _COUNTED_SANDBOXES:
            del self._written[next(iter(self._written))]


def _content(arguments: Mapping[str, Any]) -> bytes:
    [name] = [field for field in CONTENTS if field in arguments]
    if name in ("contents_b64", "content_base64") or arguments.get("encoding") == "base64":
        return decoded(name, arguments[name])
    return encoded(name, arguments[name])


def _permissions(mode: int | str | None) -> int | None:
    return int(mode.replace("o", ""), 8) if isinstance(mode, str) else mode


def _shown(data: bytes, encoding: str | None, *, truncated: bool) -> Answer:
    text = None if encoding == "base64" else utf8_text(data, truncated=truncated)
    if text is not None:
        return {"encoding": "utf-8", "content": text, "contents": text}
    if encoding not in (None, "base64"):
        raise InvalidRequest(
            "the file is not valid UTF-8", hint="read it with encoding base64", field="encoding"
        )
    plain = base64.b64encode(data).decode()
    return {"encoding": "base64", "contents_b64": plain, "content_base64": plain}


def check_tool_write(
    size_bytes: int, files_written: int, *, max_bytes: int, max_files: int
) -> None:
    """Check the limits of an agent's file tools. Its commands are limited only by the quota."""
    if size_bytes > max_bytes:
        raise PayloadTooLarge(
            f"{size_bytes} bytes are more than a file tool writes",
            hint=f"max_file_size_bytes is {max_bytes}; let a command make the file, or upload it",
            limit=max_bytes,
        )
    if files_written >= max_files:
        raise PayloadTooLarge(
            f"{files_written} files were written by tools already",
            hint=f"max_files is {max_files}; let a command make the files, or upload an archive",
            limit=max_files,
        )


def stored_files_denied() -> PolicyDenied:
    """Return the error for a run whose key may not use stored files."""
    return PolicyDenied(
        "the API key of this run does not allow stored files",
        hint="work without them, or start the run with a key that has the scope files",
        scope="files",
    )
