"""Users and groups as an image's own files define them, for USER and the owner of a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import BuildFailed
from sandkasten.images.layers.overlay import read_merged
from sandkasten.images.layers.skeleton import MAX_ACCOUNTS_BYTES
from sandkasten.model.commands import accounts

if TYPE_CHECKING:
    from collections.abc import Sequence


def find_account(trees: Sequence[str], text: str, *, lone_number: bool = False) -> accounts.Account:
    """Return the account that `USER[:GROUP]` names. Blocking. Raise BuildFailed for others."""
    passwd, group = (
        read_merged(trees, path, MAX_ACCOUNTS_BYTES) or b""
        for path in ("/etc/passwd", "/etc/group")
    )
    return accounts.find_account(passwd, group, text, _refusal, lone_number=lone_number)


def _refusal(message: str, hint: str) -> BuildFailed:
    return BuildFailed(message, hint=hint)
