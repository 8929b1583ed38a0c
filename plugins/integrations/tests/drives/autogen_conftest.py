"""AutoGen's tests of its Docker executor run on sandboxes: ours has its place."""

from __future__ import annotations

from functools import partialmethod
from types import SimpleNamespace

import autogen_ext.code_executors.docker as theirs
import docker

from sandkasten.integrations.autogen_executor import SandkastenCodeExecutor

# They are skipped without a Docker Engine.
docker.from_env = lambda: SimpleNamespace(ping=lambda: True)
# Containers of Docker have root and a writable root.
SandkastenCodeExecutor.__init__ = partialmethod(
    SandkastenCodeExecutor.__init__, image="debian", profile="dev"
)
theirs.DockerCommandLineCodeExecutor = SandkastenCodeExecutor
