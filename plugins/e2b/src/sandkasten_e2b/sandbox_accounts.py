"""The user and the home directory of requests that E2B's SDKs make.

A hardened sandbox has one user, for whom all names stand. In profile dev, `root` is root and every
other request acts as the ordinary user, who owns the workspace. The home is the workspace; where it
is mounted at /home/user too, commands start there and see that name.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from sandkasten.errors import Busy, CommandNotExecutable, CommandNotFound
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.files.sandbox_paths import sandbox_path
from sandkasten.model.sandbox.cell_spec import E2B_HOME, USER_ID, WORKSPACE
from sandkasten_e2b.sandbox_places import Spelling, real_path

if TYPE_CHECKING:
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.sandbox_values import Info
    from sandkasten_runtime.engine.engine import Engine

_USER: Final = f"{USER_ID}:{USER_ID}"
# Prints the name of the user if the home is a mount; in profile dev the workspace becomes its own.
_LOOK: Final = (
    f'[ "$(id -u)" != 0 ] || chown {_USER} {WORKSPACE}; '
    f'[ "$(stat -c %d:%i {E2B_HOME})" = "$(stat -c %d:%i {WORKSPACE})" ] || exit 1; '
    f'while IFS=: read -r name _ id _; do [ "$id" != {USER_ID} ] || echo "$name"; done </etc/passwd'
)
_NAME: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}\Z")
_LOOK_S: Final = 20.0
_MAX_KNOWN: Final = 4096


@dataclass(frozen=True, slots=True)
class SandboxAccount:
    """The ordinary user of one sandbox. `name` is empty where the home is no mount."""

    is_dev: bool
    name: str = ""

    def user(self, requested: str) -> str | None:
        """Return the user of a command or a file call; None: that of the sandbox."""
        return _USER if self.is_dev and requested != "root" else None

    def directory(self, cwd: str | None) -> str | None:
        """Return the directory in which a command starts; `cwd` is the requested one.

        None: the workspace.
        """
        if not self.name:
            return real_path(cwd) if cwd else None
        wanted = cwd or E2B_HOME
        return Spelling.of(wanted).shown(sandbox_path(real_path(wanted)))

    def environment(self, requested: str) -> dict[str, str]:
        """Return the variables that name the user and its home, as E2B's images have them."""
        if not self.name or (self.is_dev and requested == "root"):
            return {}
        return {"HOME": E2B_HOME, "USER": self.name, "LOGNAME": self.name}


class SandboxAccounts:
    """Looks once into each sandbox."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, SandboxAccount] = OrderedDict()

    async def user(self, engine: Engine, the_id: SandboxId, requested: str) -> str | None:
        """Return the user of a file call. It needs no look into a hardened sandbox."""
        if the_id not in self._known and (await engine.get(the_id)).profile != "dev":
            return None
        return (await self.of(engine, the_id)).user(requested)

    async def of(self, engine: Engine, the_id: SandboxId) -> SandboxAccount:
        account = self._known.get(the_id)
        if account is None:
            info = await engine.get(the_id)
            account = SandboxAccount(info.profile == "dev", await _name(engine, info))
            self._known[the_id] = account
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return account


async def _name(engine: Engine, info: Info) -> str:
    timeout_s = min(_LOOK_S, info.limits.max_exec_timeout_s)
    look = ExecRequest(("/bin/sh", "-c", _LOOK), timeout_seconds=timeout_s)
    try:
        result = await engine.look(info.id, look)
    except (CommandNotFound, CommandNotExecutable):
        # An image without a shell has the directory that the engine gives it.
        return ""
    if result.exit_code is None:
        raise Busy("the sandbox did not answer in time", hint="try again")
    name = result.stdout.decode("utf-8", "replace").partition("\n")[0]
    return name if _NAME.match(name) else ""
