"""Convert a ledger row into what its owner sees: names without the tenant, wall-clock timestamps.

Also converts a process and file systems as the runner reports them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.model.access.tenancy import unscoped
from sandkasten.model.sandbox.cell_spec import WORKSPACE
from sandkasten.model.sandbox.lifecycle import State
from sandkasten.model.sandbox.sandbox_values import DiskUsage, Info, Process
from sandkasten.model.sandbox.workspace import plain_name
from sandkasten_runtime.engine.code.context_program import shown_words

if TYPE_CHECKING:
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import Clock
    from sandkasten_runtime.wire.messages import ProcessInfo, RunnerStats

SPARE_DETAIL = "kept ready for the next request"
_CLOCK_STEP_S = 1.0
"""The wall clock was set if it moved by more than this against the boot time. Below it, the times
of creation are used, so that `expires_at` is the same each time it is asked for."""


def described(record: Record, *, created: bool, used: float, cwd: str | None, clock: Clock) -> Info:
    """Return the public description. `used` is the boot time of the last use known here, `cwd` the
    directory of the default shell if it is known here.
    """
    now, boottime = clock.now(), clock.boottime()
    booted_at = record.created_at - record.created_boottime
    if abs(now - boottime - booted_at) > _CLOCK_STEP_S:
        booted_at = now - boottime
    ends_idle = max(now, booted_at + used + record.idle_timeout_s)
    ends = max(now, booted_at + record.created_boottime + record.lifetime_s)
    if record.state is State.PAUSED:
        # A paused sandbox cannot become idle; only its lifetime counts.
        ends_idle = ends
    return Info(
        id=record.id,
        image=record.image,
        backend=record.backend,
        status=record.state.value,
        profile=record.profile,
        limits=record.limits,
        created=created,
        created_at=record.created_at,
        expires_at=min(ends_idle, ends),
        idle_timeout_s=record.idle_timeout_s,
        lifetime_s=record.lifetime_s,
        session_key=None if record.session_key is None else unscoped(record.session_key)[1],
        acquire_source="pool" if record.acquired in ("pool", "spare") else "cold",
        acquire_detail=SPARE_DETAIL if record.acquired == "spare" else record.acquire_detail,
        workspace_id=None if record.workspace_id is None else plain_name(record.workspace_id),
        workspace_shared=record.workspace_shared,
        snapshot=record.snapshot,
        mounts=record.mounts,
        gpus=record.gpus,
        labels=dict(record.labels),
        env_names=record.env_names,
        unenforced=record.unenforced,
        warnings=record.warnings,
        cwd=cwd or WORKSPACE,
        network=record.network,
        tenant=record.tenant,
    )


def process_of(info: ProcessInfo) -> Process:
    return Process(
        pid=info.pid,
        ppid=info.ppid,
        uid=info.uid,
        state=info.state,
        name=info.name,
        cmdline=shown_words(info.cmdline),
        rss_bytes=info.rss_bytes,
        cpu_ms=info.cpu_ms,
        started_at=info.started_ms / 1000,
        threads=info.threads,
        exec_id=info.exec_id,
    )


def disk_usages(stats: RunnerStats) -> tuple[DiskUsage, ...]:
    return tuple(
        DiskUsage(
            path=path,
            total_bytes=disk.total,
            used_bytes=disk.used,
            free_bytes=disk.free,
            inodes=disk.inodes,
            inodes_free=disk.inodes_free,
        )
        for path, disk in stats.disk.items()
    )
