"""`sandbox_code`: code in a context of the sandbox of a run, whose variables stay.

Pictures are written to files of the workspace, and the answer has their paths: a model cannot read
base64, and `sandbox_publish_file` takes a path. Cancelling the call interrupts the code.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import TYPE_CHECKING, Any, Final

from sandkasten.model.commands.code_values import CodeRequest
from sandkasten_tools.calls import tool_answers
from sandkasten_tools.calls.tool_requests import call_limits, checked_timeout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.commands.code_values import CodeDisplay
    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_tools.calls.call_sandboxes import CallSandbox
    from sandkasten_tools.calls.run_context import RunContext
    from sandkasten_tools.calls.tool_answers import Answer

DIRECTORY: Final = "/workspace/.code"
_PICTURES: Final = ("png", "jpeg", "svg", "pdf")
_TEXTS: Final = ("text", "markdown", "latex", "html")
_MAX_TEXT: Final = 20_000
_MAX_RESULTS: Final = 20


class CodeTool:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run(
        self, arguments: Mapping[str, Any], context: RunContext, target: CallSandbox
    ) -> Answer:
        limits = call_limits(context.sandbox, self._engine.policy.limits)
        request = CodeRequest(
            arguments["code"],
            arguments.get("language", "python"),
            arguments.get("context"),
            arguments.get("env", {}),
            checked_timeout(arguments.get("timeout_seconds") or None, limits),
        )
        result = await self._engine.code.run(target.info.id, request)
        most: dict[str, int | None] = {"stdout": limits.stdout_bytes, "stderr": limits.stderr_bytes}
        displays = result.results[:_MAX_RESULTS]
        shown = [await self._display(target.info.id, display) for display in displays]
        error = result.error
        fields: Answer = {
            "status": result.status,
            "text": None if result.text is None else result.text[:_MAX_TEXT],
            "results": shown,
            "error": None
            if error is None
            else {
                "name": error.name,
                "value": error.value[:_MAX_TEXT],
                "traceback": error.traceback[-_MAX_TEXT:],
            },
            "execution_count": result.execution_count,
            "timed_out": result.timed_out,
            "truncated": result.truncated or len(result.results) > _MAX_RESULTS,
            "kernel_restarted": result.kernel_restarted,
            "context_id": result.context_id,
            "duration_ms": result.duration_ms,
        }
        streams = {"stdout": result.stdout.encode(), "stderr": result.stderr.encode()}
        return {**fields, **tool_answers.streams(most, **streams)}

    async def _display(self, sandbox_id: str, display: CodeDisplay) -> Answer:
        """Return the forms of a value that a model can read, and the files of the others."""
        fields: Answer = {}
        for kind in _PICTURES:
            data = getattr(display, kind)
            if data is None:
                continue
            try:
                raw = data.encode() if kind == "svg" else base64.b64decode(data, validate=True)
            except binascii.Error:
                continue
            path = f"{DIRECTORY}/{secrets.token_hex(6)}.{kind}"
            entry = await self._engine.files.write(sandbox_id, path, raw)
            fields.setdefault("files", []).append({"path": path, "size_bytes": entry.size})
        for kind in _TEXTS:
            text = getattr(display, kind)
            # The first readable form is enough, and a picture needs no description in HTML.
            if text is not None and not (kind == "html" and fields):
                fields[kind] = text[:_MAX_TEXT]
        for kind in ("json", "chart"):
            value = getattr(display, kind)
            if value is not None and len(str(value)) <= _MAX_TEXT:
                fields[kind] = value
        return fields
