"""Engine requests built from an agent's sandbox request. Pure.

Nothing is rejected here: the engine and the operator's policy check the whole request.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sandkasten.model.durations import seconds
from sandkasten.model.sandbox.sandbox_values import CreateRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.agents.definitions.agent_sandbox import AgentSandbox
    from sandkasten.agents.run_context import RunContext
    from sandkasten.model.runs.session_key import SessionKey

RUN_LABEL: Final = "sandkasten.run"
AGENT_LABEL: Final = "sandkasten.agent"
RETAIN_LABEL: Final = "sandkasten.retain"
"""For how many seconds a session is kept after its run."""
_PROGRAMS: Final = ("python", "node", "bash", "sh", "linux", "shell", "python3", "javascript")
# Images without bash.
_SMALL: Final = ("alpine", "busybox")
_MOST_LABEL: Final = 256


def session_image(sandbox: AgentSandbox) -> str:
    """Return the image of a new session sandbox."""
    return sandbox.options.image or sandbox.runtime or "linux"


def runtime_for(sandbox: AgentSandbox) -> str:
    """Return the program that runs the code of a one-shot; for an image, guess from its name."""
    if sandbox.runtime is None:
        return "python"
    if sandbox.runtime in _PROGRAMS:
        return sandbox.runtime
    name = sandbox.runtime.rpartition("/")[2].partition("@")[0].partition(":")[0].lower()
    for program in ("python", "node"):
        if program in name:
            return program
    return "sh" if any(small in name for small in _SMALL) else "bash"


def compute_image(sandbox: AgentSandbox) -> str | None:
    """Return the image of a one-shot; None: the operator's image for the runtime."""
    if sandbox.options.image is not None:
        return sandbox.options.image
    return None if sandbox.runtime in (None, *_PROGRAMS) else sandbox.runtime


def timeout_for(sandbox: AgentSandbox) -> float | None:
    """Return the timeout of a command that names none, as the agent file says it.

    None: the sandbox's own; of a one-shot, `oneshot_timeout` in `model/sandbox/oneshot_values.py`.
    """
    if sandbox.timeout_seconds is not None:
        return sandbox.timeout_seconds
    return sandbox.options.limits.get("exec_timeout_seconds")


def request_for(
    sandbox: AgentSandbox,
    context: RunContext,
    *,
    key: SessionKey | None = None,
    image: str | None = None,
    network: str | Mapping[str, Any] | None = None,
    default_idle_s: float | None = None,
    most_life_s: float = math.inf,
) -> CreateRequest:
    """Return the create request of a session; `key`, `image` and `network` replace those of the
    file.

    `default_idle_s` is the idle time of a file that asks for none, `most_life_s` the longest
    lifetime of any sandbox: the context can only shorten them.
    """
    the_key = key or context.session_key()
    options = sandbox.options
    asked = options.idle_timeout_seconds
    if asked is None:
        asked = default_idle_s
    idle_times = [one for one in (asked, context.idle_timeout_s) if one is not None]
    return CreateRequest(
        replace(
            options,
            image=image or session_image(sandbox),
            network=options.network if network is None else network,
            idle_timeout_seconds=min(idle_times, default=None),
            lifetime_seconds=None
            if context.idle_timeout_s is None
            else min(context.idle_timeout_s, most_life_s),
            labels={
                RUN_LABEL: the_key.id,
                AGENT_LABEL: _label(context.agent_name),
                **retain_label(context.retention(the_key)),
            },
        ),
        session_key=str(the_key),
        tenant=context.tenant,
        key_id=context.key_id,
        agent=context.installed_agent,
    )


def retain_label(retain_s: float) -> dict[str, str]:
    return {RETAIN_LABEL: f"{retain_s:g}"} if retain_s else {}


def retention_of(labels: Mapping[str, str]) -> float:
    """Return what `retain_label` wrote; 0 for anything else, since a client can set labels too."""
    return seconds(labels.get(RETAIN_LABEL)) or 0.0


def _label(text: str) -> str:
    plain = text.replace("\0", "").encode("utf-8", "replace")[:_MOST_LABEL]
    return plain.decode(errors="ignore")
