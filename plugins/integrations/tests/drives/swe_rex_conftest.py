"""The conftest of SWE-ReX's own tests: their runtime is one on a sandbox.

Its source distribution has the tests without their conftest.
"""

from __future__ import annotations

import pytest
from swerex.runtime.abstract import (
    BashAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
)

from sandkasten.integrations.swe_rex_deployment import SandkastenDeployment


@pytest.fixture
async def remote_runtime():
    deployment = SandkastenDeployment()
    await deployment.start()
    yield deployment.runtime
    await deployment.stop()


@pytest.fixture
async def runtime_with_default_session(remote_runtime):
    await remote_runtime.create_session(CreateBashSessionRequest())
    yield remote_runtime
    await remote_runtime.close_session(CloseBashSessionRequest())


class _Action(BashAction):
    timeout: float | None = 5


class _Command(Command):
    timeout: float | None = 5
