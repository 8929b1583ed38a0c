"""Session keys: which run, and which of its sandboxes, a name stands for.

The canonical form is `workflow:<run>:<name>` or `agent:<run>:<name>`. Parts cannot hold the
separator, so two different keys never look alike.
"""

from __future__ import annotations

from typing import Literal, cast

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.field_patterns import SESSION_KEY_PART, form

Namespace = Literal["workflow", "agent"]

_PART = form(SESSION_KEY_PART)
_LEGACY = form(f"(workflow|agent)_({SESSION_KEY_PART})_sandbox")


@dataclass(frozen=True, slots=True)
class SessionKey:
    namespace: Namespace
    id: str
    name: str = "default"

    def __post_init__(self) -> None:
        if self.namespace not in ("workflow", "agent"):
            raise InvalidRequest(
                "a session key must begin with workflow or agent", hint="workflow:<run>:<name>"
            )
        for what, part in (("run id", self.id), ("name", self.name)):
            if not _PART.match(part):
                raise InvalidRequest(
                    f"the {what} in a session key must be 1 to 100 letters, digits, '.', '_', '-'",
                    hint="workflow:<run>:<name>",
                    field="session_key",
                )

    def __str__(self) -> str:
        return f"{self.namespace}:{self.id}:{self.name}"


def parse_session_key(text: str) -> SessionKey:
    """Parse the canonical form, or `workflow_<run>_sandbox` as older agents write it."""
    legacy = _LEGACY.match(text)
    if legacy:
        return SessionKey(cast("Namespace", legacy[1]), legacy[2])
    parts = text.split(":")
    if len(parts) != 3:
        raise InvalidRequest(
            "a session key must have three parts", hint="workflow:<run>:<name>", field="session_key"
        )
    return SessionKey(cast("Namespace", parts[0]), parts[1], parts[2])


def is_legacy(text: str) -> bool:
    """Return whether a string is a key as older agents write it."""
    return _LEGACY.match(text) is not None
