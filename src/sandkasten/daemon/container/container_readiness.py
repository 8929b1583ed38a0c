"""Whether the daemon in a container is ready, asked from inside it.

By its Unix socket, because the address it is published on may be one of another machine. Needs
nothing of the image but its `python3`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandkasten.daemon.container.install_plan import DAEMON_SOCKET, NAME

if TYPE_CHECKING:
    from sandkasten.backends.docker.engine.engine_host import EngineHost

_ASK_S: Final = 15.0
_PROBE: Final = """\
import http.client, socket, sys
class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(sys.argv[1])
connection = Connection("localhost")
try:
    connection.request("GET", "/readyz")
    answer = connection.getresponse()
    print(answer.read(65536).decode(errors="replace"))
except OSError:
    sys.exit(2)
sys.exit(answer.status != 200)
"""
_COMMAND: Final = ("python3", "-I", "-S", "-c", _PROBE, DAEMON_SOCKET.removeprefix("unix://"))


@dataclass(frozen=True, slots=True)
class Answer:
    ready: bool
    reason: str = ""
    remedy: str = ""


async def ask(host: EngineHost) -> Answer:
    said = await host.ask(NAME, _COMMAND, _ASK_S)
    if said is not None and said.status == 0:
        return Answer(True)
    try:
        told = json.loads(said.text) if said is not None else {}
    except ValueError:
        told = {}
    if not isinstance(told, dict) or "message" not in told:
        return Answer(False, "it does not answer")
    return Answer(False, str(told["message"])[:600], str(told.get("hint") or ""))
