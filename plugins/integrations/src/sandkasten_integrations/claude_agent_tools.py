"""Sandboxes as tools of the Claude Agent SDK: `query(…, options=sandbox_options(box))`."""

from __future__ import annotations

import asyncio
import base64
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from sandkasten import SandkastenError
from sandkasten_integrations.framework_import import framework_import

with framework_import("the Claude Agent SDK", "claude-agent"):
    import anyio
    from claude_agent_sdk import (
        ClaudeAgentOptions,
        McpSdkServerConfig,
        SdkMcpTool,
        ToolAnnotations,
        create_sdk_mcp_server,
        tool,
    )

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sandkasten import AsyncSandbox, FileBytes, Result, RunResult

    Answer = dict[str, Any]
    Handler = Callable[[dict[str, Any]], Awaitable[Answer]]

SERVER: Final = "sandkasten"
# Claude Code does not show a model a result of more than 25,000 tokens.
MAX_OUTPUT_BYTES: Final = 50_000
MAX_IMAGE_BYTES: Final = 3_500_000
MAX_LISTED: Final = 1_000
STOP_GRACE_S: Final = 10
IMAGES: Final = {
    b"\x89PNG\r\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}
READS: Final = ToolAnnotations(readOnlyHint=True)


def sandbox_options(box: AsyncSandbox, **options: Any) -> ClaudeAgentOptions:
    """Return options with which an agent has the tools of a sandbox and no others.

    Claude Code's own tools, which run on this machine, are off, and so are its settings files and
    other MCP servers. `options` are those of `ClaudeAgentOptions`; they replace any of these.
    """
    closed: dict[str, Any] = {
        "mcp_servers": {SERVER: sandbox_server(box)},
        "allowed_tools": [f"mcp__{SERVER}"],
        "tools": [],
        "setting_sources": [],
        "strict_mcp_config": True,
    }
    return ClaudeAgentOptions(**{**closed, **options})


def sandbox_server(box: AsyncSandbox, name: str = SERVER) -> McpSdkServerConfig:
    """Return an MCP server with the tools of a sandbox, which runs in this process.

    The caller closes the sandbox.
    """
    return create_sdk_mcp_server(name, tools=sandbox_tools(box))


def sandbox_tools(box: AsyncSandbox) -> list[SdkMcpTool[Any]]:
    """Return only the tools, for a server with further ones."""

    @tool(
        "run_command",
        "Run a command in the shell of a Linux sandbox. The directory, variables and files stay"
        " for the next command. Returns stdout and stderr, and the exit code unless it is 0.",
        _schema(command=_string(), timeout_seconds=_number()),
    )
    @_errors_as_answers
    async def run_command(arguments: dict[str, Any]) -> Answer:
        try:
            done = await box.exec(
                arguments["command"],
                timeout_seconds=arguments.get("timeout_seconds"),
                max_output_bytes=MAX_OUTPUT_BYTES,
            )
        except asyncio.CancelledError:
            # An agent that is interrupted. Later commands would wait for this one.
            with anyio.move_on_after(STOP_GRACE_S, shield=True), suppress(SandkastenError):
                await box.close_shell()
            raise
        return _ended(done)

    @tool(
        "run_code",
        "Run a program in a new process in the sandbox's workspace. `runtime` is python (the"
        " default), node or bash. Returns what it printed; variables do not stay, files do.",
        _schema(code=_string(), runtime={"type": "string"}, timeout_seconds=_number()),
    )
    @_errors_as_answers
    async def run_code(arguments: dict[str, Any]) -> Answer:
        done = await box.run(
            arguments["code"],
            arguments.get("runtime", "python"),
            timeout_seconds=arguments.get("timeout_seconds"),
        )
        return _ended(done)

    @tool(
        "read_file",
        "Read a file of the sandbox: text from byte `offset`, or a picture."
        " A relative path is below /workspace.",
        _schema(path=_string(), offset={"type": "integer", "minimum": 0}),
        READS,
    )
    @_errors_as_answers
    async def read_file(arguments: dict[str, Any]) -> Answer:
        path, offset = arguments["path"], arguments.get("offset", 0)
        content = await box.read(path, offset=offset, max_bytes=MAX_OUTPUT_BYTES)
        kind = next((IMAGES[prefix] for prefix in IMAGES if content.startswith(prefix)), None)
        if kind is not None and offset == 0:
            return await _picture(box, path, kind)
        return _text_of(content, offset)

    @tool(
        "write_file",
        "Write a whole text file in the sandbox. Directories above it are created.",
        _schema(path=_string(), content={"type": "string"}, required=("path", "content")),
    )
    @_errors_as_answers
    async def write_file(arguments: dict[str, Any]) -> Answer:
        written = await box.write(arguments["path"], arguments["content"])
        return _answer(f"wrote {written.size} bytes to {written.path}")

    @tool(
        "list_files",
        "List a directory of the sandbox (default: the workspace), with `recursive` all below it."
        " Returns a size in bytes and a path in each line.",
        _schema(path={"type": "string"}, recursive={"type": "boolean"}, required=()),
        READS,
    )
    @_errors_as_answers
    async def list_files(arguments: dict[str, Any]) -> Answer:
        entries = await box.ls(
            arguments.get("path", "."),
            recursive=arguments.get("recursive", False),
            limit=MAX_LISTED + 1,
        )
        lines = [
            f"{'-' if entry.is_dir else entry.size}\t{entry.path}{'/' if entry.is_dir else ''}"
            for entry in entries[:MAX_LISTED]
        ]
        if len(entries) > MAX_LISTED:
            lines.append(f"[only the first {MAX_LISTED} entries]")
        return _answer("\n".join(lines) or "[no files]")

    return [run_command, run_code, read_file, write_file, list_files]


def _errors_as_answers(handler: Handler) -> Handler:
    """Report to a model what could not be done. It can write another command or path."""

    @wraps(handler)
    async def answered(arguments: dict[str, Any]) -> Answer:
        try:
            return await handler(arguments)
        except SandkastenError as exc:
            return {**_answer(f"{exc.code}: {exc}"), "is_error": True}

    return answered


def _ended(done: Result | RunResult) -> Answer:
    """Return the end of a command. One that failed is an answer too, and not an error."""
    output = done.output
    if len(output) > MAX_OUTPUT_BYTES:
        output = f"{output[: MAX_OUTPUT_BYTES // 2]}\n[cut]\n{output[-MAX_OUTPUT_BYTES // 2 :]}"
    if done.timed_out:
        end = f"[timed out after {done.duration_ms / 1000:.0f} s]"
    elif done.exit_status is None:
        end = "[the end of the command is unknown]"
    elif done.exit_status != 0:
        end = f"[exit code {done.exit_status}]"
    else:
        return _answer(output or "[no output]")
    why = "" if done.why is None or done.timed_out else f"[{done.why.message}]"
    return _answer("\n".join(part for part in (output.rstrip("\n"), end, why) if part))


async def _picture(box: AsyncSandbox, path: str, kind: str) -> Answer:
    data = await box.read(path, max_bytes=MAX_IMAGE_BYTES)
    if data.truncated:
        return _answer(f"{path} is a picture of {data.size} bytes, which is too large to be shown")
    shown = {"type": "image", "data": base64.b64encode(data).decode(), "mimeType": kind}
    return {"content": [shown]}


def _text_of(content: FileBytes, offset: int) -> Answer:
    if 0 in content:
        return _answer(f"[a binary file of {content.size} bytes]")
    text = content.decode("utf-8", "replace")
    if content.truncated:
        rest = offset + len(content)
        text += f"\n[cut: the file has {content.size} bytes; continue with offset {rest}]"
    return _answer(text or "[empty]")


def _answer(text: str) -> Answer:
    # A name of a file can be no Unicode.
    clean = text.encode("utf-8", "replace").decode()
    return {"content": [{"type": "text", "text": clean}]}


def _schema(*, required: tuple[str, ...] | None = None, **fields: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object. Without `required`, the first field is."""
    return {
        "type": "object",
        "properties": fields,
        "required": list(required) if required is not None else list(fields)[:1],
        "additionalProperties": False,
    }


def _string() -> dict[str, Any]:
    return {"type": "string", "minLength": 1}


def _number() -> dict[str, Any]:
    return {"type": "number", "exclusiveMinimum": 0}
