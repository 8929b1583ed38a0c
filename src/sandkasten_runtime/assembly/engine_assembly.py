"""Build an engine from the settings: backends, images, packages, ledger.

For a daemon (`daemon_assembly`) and for an engine in another process, without HTTP.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BackendUnavailable
from sandkasten.model.optional_extras import VERSION
from sandkasten.ports.pull_limits import PullLimits
from sandkasten_runtime.assembly import backend_registry
from sandkasten_runtime.assembly.settings.core_settings import (
    AuditSettings,
    GeneralSettings,
    ImageSettings,
    PolicySettings,
    RegistrySettings,
)
from sandkasten_runtime.assembly.settings.settings_file import read_tree
from sandkasten_runtime.assembly.shared_store import open_shared
from sandkasten_runtime.assembly.telemetry_catalog import open_exporter
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_runtime.engine.engine import Engine
from sandkasten_runtime.engine.pool.pool_rules import PoolRules
from sandkasten_runtime.images.catalog import Images
from sandkasten_runtime.images.image_plugins import PartContext
from sandkasten_runtime.images.image_sources import Sources
from sandkasten_runtime.images.installed_parts import InstalledParts
from sandkasten_runtime.images.layers.image_store import LayerStore
from sandkasten_runtime.linux.storage.host_mount_check import HostMountCheck
from sandkasten_runtime.linux.storage.snapshot_directory import SnapshotDirectory
from sandkasten_runtime.store.audit_directory import AuditDirectory
from sandkasten_runtime.store.record_rules import Retention
from sandkasten_runtime.store.secret_directory import SecretDirectory
from sandkasten_runtime.telemetry.log_events import LogEvents

if TYPE_CHECKING:
    from sandkasten.ports import AuditLog, EventSink, FileStore, Journal, Secrets, Tracing
    from sandkasten.ports.store_plugins import SharedStore
    from sandkasten_runtime.assembly.settings.resolver import Settings

# A program keeps a sandbox ready for no longer, because it may end at any time.
_EMBEDDED_IDLE_S: Final = 8.0


async def open_engine(
    settings: Settings,
    *,
    events: EventSink | None = None,
    journal: Journal | None = None,
    stored_files: FileStore | None = None,
    tracing: Tracing | None = None,
    audit: AuditLog | None = None,
    shared: SharedStore | None = None,
) -> Engine:
    """Open an engine, which sweeps once in the background. Requires Linux.

    `audit`: the log of a daemon; without it, the engine opens that of the data directory.
    `shared`: the shared database; without it, the engine opens and closes that of the settings.
    """
    if sys.platform != "linux":
        raise BackendUnavailable(
            "the embedded engine requires Linux",
            hint="run the daemon on a Linux machine and pass its address as url",
        )
    events = events if events is not None else LogEvents()
    if tracing is None:
        # In a thread: importing OpenTelemetry takes as long as a hundred commands.
        tracing = await asyncio.to_thread(open_exporter(settings).tracing)
    layers = LayerStore(settings.data_dir.absolute() / "images")
    opened = shared if shared is not None else await open_shared(settings)
    try:
        engine = _assembled(
            settings,
            layers,
            opened,
            owns_database=shared is None,
            events=events,
            journal=journal,
            stored_files=stored_files,
            tracing=tracing,
            audit=audit if audit is not None else open_audit(settings),
        )
    except BaseException:
        if opened is not None and shared is None:
            await opened.aclose()
        raise
    engine.sweep_soon()
    return engine


def _assembled(
    settings: Settings,
    layers: LayerStore,
    shared: SharedStore | None,
    *,
    owns_database: bool,
    events: EventSink,
    journal: Journal | None,
    stored_files: FileStore | None,
    tracing: Tracing,
    audit: AuditLog | None,
) -> Engine:
    backing = backend_registry.open_backing(settings, layers, events)
    if shared is None:
        secrets: Secrets = SecretDirectory(
            settings.data_dir.absolute() / "secrets", settings.secrets_key
        )
    else:
        ledger = shared.ledger(closes_store=owns_database)
        workspaces = shared.workspaces(backing.workspaces)
        backing = replace(backing, store=ledger, workspaces=workspaces)
        secrets = shared.secrets()
    parts = InstalledParts()
    for problem in parts.problems:
        events.emit("plugin.unusable", {"problem": problem})
    context = PartContext(
        data_dir=settings.data_dir.absolute(),
        store=layers,
        settings=settings,
        environ=os.environ,
        read_yaml=read_tree,
        events=events,
    )
    general, image_settings = settings.of(GeneralSettings), settings.of(ImageSettings)
    sources = Sources(
        layers,
        registries=settings.of(RegistrySettings).registries,
        limits=settings.of(PullLimits),
        trust=parts.signatures(settings.of(PolicySettings).signatures),
    )
    images = Images(
        layers,
        allowed=general.allowed_images,
        strict=image_settings.strict,
        aliases=image_settings.aliases,
        pull=image_settings.pull,
        sources=sources,
        events=events,
        open_builder=partial(parts.builder, context),
    )
    pool = settings.of(PoolRules)
    return Engine(
        backends=backing.backends,
        default_backend=general.backend,
        store=backing.store,
        images=images,
        library=images,
        policy=settings.policy,
        clock=SystemClock(),
        events=events,
        interpreters=pool.imported,
        pool=pool if journal is not None else embedded_pool(pool),
        version=VERSION,
        workspaces=backing.workspaces,
        snapshots=SnapshotDirectory(
            settings.data_dir.absolute() / "snapshots", disk=settings.policy.disk
        ),
        host_mounts=HostMountCheck(settings.data_dir),
        journal=journal,
        packages=parts.packages(context),
        stored_files=stored_files,
        host_disk=settings.data_dir,
        secrets=secrets,
        tracing=tracing,
        audit=audit,
    )


def embedded_pool(rules: PoolRules) -> PoolRules:
    """Return the warm pool of a program: a short one must not keep sandboxes for long."""
    return replace(rules, idle_s=min(rules.idle_s, _EMBEDDED_IDLE_S), kinds=())


def open_audit(settings: Settings) -> AuditDirectory | None:
    """Return the audit log of the data directory, opened when it is written; None if it is off."""
    if not settings.of(AuditSettings).enabled:
        return None
    keep = settings.of(Retention)
    return AuditDirectory(
        settings.data_dir.absolute() / "audit", max_bytes=keep.audit_bytes, keep_s=keep.audit_s
    )
