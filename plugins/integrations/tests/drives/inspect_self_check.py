"""Inspect's own checks of a sandbox environment, on ours. Runs in the environment of Inspect.

INSPECT_CONFIG is a SandkastenConfig as JSON.
"""

import os

import pytest
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from sandkasten.integrations.inspect_ai_environment import SandkastenConfig, SandkastenEnvironment

CONFIG = SandkastenConfig.model_validate_json(os.environ["INSPECT_CONFIG"])


@pytest.fixture
async def sandbox_env():
    environments = await SandkastenEnvironment.sample_init("self check", CONFIG, {})
    try:
        yield environments["default"]
    finally:
        await SandkastenEnvironment.sample_cleanup("self check", CONFIG, environments, False)


async def test_sandbox_that_is_gone_is_unavailable(sandbox_env):
    from inspect_ai.util._sandbox.environment import SandboxUnavailableError

    await sandbox_env.box.close()
    with pytest.raises(SandboxUnavailableError):
        await sandbox_env.exec(["true"])


async def test_output_over_the_limit_raises(sandbox_env):
    from inspect_ai.util import OutputLimitExceededError
    from inspect_ai.util._sandbox.limits import override_max_exec_output_size

    with override_max_exec_output_size(1024):
        assert (await sandbox_env.exec(["seq", "100"])).success
        with pytest.raises(OutputLimitExceededError):
            await sandbox_env.exec(["seq", "1000"])


async def test_missing_program_is_a_result_with_status_127(sandbox_env):
    result = await sandbox_env.exec(["no-such-program"])
    assert (result.success, result.returncode) == (False, 127)
    assert "no-such-program" in result.stderr


async def test_file_outside_the_writable_directories_is_a_permission_error(sandbox_env):
    with pytest.raises(PermissionError, match="/etc"):
        await sandbox_env.write_file("/etc/new", "x")
