"""Session keys: which run, and which of its sandboxes, a name stands for.

Canonical text is `workflow:<run>:<name>` or `agent:<run>:<name>`. Parts cannot hold the
separator, so two different keys never print alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from sandkasten.errors import InvalidRequest

Namespace = Literal["workflow", "agent"]

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_LEGACY = re.compile(r"(workflow|agent)_([A-Za-z0-9][A-Za-z0-9._-]{0,99})_sandbox\Z")


@dataclass(frozen=True, slots=True)
class SessionKey:
    namespace: Namespace
    id: str
    name: str = "default"

    def __post_init__(self) -> None:
        if self.namespace not in ("workflow", "agent"):
            raise InvalidRequest(
                "a session key begins with workflow or agent", hint="workflow:<run>:<name>"
            )
        for what, part in (("run id", self.id), ("name", self.name)):
            if not _PART.match(part):
                raise InvalidRequest(
                    f"the {what} of a session key is 1 to 100 letters, digits, '.', '_' or '-'",
                    hint="workflow:<run>:<name>",
                    field="session_key",
                )

    def __str__(self) -> str:
        return f"{self.namespace}:{self.id}:{self.name}"


def parse_session_key(text: str) -> SessionKey:
    """The canonical text, or `workflow_<run>_sandbox` as older agents write it."""
    legacy = _LEGACY.match(text)
    if legacy:
        return SessionKey(cast("Namespace", legacy[1]), legacy[2])
    parts = text.split(":")
    if len(parts) != 3:
        raise InvalidRequest(
            "a session key has three parts", hint="workflow:<run>:<name>", field="session_key"
        )
    return SessionKey(cast("Namespace", parts[0]), parts[1], parts[2])


def is_legacy(text: str) -> bool:
    """Whether a text is a key as older agents write it; a plain name could look like one."""
    return _LEGACY.match(text) is not None
