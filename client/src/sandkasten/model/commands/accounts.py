"""Users and groups as the files /etc/passwd and /etc/group of an image define them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.field_patterns import ACCOUNT, form
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandkasten.errors import SandkastenError

MAX_ACCOUNTS_BYTES: Final = 1024 * 1024
# A sandbox has 65,536 ids, and the last two of them stand for others.
_MOST_ID: Final = 65_533
_ACCOUNT: Final = form(ACCOUNT)

Refusal: TypeAlias = "Callable[[str, str], SandkastenError]"
"""Makes the error from a message and a hint."""


@dataclass(frozen=True, slots=True)
class Account:
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    """Further groups that list it as a member."""
    home: str = "/"
    name: str = ""
    """Empty for a number that the image does not name."""

    @property
    def ids(self) -> str:
        """Return the ids as the runner's `--as` takes them: UID:GID[,GID]..."""
        return f"{self.uid}:{','.join(map(str, self.all_groups))}"

    @property
    def all_groups(self) -> tuple[int, ...]:
        """The main group, and then the others."""
        return tuple(dict.fromkeys((self.gid, *self.groups)))


def account_text(value: object) -> str:
    """Return `USER[:GROUP]`; InvalidRequest if it cannot name a user."""
    if not isinstance(value, str) or not _ACCOUNT.match(value):
        raise InvalidRequest(
            "user must be USER or USER:GROUP, names or numbers",
            hint="use a name of /etc/passwd in the image, or a number",
            field="user",
        )
    return value


def find_account(
    passwd: bytes, group_file: bytes, text: str, refusal: Refusal, *, lone_number: bool = False
) -> Account:
    """Return the account that `USER[:GROUP]` names. Raise `refusal` if it is unknown.

    With `lone_number`, a number without a group is its own group, as owners of copies have it.
    """
    user, _, group = text.partition(":")
    row = next((entry for entry in _rows(passwd, 6) if user in (entry[0], entry[2])), None)
    if user.isdigit():
        uid = _id(user, refusal)
        gid = uid if lone_number else 0 if row is None else _id(row[3], refusal)
    elif row is None:
        raise refusal(f"the image has no user {shown(user)}", "create it first, or use a number")
    else:
        uid, gid = _id(row[2], refusal), _id(row[3], refusal)
    name, home = ("", "/") if row is None else (row[0], row[5] or "/")
    groups = _rows(group_file, 4)
    if not group:
        members = (entry for entry in groups if row is not None and row[0] in entry[3].split(","))
        return Account(uid, gid, tuple(_id(entry[2], refusal) for entry in members), home, name)
    if group.isdigit():
        return Account(uid, _id(group, refusal), (), home, name)
    group_entry = next((entry for entry in groups if entry[0] == group), None)
    if group_entry is None:
        raise refusal(f"the image has no group {shown(group)}", "create it first, or use a number")
    return Account(uid, _id(group_entry[2], refusal), (), home, name)


def _rows(data: bytes, fields: int) -> list[list[str]]:
    rows = (line.split(":") for line in data.decode(errors="replace").splitlines())
    return [row for row in rows if len(row) >= fields]


def _id(text: str, refusal: Refusal) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 5 or int(text) > _MOST_ID:
        raise refusal(f"{shown(text)} is not an id that a sandbox has", f"ids end at {_MOST_ID}")
    return int(text)
