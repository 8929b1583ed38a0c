"""Engine requests built from an agent's sandbox request. Pure.

Nothing is rejected here: the engine and the operator's policy check the whole request.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidRequest
from sandkasten.model.durations import seconds
from sandkasten.model.language_runtimes import RUNTIME_NAMES, image_alias
from sandkasten.model.sandbox.limit_names import limit_field, parse_limits, public_limits
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten.model.sandbox.session_joins import LIMIT_SCOPES, JoinTerms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.runs.session_key import SessionKey
    from sandkasten.model.sandbox.limits import Limits
    from sandkasten.model.sandbox.sandbox_options import Number
    from sandkasten_tools.calls.agent_sandbox import AgentSandbox
    from sandkasten_tools.calls.run_context import RunContext

RUN_LABEL: Final = "sandkasten.run"
AGENT_LABEL: Final = "sandkasten.agent"
RETAIN_LABEL: Final = "sandkasten.retain"
"""For how many seconds a session is kept after its run."""
# Images without bash.
_SMALL: Final = ("alpine", "busybox")
_MOST_LABEL: Final = 256


def session_image(sandbox: AgentSandbox) -> str | None:
    """Return the image of a new session; None: the default of a request without an image."""
    name = sandbox.options.image or sandbox.runtime
    return None if name is None else image_alias(name)


def runtime_for(sandbox: AgentSandbox) -> str:
    """Return the program that runs the code of a one-shot; for an image, guess from its name."""
    if sandbox.runtime is None:
        return "python"
    if sandbox.runtime in RUNTIME_NAMES:
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
    return None if sandbox.runtime in (None, *RUNTIME_NAMES) else sandbox.runtime


def timeout_for(sandbox: AgentSandbox) -> float | None:
    """Return the timeout of a command that names none, as the agent file sets it.

    None: the operator's; of a one-shot, `oneshot_timeout` in `model/sandbox/oneshot_values.py`.
    """
    if sandbox.timeout_seconds is not None:
        return sandbox.timeout_seconds
    return sandbox.options.limits.get("exec_timeout_seconds")


def call_limits(sandbox: AgentSandbox, base: Limits) -> Limits:
    """Return the limits of an agent's own calls, also if another agent opened the session.

    `base` has the operator's defaults.
    """
    limits = parse_limits(sandbox.options.limits, base)
    timeout_s = timeout_for(sandbox)
    return limits if timeout_s is None else replace(limits, exec_timeout_s=timeout_s)


def checked_timeout(timeout_s: float | None, limits: Limits) -> float:
    """Return the timeout of a command. Raise InvalidRequest if the agent may not ask for it."""
    if timeout_s is None:
        return limits.exec_timeout_s
    if timeout_s > limits.max_exec_timeout_s:
        raise InvalidRequest(
            f"a timeout of {timeout_s:g} s is over max_exec_timeout_seconds "
            f"({limits.max_exec_timeout_s:g})",
            hint="lower it; a command with stream has no such limit",
            field="timeout_seconds",
        )
    return timeout_s


def join_terms(context: RunContext, image: str | None = None) -> JoinTerms:
    """Return what an agent requires of a session that it joins; `image` is one that a call names.

    The rest of its file applies to its own calls, except for the idle time, which is extended.
    """
    options = context.sandbox.options
    return JoinTerms(
        replace(
            options,
            image=image or options.image,
            limits={name: value for name, value in options.limits.items() if _is_of_session(name)},
            idle_timeout_seconds=None,
        ),
        complete=not context.client,
    )


def _is_of_session(limit: str) -> bool:
    return limit == "gpus" or LIMIT_SCOPES[limit_field(limit)] == "session"


def request_for(
    sandbox: AgentSandbox,
    context: RunContext,
    base: Limits,
    *,
    key: SessionKey | None = None,
    image: str | None = None,
    network: str | Mapping[str, Any] | None = None,
    default_idle_s: float | None = None,
    most_life_s: float = math.inf,
) -> CreateRequest:
    """Return the create request of a session; `key`, `image` and `network` replace those of the
    file, and `base` are the operator's default limits.

    `default_idle_s` is the idle time of a file that asks for none, `most_life_s` the longest
    lifetime of any sandbox: the context can only shorten them.
    """
    the_key = key or context.session_key()
    options = sandbox.options
    idle_timeout_s = options.idle_timeout_seconds
    if idle_timeout_s is None:
        idle_timeout_s = default_idle_s
    idle_times = [
        time_s for time_s in (idle_timeout_s, context.idle_timeout_s) if time_s is not None
    ]
    return CreateRequest(
        replace(
            options,
            image=image or session_image(sandbox),
            limits=_session_limits(options.limits, base),
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


def _session_limits(limits: Mapping[str, Number], base: Limits) -> dict[str, Number]:
    """Return the limits of a session that several agents may share.

    Those of an agent's calls are applied by its tools, so only output that is to be longer than the
    operator's default needs a session that keeps it.
    """
    least = public_limits(base, "max_stdout_bytes", "max_stderr_bytes")
    return {
        name: value
        for name, value in limits.items()
        if _is_of_session(name) or value > least.get(name, value)
    }


def retain_label(retain_s: float) -> dict[str, str]:
    return {RETAIN_LABEL: f"{retain_s:g}"} if retain_s else {}


def retention_of(labels: Mapping[str, str]) -> float:
    """Return what `retain_label` wrote; 0 for anything else, since a client can set labels too."""
    return seconds(labels.get(RETAIN_LABEL)) or 0.0


def _label(text: str) -> str:
    plain = text.replace("\0", "").encode("utf-8", "replace")[:_MOST_LABEL]
    return plain.decode(errors="ignore")
