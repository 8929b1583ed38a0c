"""Where a run has its files in the container, and how our runner is started there. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandkasten.model.sandbox.cell_spec import (
    HOME,
    RUNNER_DIR,
    RUNNER_ID,
    RUNNER_PROGRAM,
    TMP,
    USER_ID,
    WORKSPACE,
    WORKSPACE_ALIAS,
    base_environment,
)

if TYPE_CHECKING:
    from sandkasten.model.sandbox.oneshot_values import RunOrder

_STATE: Final = f"{RUNNER_DIR}/state"
_STATE_BYTES: Final = 8 << 20


def run_fields(order: RunOrder, nonce: str) -> dict[str, Any]:
    """Return the fields of the request `run`, as `session_program.py` reads them.

    The nonce is a part of the command, so that no earlier result is taken for this one's.
    """
    script, answers = f"{RUNNER_DIR}/{nonce}/script", f"{RUNNER_DIR}/{nonce}/answers"
    limits = order.spec.limits
    # Commands get their environment with the script, any bytes.
    path = base_environment(order.spec)["PATH"].encode(errors="replace").decode()
    command = [
        RUNNER_PROGRAM,
        *("--script", script, answers, str(order.max_answer_bytes), f"PATH={path}", "--"),
        *("--run-as", f"{RUNNER_ID}:{RUNNER_ID}", "--user", f"{USER_ID}:{USER_ID}"),
        # A later script of this run starts from there, after untrusted code.
        *("--guard", RUNNER_PROGRAM, "--own", WORKSPACE, "--own", HOME),
        *("--state-dir", _STATE, "--workspace", WORKSPACE, "--home", HOME),
        *("--open-files", str(limits.open_files), "--no-set-id"),
    ]
    return {
        "program": RUNNER_PROGRAM,
        "command": command,
        "script": script,
        "answers": answers,
        "temporary": [[_STATE, _STATE_BYTES], [TMP, limits.tmp_bytes]],
        "empty": [WORKSPACE, HOME],
        "link": [WORKSPACE_ALIAS, WORKSPACE.removeprefix("/")],
        "mounts": [[mount.path, mount.target] for mount in order.spec.mounts],
    }
