"""Paths as E2B's programs write them, and the user that they name. Pure.

E2B's home is /home/user, which is the workspace here. Relative paths are below it. An answer spells
a path like its request: /home/user or /workspace.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from sandkasten.errors import InvalidRequest, Unauthorized
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.cell_spec import E2B_HOME, USER_ID, WORKSPACE

_USERS: Final = frozenset({"", "user", "root", "sandbox"})


def real_path(path: str) -> str:
    """Return the path inside the sandbox. A relative one stays relative to the workspace."""
    if path == "~" or path.startswith("~/"):
        path = E2B_HOME + path[1:]
    if path == E2B_HOME or path.startswith(E2B_HOME + "/"):
        return WORKSPACE + path[len(E2B_HOME) :]
    return path or WORKSPACE


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a request wrote its path, for the paths of the answer."""

    in_home: bool

    @staticmethod
    def of(path: str) -> Spelling:
        return Spelling(path != WORKSPACE and not path.startswith(WORKSPACE + "/"))

    def shown(self, path: str) -> str:
        inside = path == WORKSPACE or path.startswith(WORKSPACE + "/")
        return E2B_HOME + path[len(WORKSPACE) :] if self.in_home and inside else path


def check_user(name: str | None) -> None:
    """Refuse a user other than `user` and `root`."""
    if (name or "") not in _USERS:
        raise Unauthorized(
            f"invalid username: {(name or '')[:80]!r}",
            hint="leave it out, or use user or root",
        )


def user_in(authorization: str | None) -> str:
    """Return the user that `Authorization: Basic` names; empty: the default one."""
    scheme, _, credential = (authorization or "").partition(" ")
    if scheme.lower() != "basic" or len(credential) > 1024:
        return ""
    try:
        return base64.b64decode(credential, validate=True).decode().partition(":")[0]
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(
            "Authorization must be a user name in Basic form", hint="leave it out"
        ) from exc


def owner_name(uid: int) -> str:
    return {0: "root", USER_ID: "user"}.get(uid, str(uid))
