"""From what an agent's file asks to what the engine is asked. Pure.

Nothing is refused here: the engine's rules and the operator's policy see the whole wish.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from sandkasten.model.sandbox.sandbox_requests import CreateRequest

if TYPE_CHECKING:
    from sandkasten.agents.definitions.sandbox_request import SandboxWish
    from sandkasten.agents.run_context import RunContext
    from sandkasten.model.runs.session_key import SessionKey

RUN_LABEL: Final = "sandkasten.run"
AGENT_LABEL: Final = "sandkasten.agent"
_PROGRAMS: Final = ("python", "node", "bash", "sh", "linux", "shell", "python3", "javascript")
# Images that have no bash.
_SMALL: Final = ("alpine", "busybox")
_MOST_LABEL: Final = 256


def image_for(wish: SandboxWish) -> str | None:
    """What a sandbox that stays is made of; None: the file says nothing of it."""
    return wish.image or wish.runtime


def runtime_for(wish: SandboxWish) -> str:
    """What runs the code of a one-shot. A runtime that is an image is looked at by its name."""
    if wish.runtime is None:
        return "python"
    if wish.runtime in _PROGRAMS:
        return wish.runtime
    name = wish.runtime.rpartition("/")[2].partition("@")[0].partition(":")[0].lower()
    for program in ("python", "node"):
        if program in name:
            return program
    return "sh" if any(small in name for small in _SMALL) else "bash"


def compute_image(wish: SandboxWish) -> str | None:
    """None: what the operator means by the runtime."""
    if wish.image is not None:
        return wish.image
    return None if wish.runtime in (None, *_PROGRAMS) else wish.runtime


def network_for(wish: SandboxWish) -> str | None:
    """In the engine's words; whether it can be had, the engine says."""
    if wish.network_allow:
        return "allow:" + ",".join(wish.network_allow)
    return "full" if wish.network else None


def timeout_for(wish: SandboxWish) -> float | None:
    """Of one command that names none; None: the sandbox's own."""
    if wish.timeout_s is not None:
        return wish.timeout_s
    return wish.limits.get("exec_timeout_seconds")


def request_for(
    wish: SandboxWish,
    context: RunContext,
    *,
    key: SessionKey | None = None,
    image: str | None = None,
    default_idle_s: float | None = None,
    most_life_s: float = math.inf,
) -> CreateRequest:
    """The sandbox of a session: `key` in place of the file's own, `image` in place of its image.

    `default_idle_s` is how long one may rest that asked for nothing, `most_life_s` how long any may
    live: the context can only shorten.
    """
    the_key = key or context.session_key()
    asked = default_idle_s if wish.idle_timeout_s is None else wish.idle_timeout_s
    rests = [one for one in (asked, context.idle_timeout_s) if one is not None]
    return CreateRequest(
        image=image or image_for(wish) or "linux",
        idle_timeout_s=min(rests) if rests else None,
        lifetime_s=None
        if context.idle_timeout_s is None
        else min(context.idle_timeout_s, most_life_s),
        labels={
            RUN_LABEL: the_key.id,
            AGENT_LABEL: _label(context.agent_name),
        },
        limits=dict(wish.limits),
        profile=wish.profile,
        network=network_for(wish),
        pip_packages=wish.pip_packages,
        npm_packages=wish.npm_packages,
        session_key=str(the_key),
        tenant=context.tenant,
        key_id=context.key_id,
    )


def _label(text: str) -> str:
    plain = text.replace("\0", "").encode("utf-8", "replace")[:_MOST_LABEL]
    return plain.decode(errors="ignore")
