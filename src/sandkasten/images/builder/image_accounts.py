"""Users and groups as an image's own files define them, for USER and the owner of a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BuildFailed
from sandkasten.images.layers.overlay import read_merged
from sandkasten.images.layers.skeleton import MAX_ACCOUNTS_BYTES
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

# A sandbox has 65,536 ids, and the last two of them stand for others.
_MOST_ID: Final = 65_533


@dataclass(frozen=True, slots=True)
class Account:
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    """Further groups that list it as a member."""
    home: str = "/"


def find_account(trees: Sequence[str], text: str, *, lone_number: bool = False) -> Account:
    """Return the account that `USER[:GROUP]` names. Blocking. Raise BuildFailed if it is unknown.

    With `lone_number`, a number without a group is its own group, as owners of copies have it.
    """
    user, _, group = text.partition(":")
    rows = _rows(trees, "/etc/passwd", 6)
    row = next((one for one in rows if user in (one[0], one[2])), None)
    if user.isdigit():
        uid = _id(user)
        gid = uid if lone_number else 0 if row is None else _id(row[3])
    elif row is None:
        raise BuildFailed(
            f"the image has no user {shown(user)}", hint="create it first, or use a number"
        )
    else:
        uid, gid = _id(row[2]), _id(row[3])
    home = (row[5] if row is not None else "") or "/"
    groups = _rows(trees, "/etc/group", 4)
    if not group:
        members = (one for one in groups if row is not None and row[0] in one[3].split(","))
        return Account(uid, gid, tuple(_id(one[2]) for one in members), home)
    if group.isdigit():
        return Account(uid, _id(group), (), home)
    found = next((one for one in groups if one[0] == group), None)
    if found is None:
        raise BuildFailed(
            f"the image has no group {shown(group)}", hint="create it first, or use a number"
        )
    return Account(uid, _id(found[2]), (), home)


def _rows(trees: Sequence[str], path: str, fields: int) -> list[list[str]]:
    data = read_merged(trees, path, MAX_ACCOUNTS_BYTES) or b""
    rows = (line.split(":") for line in data.decode(errors="replace").splitlines())
    return [row for row in rows if len(row) >= fields]


def _id(text: str) -> int:
    if not text.isdigit() or len(text) > 5 or int(text) > _MOST_ID:
        raise BuildFailed(
            f"{shown(text)} is not an id that a sandbox has", hint=f"ids end at {_MOST_ID}"
        )
    return int(text)
