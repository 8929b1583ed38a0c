"""The thirteen tools as a model sees them: names, descriptions, JSON Schemas of their arguments.

Values only, identical to `spec/tools/<tool>.json`. A schema has only keywords that every validator
and model provider understands: no combinator at its top level, no boolean schema, no list of types.
`one_of` and `needs` express what these cannot, and `tool_arguments` checks it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.language_runtimes import RUNTIME_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten_tools.calls.agent_sandbox import Mode

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
# The engine's limit for the code of one run.
CODE_BYTES: Final = 10_000_000
READ_BYTES: Final = 262_144
MOST_READ_BYTES: Final = 10 * 1024 * 1024
MOST_ENTRIES: Final = 1000
READ_CHUNKS: Final = 100
MOST_CHUNKS: Final = 1000
WAIT_S: Final = 60.0
MOST_TIMEOUT_S: Final = 3600
CONTENTS: Final = ("contents", "contents_b64", "content", "text", "content_base64")
"""Alternative arguments for the content of a file; exactly one is required."""
COMMANDS: Final = ("cmd", "command")


@dataclass(frozen=True, slots=True)
class ToolSpec:
    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema (draft 2020-12) of one object."""
    mode: Mode
    one_of: tuple[str, ...] = ()
    """Exactly one of these arguments is required."""
    needs: tuple[tuple[str, str], ...] = ()
    """An argument, and another one that it requires."""


def _string(description: str, most: int | None = None, *, least: int = 1) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "description": description}
    if least:
        schema["minLength"] = least
    if most is not None:
        schema["maxLength"] = most
    return schema


def _number(description: str, low: float, high: float) -> dict[str, Any]:
    return {"type": "number", "description": description, "minimum": low, "maximum": high}


def _boolean(description: str, default: bool) -> dict[str, Any]:
    return {"type": "boolean", "description": description, "default": default}


def _strings(description: str, most: int) -> dict[str, Any]:
    return {
        "type": "array",
        "description": description,
        "items": {"type": "string"},
        "maxItems": most,
    }


_WHICH = {
    "sandbox_id": _string(
        "The sandbox_id that sandbox_open returned. Leave it out for the sandbox of this run, "
        "which is opened when it is first used.",
        most=200,
    ),
    "session_id": _string("Another name for sandbox_id.", most=200),
}
_PATH = "Relative to /workspace, or absolute; x, /work/x and /workspace/x are the same file."
_ENV = {
    "type": "object",
    "description": "Environment variables for this command alone.",
    "additionalProperties": {"type": "string"},
    "maxProperties": 1000,
}
_MODE = {
    "description": 'Permissions: octal digits in a string ("0755"), or a number (493).',
    "anyOf": [
        {"type": "string", "pattern": "^0?o?[0-7]{1,4}$"},
        {"type": "integer", "minimum": 0, "maximum": 0o7777},
    ],
}


def _command(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "anyOf": [
            {"type": "string", "minLength": 1, "maxLength": 1_048_576},
            {
                "type": "array",
                "items": {"type": "string", "maxLength": 131_071},
                "minItems": 1,
                "maxItems": 10_000,
            },
        ],
    }


def _tool(
    name: str,
    description: str,
    properties: dict[str, Any],
    *,
    required: tuple[str, ...] = (),
    one_of: tuple[str, ...] = (),
    needs: tuple[tuple[str, str], ...] = (),
    mode: Mode = "code",
) -> ToolSpec:
    title = f"sandbox_{name}"
    schema: dict[str, Any] = {
        "$schema": DRAFT,
        "$id": f"urn:sandkasten:tool:{title}",
        "title": title,
        "description": description,
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return ToolSpec(title, description, schema, mode, one_of, needs)


RUN: Final = _tool(
    "run",
    "Run a piece of code in a fresh, isolated sandbox and get its output. Nothing is kept between "
    "calls: pass every file the code needs in files, and name in artifacts the files you want back."
    " The code runs in /workspace (also called /work). If the code fails, the answer has ok "
    "false, exit_code and stderr.",
    {
        "runtime": {
            "type": "string",
            "description": "What runs the code. Default: as in the agent's file, or python.",
            "enum": list(RUNTIME_NAMES),
        },
        "code": _string("The complete source code.", most=CODE_BYTES, least=0),
        "args": _strings("Arguments of the program.", 1000),
        "env": {**_ENV, "description": "Environment variables of the program."},
        "files": {
            "type": "object",
            "description": "Files to write before the code runs: path below /workspace to text, or "
            "to an object with content_base64 for bytes that are not UTF-8, or with file_key for a "
            "file of the file store, of any size.",
            "maxProperties": 1000,
            "additionalProperties": {
                "anyOf": [
                    {"type": "string"},
                    {
                        "type": "object",
                        "properties": {
                            "content": {"type": "string"},
                            "content_base64": {"type": "string"},
                            "file_key": {"type": "string", "minLength": 1, "maxLength": 1024},
                        },
                        "minProperties": 1,
                        "maxProperties": 1,
                        "additionalProperties": False,
                    },
                ]
            },
        },
        "timeout_seconds": _number(
            "Kill the code after this many seconds; its output until then is kept.",
            1,
            MOST_TIMEOUT_S,
        ),
        "artifacts": _strings(
            "Globs below /workspace of files to send back when the code has ended, such as "
            '"out/*.csv" or "**/*.png".',
            64,
        ),
    },
    required=("code",),
    mode="compute",
)
OPEN: Final = _tool(
    "open",
    "Open the sandbox of this run, or return to it: a Linux machine with a workspace and a "
    "shell that keep their state between calls. Calling it is optional: every other tool opens the "
    "sandbox when it is first used. created says whether it is new and empty.",
    {
        "session_key": _string(
            "A name of your choice, for a second sandbox beside the run's own. The same name gives "
            "the same sandbox. Pass the returned sandbox_id to the other tools.",
            most=300,
        ),
        "image": _string("The image, if another one than the agent's own is needed.", most=300),
    },
)
EXEC: Final = _tool(
    "exec",
    "Run a command in the sandbox and get stdout, stderr and exit_code. A string runs in a shell "
    "that keeps its directory and variables between calls; a list runs a program by itself. With "
    "stream true it answers at once with an exec_id, for sandbox_exec_read and sandbox_exec_wait.",
    {
        **_WHICH,
        "cmd": _command(
            'A string for the shell ("cd app && pytest -q"), or a program with its arguments '
            '(["python3", "main.py"]). Required, unless command is given.'
        ),
        "command": _command("Another name for cmd; give only one of the two."),
        "cwd": _string("The directory it runs in; default: the shell's own, or /workspace.", 4096),
        "workdir": _string("Another name for cwd.", 4096),
        "env": _ENV,
        "timeout_seconds": _number(
            "Kill the command and everything it started after this many seconds (timed_out true); "
            "the output until then is kept.",
            0.001,
            MOST_TIMEOUT_S,
        ),
        "stream": _boolean(
            "Start it and return at once; for servers and long commands. Without timeout_seconds "
            "it runs until it ends or the sandbox is closed.",
            False,
        ),
    },
    one_of=COMMANDS,
)
EXEC_READ: Final = _tool(
    "exec_read",
    "Read the output of a command started with stream true, in chunks numbered from 1. Pass "
    "next_seq of the last answer as since_seq to continue. done is true if the command has ended "
    "and you have read all of its output.",
    {
        **_WHICH,
        "exec_id": _string("The exec_id that sandbox_exec returned.", most=64),
        "since_seq": {
            "type": "integer",
            "description": "Chunks after this number; 0 for all.",
            "minimum": 0,
            "maximum": 2**62,
            "default": 0,
        },
        "max_chunks": {
            "type": "integer",
            "description": "Return at most this many chunks.",
            "minimum": 1,
            "maximum": MOST_CHUNKS,
            "default": READ_CHUNKS,
        },
    },
    required=("exec_id",),
)
EXEC_WAIT: Final = _tool(
    "exec_wait",
    "Wait for the end of a command started with stream true. If done is false, it still runs: "
    "wait again, or read its output with sandbox_exec_read.",
    {
        **_WHICH,
        "exec_id": _string("The exec_id that sandbox_exec returned.", most=64),
        "timeout_seconds": {
            **_number("How long to wait; the command is not killed.", 0, MOST_TIMEOUT_S),
            "default": WAIT_S,
        },
    },
    required=("exec_id",),
)
CODE: Final = _tool(
    "code",
    "Run code in a kernel of the sandbox, as in a notebook: variables, imports and open files stay "
    "for the next call. The value of the last expression is in text, printed output in stdout, an "
    "exception in error. Pictures and charts are saved as files, and results has their paths.",
    {
        **_WHICH,
        "code": _string("The code of one cell.", most=1_048_576, least=0),
        "language": _string(
            "python (the default), or another language that the image has a kernel for.", most=24
        ),
        "context": _string(
            "The context_id of an earlier answer. Default: the sandbox's own context of the "
            "language.",
            most=64,
        ),
        "env": {**_ENV, "description": "Environment variables for this call alone; python only."},
        "timeout_seconds": _number(
            "Interrupt the code after this many seconds; variables stay.", 1, MOST_TIMEOUT_S
        ),
    },
    required=("code",),
)
FS_WRITE: Final = _tool(
    "fs_write",
    "Write a whole file in the sandbox; missing directories are created. Pass its text in "
    "contents, or its bytes in contents_b64, not both. To create a large file, run a "
    "command instead.",
    {
        **_WHICH,
        "path": _string(_PATH, most=4095),
        "contents": _string("The text of the file.", least=0),
        "contents_b64": _string("Its bytes in base64, for content that is not UTF-8.", least=0),
        "content": _string("As contents, or with encoding base64 as contents_b64.", least=0),
        "encoding": {
            "type": "string",
            "description": "The encoding of content; requires content.",
            "enum": ["utf-8", "utf8", "text", "base64"],
        },
        "text": _string("Another name for contents.", least=0),
        "content_base64": _string("Another name for contents_b64.", least=0),
        "mode": _MODE,
        "overwrite": _boolean("If false, fail with FILE_EXISTS if the file exists.", True),
    },
    required=("path",),
    one_of=CONTENTS,
    needs=(("encoding", "content"),),
)
FS_READ: Final = _tool(
    "fs_read",
    "Read a file of the sandbox: text as contents, other bytes in base64 as contents_b64. "
    "size_bytes is the size of the file; truncated is true if this is only its beginning.",
    {
        **_WHICH,
        "path": _string(_PATH, most=4095),
        "max_bytes": {
            "type": "integer",
            "description": "Read at most this many bytes from the beginning of the file.",
            "minimum": 0,
            "maximum": MOST_READ_BYTES,
            "default": READ_BYTES,
        },
        "encoding": {
            "type": "string",
            "description": "base64 or text (an error if not UTF-8). Default: text if it is UTF-8.",
            "enum": ["utf-8", "utf8", "text", "base64"],
        },
    },
    required=("path",),
)
FS_LIST: Final = _tool(
    "fs_list",
    "List a directory of the sandbox, sorted by name. truncated is true if there are more than "
    f"{MOST_ENTRIES} entries; then list a subdirectory.",
    {
        **_WHICH,
        "path": {**_string(_PATH, most=4095), "default": "."},
        "recursive": _boolean("Include everything below.", False),
    },
)
FS_DELETE: Final = _tool(
    "fs_delete",
    "Delete a file, or with recursive true a directory and everything in it.",
    {
        **_WHICH,
        "path": _string(_PATH, most=4095),
        "recursive": _boolean("Needed for a directory that is not empty.", False),
    },
    required=("path",),
)
STAGE_FILE: Final = _tool(
    "stage_file",
    "Put a file of the file store into the sandbox, of any size. The key comes from the task or "
    "from sandbox_publish_file.",
    {
        **_WHICH,
        "file_key": _string("The file's key in the store.", most=1024),
        "destination": _string(f"Where it goes. {_PATH}", most=4095),
    },
    required=("file_key", "destination"),
)
PUBLISH_FILE: Final = _tool(
    "publish_file",
    "Copy a file of the sandbox, of any size, to the file store, so that it outlives the "
    "sandbox. The answer has its file_key.",
    {
        **_WHICH,
        "source": _string(f"The file. {_PATH}", most=4095),
        "file_key": _string(
            "Its key in the store; an existing file of that key is replaced. Default: a new key.",
            most=1024,
        ),
    },
    required=("source",),
)
CLOSE: Final = _tool(
    "close",
    "Destroy the sandbox with all its processes and files. Not needed at the end of a run, which "
    "destroys its sandboxes. Publish files that must stay first.",
    {
        **_WHICH,
        "delete_workspace": _boolean(
            "Also delete a workspace that would outlive the sandbox; one without a name never "
            "does.",
            True,
        ),
    },
)

TOOLS: Final[Mapping[str, ToolSpec]] = {
    spec.name: spec
    for spec in (
        RUN,
        OPEN,
        EXEC,
        EXEC_READ,
        EXEC_WAIT,
        CODE,
        FS_WRITE,
        FS_READ,
        FS_LIST,
        FS_DELETE,
        STAGE_FILE,
        PUBLISH_FILE,
        CLOSE,
    )
}
