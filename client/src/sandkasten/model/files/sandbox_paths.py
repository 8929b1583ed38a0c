"""Paths that callers write, resolved to files inside a sandbox. Lexical and pure.

`x`, `/work/x` and `/workspace/x` are the same file. Symlinks are not handled here: the runner
resolves them in the sandbox's view.
"""

from __future__ import annotations

from sandkasten.errors import InvalidRequest
from sandkasten.model.environment import text_bytes
from sandkasten.model.sandbox.cell_spec import HOME, TMP, WORKSPACE, WORKSPACE_ALIAS

# The kernel's own bound, its NUL included.
PATH_MAX = 4096
WRITABLE = (WORKSPACE, TMP, HOME)


def sandbox_path(path: str) -> str:
    """Return the absolute path, without `.` and double slashes; `..` is refused, not folded.

    Folding `..` would be wrong if the component before it is a symlink.
    """
    size = len(text_bytes("path", path))
    if not path:
        raise InvalidRequest(
            "the path is empty", hint=f"name a file, or {WORKSPACE} itself", field="path"
        )
    if size >= PATH_MAX:
        # Before it is split: a megabyte of slashes takes a while.
        raise _too_long(size)
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InvalidRequest(
            "the path contains '..'", hint="write the path it stands for", field="path"
        )
    if path.startswith("/"):
        if parts and parts[0] == "work":
            parts[0] = "workspace"
        answer = "/" + "/".join(parts)
    else:
        answer = "/".join([WORKSPACE, *parts])
    if len(answer) >= PATH_MAX:
        raise _too_long(size)
    return answer


def _too_long(size: int) -> InvalidRequest:
    return InvalidRequest(
        f"the path is {size} bytes long", hint=f"at most {PATH_MAX - 1}", field="path"
    )


def workspace_member(path: str) -> str:
    """Return a path like `sandbox_path` that lies inside the workspace."""
    answer = sandbox_path(path)
    if not answer.startswith(WORKSPACE + "/"):
        raise InvalidRequest(
            f"{path[:200]!r} is not inside the workspace",
            hint=f"give a path relative to {WORKSPACE}",
            field="path",
        )
    return answer


def working_directory(path: str) -> str:
    """Return where a command starts. `..` is allowed: the kernel resolves it in the sandbox."""
    text_bytes("cwd", path)
    if not path:
        raise InvalidRequest("cwd is empty", hint="leave it out or name a directory", field="cwd")
    if len(path) >= PATH_MAX:
        raise InvalidRequest("cwd is too long", hint=f"at most {PATH_MAX - 1} bytes", field="cwd")
    if path == WORKSPACE_ALIAS or path.startswith(WORKSPACE_ALIAS + "/"):
        return WORKSPACE + path[len(WORKSPACE_ALIAS) :]
    return path if path.startswith("/") else f"{WORKSPACE}/{path}"
