"""An egress process that does not answer delays nothing, and a change closes its network.

The process is stopped, so it accepts no command and sees no end. What counts is how long an
operation was ready to wait for an answer, which is recorded, and not how long it took.
"""

from __future__ import annotations

import ast
import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sandkasten_runtime.engine
from sandkasten import Sandbox
from sandkasten.errors import Busy, SandboxLost
from sandkasten_runtime.linux import egress
from sandkasten_runtime.linux.state_layout import read_pid_file
from tests.ordinary_user import OrdinaryUser
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.root
READ, CHANGE = egress.READ_S, egress.CHANGE_S
_ASKS = {"network_counts", "network_records", "change_network", "cut_network", "final_counts"}
SOURCES = Path(sandkasten_runtime.engine.__file__).parent


class Silent:
    """A sandbox whose egress process is stopped, and what was waited for it."""

    def __init__(self, box: Sandbox, data: Path, port: int) -> None:
        self.box, self.data, self.port = box, data, port
        self.waited: list[float] = []
        (control,) = data.glob(f"**/{box.id}/{egress.CONTROL}")
        known = read_pid_file(control.parent / egress.PID)
        assert known is not None
        self.pid = known[0]
        os.kill(self.pid, signal.SIGSTOP)

    def reached(self) -> bool:
        asked = ["curl", "-sS", "-m", "5", f"http://good.test:{self.port}/"]
        return "hello" in self.box.exec(asked).output

    @property
    def alive(self) -> bool:
        with suppress(FileNotFoundError):
            return "\nState:\tZ" not in Path(f"/proc/{self.pid}/status").read_text()
        return False


@pytest.fixture
def silent(
    boxed: Callable[..., Sandbox], data: Path, web: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Silent]:
    box = boxed(backend="local", network={"allow": [f"good.test:{web}"]})
    made = Silent(box, data, web)
    ask = egress.ask

    async def noted(cell: Path, command: dict[str, object], within_s: float) -> dict[str, Any]:
        try:
            return await ask(cell, command, within_s)
        except asyncio.CancelledError:
            raise
        except Busy:
            made.waited.append(within_s)
            raise

    monkeypatch.setattr(egress, "ask", noted)
    yield made
    with suppress(ProcessLookupError):
        os.kill(made.pid, signal.SIGCONT)


def _reads(silent: Silent) -> None:
    for read in (silent.box.network, silent.box.stats, silent.box.network):
        with pytest.raises(Busy, match="network of sandbox .* answer"):
            read()


def _log(silent: Silent) -> None:
    assert silent.box.network_log() == []


def _exec(silent: Silent) -> None:
    assert silent.box.exec("echo hello").output == "hello\n"


def _close(silent: Silent) -> None:
    silent.box.update(network="none")
    assert not silent.alive
    assert silent.box.info().network == "none"
    assert silent.box.network().open == 0
    assert silent.box.stats().network.mode == "none"
    assert silent.box.exec("echo hello").output == "hello\n"
    assert not silent.reached()


def _open(silent: Silent) -> None:
    with pytest.raises(SandboxLost, match="could not be changed and is closed for good"):
        silent.box.update(network="full")
    assert not silent.alive
    assert not silent.reached()


def _destroy(silent: Silent) -> None:
    silent.box.close()
    assert not silent.alive


def _destroy_from_elsewhere(silent: Silent) -> None:
    Sandbox.attach(silent.box.id, data_dir=str(silent.data)).close()
    assert not silent.alive


def _pause(silent: Silent) -> None:
    silent.box.pause()
    os.kill(silent.pid, signal.SIGCONT)
    silent.box.resume()
    assert silent.reached()


# By operation: what it does, and how long it may wait for the process in all.
OPERATIONS: dict[str, tuple[Callable[[Silent], None], float]] = {
    "read": (_reads, READ),
    "log": (_log, 0.0),
    "exec": (_exec, 0.0),
    # The quota of the tenant is computed before the change.
    "close": (_close, READ + CHANGE),
    "open": (_open, READ + CHANGE),
    # It waits less than a read and gives up, so no wait was seen to its end.
    "destroy": (_destroy, 0.0),
    "destroy from elsewhere": (_destroy_from_elsewhere, 0.0),
    "pause": (_pause, READ),
}

# Every place of the engine that asks an egress process, and the operations that come there.
CALLERS: dict[str, tuple[str, ...]] = {
    "network_control.log network_records": ("log",),
    "network_control._send change_network": ("close", "open"),
    "network_control._send cut_network": ("close", "open"),
    "network_totals._asked network_counts": ("read", "pause", "destroy"),
    "network_totals.ended_unattended final_counts": ("destroy from elsewhere",),
    "network_audit._copy network_records": ("destroy",),
    "exec_endings.refused_between network_records": ("exec",),
    "exec_endings._created_with_network network_counts": ("close",),
    # A pooled sandbox is new; a claim that fails makes another one (tests/engine).
    "spare_claims.apply_request change_network": (),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_operation_waits_for_a_process_that_does_not_answer(silent, operation):
    work, most_s = OPERATIONS[operation]
    work(silent)
    assert sum(silent.waited) <= most_s, silent.waited


def test_every_place_that_asks_has_a_row():
    found = set()
    for file in SOURCES.rglob("*.py"):
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Attribute) and node.attr in _ASKS:
                        found.add(f"{file.stem}.{function.name} {node.attr}")
    assert found == CALLERS.keys()
    assert {one for some in CALLERS.values() for one in some} <= OPERATIONS.keys()


def test_an_ordinary_user_can_close_and_destroy_too():
    """Without a cgroup, nothing but its own end or a signal by pid ends the process."""
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from sandkasten import Sandbox\n"
        "from sandkasten_runtime.linux import egress\n"
        "from sandkasten_runtime.linux.state_layout import read_pid_file\n"
        "def stopped(box):\n"
        "    (found,) = Path(os.environ['HOME']).glob(f'**/{box.id}/{egress.PID}')\n"
        "    pid = read_pid_file(found.parent / egress.PID)[0]\n"
        "    os.kill(pid, signal.SIGSTOP)\n"
        "    return pid\n"
        "def gone(pid):\n"
        "    try:\n"
        "        return '\\nState:\\tZ' in Path(f'/proc/{pid}/status').read_text()\n"
        "    except FileNotFoundError:\n"
        "        return True\n"
        "for closes in (True, False):\n"
        "    with Sandbox(network='full') as box:\n"
        "        pid = stopped(box)\n"
        "        if closes:\n"
        "            box.update(network='none')\n"
        "            assert gone(pid), 'closed'\n"
        "    assert gone(pid), 'destroyed'\n"
        "print('done')\n"
    )
    with OrdinaryUser() as user:
        env = {"SANDKASTEN_POOL_ONESHOT_SPARES": "0", "SANDKASTEN_POLICY_NETWORK": "full"}
        done = user.python("-c", script, env=env, timeout_s=PATIENCE_S)
    assert done.stdout == "done\n", done.stderr
