"""AutoGen's tests of its Docker executor run on sandboxes: ours has its place."""

from __future__ import annotations

from types import SimpleNamespace

import autogen_ext.code_executors.docker as theirs
import docker

from sandkasten.integrations.autogen_executor import SandkastenCodeExecutor

# They are skipped without a Docker Engine.
docker.from_env = lambda: SimpleNamespace(ping=lambda: True)
theirs.DockerCommandLineCodeExecutor = SandkastenCodeExecutor
