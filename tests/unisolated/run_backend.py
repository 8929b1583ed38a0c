"""A backend for tests that can only run a command to its end (`ports.RunsOnce`).

The real runner plays the script in a root of its own, without anything that isolates, as in
`tests/unisolated/backend.py`. What a run left is a directory, named by its state.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.disk.child_process import start_child
from sandkasten.errors import SandboxLost
from sandkasten.model.backends.backend_features import BackendFeatures
from sandkasten.model.backends.capabilities import Capabilities
from sandkasten.model.sandbox.cell_spec import TMP, WORKSPACE, home
from sandkasten.model.sandbox.limits import Unenforced
from sandkasten.model.sandbox.oneshot_values import RunOutcome, check_run_only
from sandkasten.model.sandbox.readiness import Readiness
from sandkasten_runtime.linux.programs import Programs, find_bwrap
from tests.unisolated.backend import host_root_args

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.model.sandbox.network_policy import NetworkPolicy
    from sandkasten.model.sandbox.oneshot_values import RunOrder
    from sandkasten.ports import Cell

UNENFORCED = Unenforced("pids_limit", "this backend of tests limits nothing", "use another one")


class RunBackend:
    name = "runs"
    capabilities = Capabilities(
        run_once=True, refuses_networks=True, features=BackendFeatures(networks=("none", "full"))
    )

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.orders: list[RunOrder] = []
        self.running = 0
        self.fail: Exception | None = None
        """Raised in place of the next answer."""

    async def probe(self) -> Readiness:
        return Readiness(ready=True)

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> Cell:
        check_run_only(self.name, once=False, profile=spec.profile, workspace=None)
        raise AssertionError

    async def attach(self, sandbox_id: SandboxId) -> Cell:
        raise SandboxLost("it keeps none", hint="run it again")

    async def owned(self) -> Sequence[SandboxId]:
        return ()

    async def discard(self, sandbox_id: SandboxId) -> None:
        """It keeps none."""

    async def ping(self) -> None:
        """It needs nothing else."""

    async def aclose(self) -> None:
        """It keeps nothing open."""

    async def network_refusal(self, policy: NetworkPolicy) -> None:
        return None

    async def reach(self, spec: CellSpec) -> None:
        return None

    async def run(self, order: RunOrder) -> RunOutcome:
        self.orders.append(order)
        self.running += 1
        try:
            return await self._run(order)
        finally:
            self.running -= 1

    async def _run(self, order: RunOrder) -> RunOutcome:
        state = order.after or secrets.token_hex(4)
        workspace = self._folder / state
        os.makedirs(workspace, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder) as place:
            await asyncio.to_thread(Path(place, "script").write_bytes, b"".join(order.script))
            process = await start_child(
                _command(order, workspace, place),
                streams=("stdin",),
                env=os.environ,
                new_session=True,
            )
            try:
                code = await process.wait()
            finally:
                # The kernel ends everything in it with the first process.
                await process.aclose()
            if self.fail is not None:
                raised, self.fail = self.fail, None
                raise raised
            assert code == 0
            answers = [await asyncio.to_thread(Path(place, "answers").read_bytes)]
        return RunOutcome(answers, state, (UNENFORCED,))


def _command(order: RunOrder, workspace: Path, place: str) -> list[str]:
    runner = os.fspath(Programs.found(None, None).runner)
    return [
        find_bwrap() or "bwrap",
        *("--unshare-user", "--uid", "1000", "--gid", "1000", "--unshare-pid", "--unshare-net"),
        *("--die-with-parent", *host_root_args(), "--tmpfs", TMP, "--tmpfs", home(order.spec)),
        *("--bind", os.fspath(workspace), WORKSPACE, "--symlink", "workspace", "/work"),
        *("--bind", place, "/run/place", "--ro-bind", runner, "/run/runner"),
        *("/run/runner", "--script", "/run/place/script", "/run/place/answers"),
        *(str(order.max_answer_bytes), "PATH=/usr/bin:/bin", "--"),
        *("--state-dir", "/run/state", "--workspace", WORKSPACE, "--home", home(order.spec)),
    ]
