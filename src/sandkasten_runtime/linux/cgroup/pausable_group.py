"""Pause, resume and memory reclaim of a sandbox's cgroup, with errors that state the reason.

`freezer` does the kernel's part; this module adds the sandbox's name and the classes of `errors`.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable, Busy, SandboxLost, UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.linux.cgroup import freezer

if TYPE_CHECKING:
    from sandkasten.model.ids import SandboxId
    from sandkasten_runtime.linux.cgroup.cgroups import Hierarchies
    from sandkasten_runtime.linux.state_layout import Layout


@dataclass(frozen=True, slots=True)
class PausableGroup:
    id: SandboxId
    layout: Layout
    hierarchies: Hierarchies

    async def pause(self) -> None:
        """Stop everything inside. Raise UnsupportedByBackend if there is no cgroup."""
        way = self._freezer()
        try:
            await asyncio.to_thread(freezer.freeze, way)
        except TimeoutError as exc:
            raise Busy(
                f"sandbox {self.id} did not stop within {freezer.FREEZE_DEADLINE_S:g} s",
                hint="a process waits for the disk; it runs on as before, try again",
            ) from exc
        except OSError as exc:
            raise self._trouble("paused", exc) from exc

    async def resume(self) -> None:
        way = self._freezer()
        try:
            await asyncio.to_thread(freezer.thaw, way)
        except OSError as exc:
            raise self._trouble("resumed", exc) from exc

    async def reclaim(self) -> int:
        """Reclaim pages that have a copy on disk; a process's own memory stays."""
        way = freezer.reclaimer(self.hierarchies, self.id)
        if way is None:
            raise self._no_cgroup("its memory cannot be reclaimed", "memory")
        try:
            return await asyncio.to_thread(freezer.reclaim, way)
        except FileNotFoundError as exc:
            raise self._no_cgroup("its memory cannot be reclaimed", "memory") from exc
        except OSError as exc:
            raise self._trouble("relieved of memory", exc) from exc

    def _freezer(self) -> freezer.Freezer:
        way = freezer.usable(freezer.freezers(self.hierarchies, self.id))
        if way is None:
            raise self._no_cgroup("it cannot be paused or resumed", "freezer")
        return way

    def _no_cgroup(self, so: str, controller: str) -> UnsupportedByBackend | SandboxLost:
        if not self.layout.cell(self.id).exists():
            return SandboxLost(f"sandbox {self.id} is gone", hint="create a new one")
        if os.geteuid() != 0:
            reason, remedy = "an ordinary user has no cgroup here", "run as root"
        else:
            reason = f"the sandbox has no {controller} cgroup"
            remedy = "mount cgroups writable; run sandkasten doctor"
        return UnsupportedByBackend(
            f"sandbox {self.id}: {so}, because {reason}", hint=remedy, sandbox_id=self.id
        )

    def _trouble(self, what: str, exc: OSError) -> BackendUnavailable | SandboxLost:
        if not self.layout.cell(self.id).exists():
            return SandboxLost(f"sandbox {self.id} is gone", hint="create a new one")
        return BackendUnavailable(
            f"sandbox {self.id} could not be {what}: {exc.strerror or exc}",
            hint="check that the cgroup file systems are writable",
        )
