"""Build an engine from the settings: backends, images, packages, ledger.

For a daemon (`daemon_assembly`) and for an engine in another process, without HTTP.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten.daemon import backend_registry
from sandkasten.daemon.settings.settings_file import read_tree
from sandkasten.daemon.shared_store import open_shared
from sandkasten.engine.clock import SystemClock
from sandkasten.engine.engine import Engine
from sandkasten.errors import BackendUnavailable
from sandkasten.images.catalog import Images
from sandkasten.images.image_sources import Sources
from sandkasten.images.layers.image_store import LayerStore
from sandkasten.images.packages.provisioner import Provisioner
from sandkasten.images.signatures.image_trust import ImageTrust
from sandkasten.linux.storage.host_mount_check import HostMountCheck
from sandkasten.model.optional_extras import VERSION
from sandkasten.store.audit_directory import AuditDirectory
from sandkasten.store.secret_directory import SecretDirectory
from sandkasten.telemetry.log_events import LogEvents
from sandkasten.telemetry.otlp_setup import OtlpSetup

if TYPE_CHECKING:
    from sandkasten.daemon.settings.resolver import Settings
    from sandkasten.daemon.shared_store import SharedStore
    from sandkasten.engine.pool.pool_rules import PoolRules
    from sandkasten.ports import AuditLog, EventSink, FileStore, Journal, Secrets, Tracing

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
    `shared`: the database of `store.url`; without it, the engine opens and closes it itself.
    """
    if sys.platform != "linux":
        raise BackendUnavailable(
            "the embedded engine requires Linux",
            hint="run the daemon on a Linux machine and pass its address as url",
        )
    events = events if events is not None else LogEvents()
    tracing = tracing if tracing is not None else await open_tracing(settings)
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
            await opened.database.aclose()
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
        from sandkasten.store.postgres.postgres_ledger import PostgresLedger
        from sandkasten.store.postgres.postgres_secrets import PostgresSecrets
        from sandkasten.store.postgres.postgres_workspaces import PostgresWorkspaces

        ledger = PostgresLedger(
            shared.database,
            shared.node,
            shared=shared.backends,
            leases=shared.leases,
            owns_database=owns_database,
            bucket=settings.bucket,
        )
        workspaces = PostgresWorkspaces(shared.database, backing.workspaces, shared.backends)
        backing = replace(backing, store=ledger, workspaces=workspaces)
        secrets = PostgresSecrets(shared.database, settings.secrets_key)
    sources = Sources(
        layers,
        registries=settings.registries,
        limits=settings.pull_limits,
        trust=ImageTrust(settings.signatures) if settings.signatures else None,
        read_recipe=read_tree,
    )
    images = Images(
        layers,
        allowed=settings.allowed_images,
        strict=settings.images_strict,
        aliases=settings.image_aliases,
        pull=settings.images_pull,
        sources=sources,
        events=events,
    )
    packages = Provisioner(
        settings.data_dir.absolute() / "packages", settings.packages, os.environ, events
    )
    pool = settings.pool
    return Engine(
        backends=backing.backends,
        default_backend=settings.backend,
        store=backing.store,
        images=images,
        library=images,
        policy=settings.policy,
        clock=SystemClock(),
        events=events,
        interpreters=settings.pool.imported,
        pool=pool if journal is not None else embedded_pool(pool),
        version=VERSION,
        workspaces=backing.workspaces,
        host_mounts=HostMountCheck(settings.data_dir),
        journal=journal,
        packages=packages,
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
    if not settings.audit:
        return None
    keep = settings.retention
    return AuditDirectory(
        settings.data_dir.absolute() / "audit", max_bytes=keep.audit_bytes, keep_s=keep.audit_s
    )


def otlp_setup(settings: Settings) -> OtlpSetup:
    rules = settings.telemetry
    return OtlpSetup(os.environ, rules.endpoint, rules.protocol, rules.content)


async def open_tracing(settings: Settings) -> Tracing:
    """Return what reports spans; raise InvalidConfiguration if it cannot be opened."""
    # In a thread: importing OpenTelemetry takes as long as a hundred commands.
    return await asyncio.to_thread(otlp_setup(settings).tracing)
