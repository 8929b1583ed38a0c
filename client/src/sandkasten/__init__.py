"""Sandboxes that start in milliseconds, keep their state, and cannot hang.

    from sandkasten import Sandbox

    with Sandbox() as box:
        box.exec("cd /tmp && export A=1")
        print(box.exec("echo $A; pwd").output)

Names are loaded when they are first used: importing this package costs next to nothing and
works on every platform. Where sandboxes cannot be made, making one raises BackendUnavailable.
"""

from __future__ import annotations

# The name type checkers look for; importing it from typing would cost more than all the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandkasten.client.agents import Agents, AsyncAgents, AsyncRunEvents, RunEvents
    from sandkasten.client.blocking.sync import (
        ExecStream,
        Images,
        PortForward,
        Process,
        Sandbox,
        Terminal,
        Watch,
    )
    from sandkasten.client.blocking.sync_service import Session
    from sandkasten.client.contexts import AsyncContexts, Contexts
    from sandkasten.client.images import AsyncImages
    from sandkasten.client.port_forward import AsyncPortForward
    from sandkasten.client.process import (
        AsyncExecStream,
        AsyncProcess,
        AsyncTerminal,
        AsyncWatch,
    )
    from sandkasten.client.results import FileBytes, Output, PastResult, Result, RunResult, Transfer
    from sandkasten.client.run_once import run, run_async
    from sandkasten.client.sandbox import AsyncSandbox
    from sandkasten.client.secrets import AsyncSecrets, Secrets
    from sandkasten.client.session_client import AsyncSession, SandboxClient
    from sandkasten.client.snapshots import AsyncSnapshots, Snapshots
    from sandkasten.client.stored_files import AsyncStoredFiles, StoredFiles
    from sandkasten.client.workspaces import AsyncWorkspaces, Workspaces
    from sandkasten.errors import (
        AgentNotFound,
        BackendError,
        BackendUnavailable,
        BuildFailed,
        Busy,
        Cancelled,
        CommandNotExecutable,
        CommandNotFound,
        CommandTimeout,
        Conflict,
        ConnectionRefused,
        ContextNotFound,
        DirectoryNotEmpty,
        ExecNotFound,
        FileError,
        FileExists,
        FileNotFound,
        FilePermission,
        FileTrouble,
        IdempotencyKeyReused,
        ImageNotFound,
        InternalError,
        InvalidAgent,
        InvalidConfiguration,
        InvalidImage,
        InvalidRequest,
        InvalidWorkflow,
        IsADirectory,
        IsolationRefused,
        KernelFailed,
        KernelNotFound,
        ModelUnavailable,
        NotADirectory,
        NotFound,
        NotRegular,
        PayloadTooLarge,
        PolicyDenied,
        ProtocolViolation,
        ProvisioningFailed,
        QuotaExceeded,
        RegistryUnavailable,
        RequestError,
        RunFailed,
        RunLimitReached,
        RunNotFound,
        SandboxLost,
        SandkastenError,
        SessionExpired,
        SessionNotFound,
        ShellNotFound,
        SnapshotDamaged,
        SnapshotNotFound,
        StoreUnusable,
        Unauthorized,
        UnsupportedByBackend,
        UntrustedImage,
        WorkflowNotFound,
        WorkspaceDamaged,
        WorkspaceNotFound,
    )
    from sandkasten.model.commands.code_values import (
        CodeContext,
        CodeDisplay,
        CodeError,
        CodeResult,
    )
    from sandkasten.model.commands.exec_values import Why
    from sandkasten.model.files.file_entries import Change, FileEntry
    from sandkasten.model.images.image_info import (
        BuiltImage,
        CollectedImages,
        Exported,
        ImageInfo,
        ImageLayer,
        ImageProgress,
        ImageUsage,
        RemovedImage,
    )
    from sandkasten.model.journal_rows import StagedFile, StoredFile
    from sandkasten.model.runs.run_values import Definition, RunEvent, RunRow, RunUsage
    from sandkasten.model.sandbox.oneshot_values import Artifact
    from sandkasten.model.sandbox.sandbox_values import Info, Stats
    from sandkasten.model.sandbox.snapshot import NotKept, Snapshot
    from sandkasten.model.sandbox.usage import ExecUsage, Usage
    from sandkasten.model.sandbox.workspace import Workspace

__version__ = "0.1.0"

_HOME = {
    "sandkasten.client.agents": ("Agents", "AsyncAgents", "AsyncRunEvents", "RunEvents"),
    "sandkasten.client.contexts": ("AsyncContexts", "Contexts"),
    "sandkasten.client.images": ("AsyncImages",),
    "sandkasten.client.run_once": ("run", "run_async"),
    "sandkasten.client.port_forward": ("AsyncPortForward",),
    "sandkasten.client.process": (
        "AsyncExecStream",
        "AsyncProcess",
        "AsyncTerminal",
        "AsyncWatch",
    ),
    "sandkasten.client.results": (
        "FileBytes",
        "Output",
        "PastResult",
        "Result",
        "RunResult",
        "Transfer",
    ),
    "sandkasten.client.sandbox": ("AsyncSandbox",),
    "sandkasten.client.session_client": ("AsyncSession", "SandboxClient"),
    "sandkasten.client.blocking.sync": (
        "ExecStream",
        "Images",
        "PortForward",
        "Process",
        "Sandbox",
        "Terminal",
        "Watch",
    ),
    "sandkasten.client.blocking.sync_service": ("Session",),
    "sandkasten.client.stored_files": ("AsyncStoredFiles", "StoredFiles"),
    "sandkasten.client.secrets": ("AsyncSecrets", "Secrets"),
    "sandkasten.client.snapshots": ("AsyncSnapshots", "Snapshots"),
    "sandkasten.client.workspaces": ("AsyncWorkspaces", "Workspaces"),
    "sandkasten.errors": (
        "AgentNotFound",
        "BackendError",
        "BackendUnavailable",
        "BuildFailed",
        "Busy",
        "Cancelled",
        "CommandNotExecutable",
        "CommandNotFound",
        "CommandTimeout",
        "Conflict",
        "ConnectionRefused",
        "ContextNotFound",
        "DirectoryNotEmpty",
        "ExecNotFound",
        "FileError",
        "FileExists",
        "FileNotFound",
        "FilePermission",
        "FileTrouble",
        "IdempotencyKeyReused",
        "ImageNotFound",
        "InternalError",
        "InvalidAgent",
        "InvalidConfiguration",
        "InvalidImage",
        "InvalidRequest",
        "InvalidWorkflow",
        "IsADirectory",
        "IsolationRefused",
        "KernelFailed",
        "KernelNotFound",
        "ModelUnavailable",
        "NotADirectory",
        "NotFound",
        "NotRegular",
        "PayloadTooLarge",
        "PolicyDenied",
        "ProtocolViolation",
        "ProvisioningFailed",
        "QuotaExceeded",
        "RegistryUnavailable",
        "RequestError",
        "RunFailed",
        "RunLimitReached",
        "RunNotFound",
        "SandboxLost",
        "SandkastenError",
        "SessionExpired",
        "SessionNotFound",
        "ShellNotFound",
        "SnapshotDamaged",
        "SnapshotNotFound",
        "StoreUnusable",
        "Unauthorized",
        "UnsupportedByBackend",
        "UntrustedImage",
        "WorkflowNotFound",
        "WorkspaceDamaged",
        "WorkspaceNotFound",
    ),
    "sandkasten.model.commands.code_values": (
        "CodeContext",
        "CodeDisplay",
        "CodeError",
        "CodeResult",
    ),
    "sandkasten.model.commands.exec_values": ("Why",),
    "sandkasten.model.files.file_entries": ("Change", "FileEntry"),
    "sandkasten.model.images.image_info": (
        "BuiltImage",
        "CollectedImages",
        "Exported",
        "ImageInfo",
        "ImageLayer",
        "ImageProgress",
        "ImageUsage",
        "RemovedImage",
    ),
    "sandkasten.model.journal_rows": ("StagedFile", "StoredFile"),
    "sandkasten.model.runs.run_values": ("Definition", "RunEvent", "RunRow", "RunUsage"),
    "sandkasten.model.sandbox.oneshot_values": ("Artifact",),
    "sandkasten.model.sandbox.sandbox_values": ("Info", "Stats"),
    "sandkasten.model.sandbox.usage": ("ExecUsage", "Usage"),
    "sandkasten.model.sandbox.snapshot": ("NotKept", "Snapshot"),
    "sandkasten.model.sandbox.workspace": ("Workspace",),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AgentNotFound",
    "Agents",
    "Artifact",
    "AsyncAgents",
    "AsyncContexts",
    "AsyncExecStream",
    "AsyncImages",
    "AsyncPortForward",
    "AsyncProcess",
    "AsyncRunEvents",
    "AsyncSandbox",
    "AsyncSecrets",
    "AsyncSession",
    "AsyncSnapshots",
    "AsyncStoredFiles",
    "AsyncTerminal",
    "AsyncWatch",
    "AsyncWorkspaces",
    "BackendError",
    "BackendUnavailable",
    "BuildFailed",
    "BuiltImage",
    "Busy",
    "Cancelled",
    "Change",
    "CodeContext",
    "CodeDisplay",
    "CodeError",
    "CodeResult",
    "CollectedImages",
    "CommandNotExecutable",
    "CommandNotFound",
    "CommandTimeout",
    "Conflict",
    "ConnectionRefused",
    "ContextNotFound",
    "Contexts",
    "Definition",
    "DirectoryNotEmpty",
    "ExecNotFound",
    "ExecStream",
    "ExecUsage",
    "Exported",
    "FileBytes",
    "FileEntry",
    "FileError",
    "FileExists",
    "FileNotFound",
    "FilePermission",
    "FileTrouble",
    "IdempotencyKeyReused",
    "ImageInfo",
    "ImageLayer",
    "ImageNotFound",
    "ImageProgress",
    "ImageUsage",
    "Images",
    "Info",
    "InternalError",
    "InvalidAgent",
    "InvalidConfiguration",
    "InvalidImage",
    "InvalidRequest",
    "InvalidWorkflow",
    "IsADirectory",
    "IsolationRefused",
    "KernelFailed",
    "KernelNotFound",
    "ModelUnavailable",
    "NotADirectory",
    "NotFound",
    "NotKept",
    "NotRegular",
    "Output",
    "PastResult",
    "PayloadTooLarge",
    "PolicyDenied",
    "PortForward",
    "Process",
    "ProtocolViolation",
    "ProvisioningFailed",
    "QuotaExceeded",
    "RegistryUnavailable",
    "RemovedImage",
    "RequestError",
    "Result",
    "RunEvent",
    "RunEvents",
    "RunFailed",
    "RunLimitReached",
    "RunNotFound",
    "RunResult",
    "RunRow",
    "RunUsage",
    "Sandbox",
    "SandboxClient",
    "SandboxLost",
    "SandkastenError",
    "Secrets",
    "Session",
    "SessionExpired",
    "SessionNotFound",
    "ShellNotFound",
    "Snapshot",
    "SnapshotDamaged",
    "SnapshotNotFound",
    "Snapshots",
    "StagedFile",
    "Stats",
    "StoreUnusable",
    "StoredFile",
    "StoredFiles",
    "Terminal",
    "Transfer",
    "Unauthorized",
    "UnsupportedByBackend",
    "UntrustedImage",
    "Usage",
    "Watch",
    "Why",
    "WorkflowNotFound",
    "Workspace",
    "WorkspaceDamaged",
    "WorkspaceNotFound",
    "Workspaces",
    "__version__",
    "run",
    "run_async",
]


def __getattr__(name: str) -> object:
    module = _WHERE.get(name)
    if module is None:
        if not name.startswith("_"):
            from sandkasten.client.import_clash import find_clash

            if clash := find_clash():
                raise ImportError(str(clash))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
