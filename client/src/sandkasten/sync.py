"""The client for code without an event loop.

from sandkasten.sync import SandboxClient

with SandboxClient(base_url="http://localhost:8080", api_key="sk-…") as client:
    with client.create_session(image="python") as session:
        print(session.exec("echo hello").output)
"""

from __future__ import annotations

from sandkasten.client.blocking.sync import ExecStream, Images, Process, Sandbox, Terminal, Watch
from sandkasten.client.blocking.sync_service import SandboxClient, Session
from sandkasten.client.snapshots import Snapshots
from sandkasten.client.workspaces import Workspaces

__all__ = [
    "ExecStream",
    "Images",
    "Process",
    "Sandbox",
    "SandboxClient",
    "Session",
    "Snapshots",
    "Terminal",
    "Watch",
    "Workspaces",
]
