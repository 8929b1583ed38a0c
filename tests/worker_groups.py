"""Which tests pytest-xdist keeps on one worker.

A file stays together, because its fixtures are made once per worker. Where a fixture is dear or a
resource allows one user at a time, a folder stays together. The contract and the security suite are
split by platform and file; on Docker by platform alone, because each worker has its own containers.
The groups that take longest start first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.platform_choice import GROUNDS

if TYPE_CHECKING:
    import pytest

# Each folder has an engine of its own with images in it, an installed environment, or a server.
TOGETHER = (
    "plugins/dagger/tests",
    "plugins/docker/tests/daemon_container",
    "tests/deploy",
    "tests/packaging",
    "plugins/cluster_store/tests/bucket",
)
SUITES = ("tests/conformance", "tests/security")
# One run of a suite in another process each.
APART = ("tests/matrix/test_elsewhere.py",)
# In this order, by what they took in a run; all others follow.
FIRST = (
    *APART, "tests/network/test_sandbox_network", "plugins/docker/tests/daemon_container",
    "plugins/build/tests/signatures",
    "plugins/tools/tests/test_mcp", "tests/packaging", "tests/conformance on docker/volume",
    "tests/daemon", "plugins/agents/tests/test_agents_of_a_daemon",
    "tests/api/test_event_loop", "tests/repo/test_snippets",
    "tests/cli/test_local_commands", "tests/api/test_fuzz", "tests/examples", "tests/deploy",
    "tests/local/test_pausing", "tests/api/test_quotas", "tests/security on docker/volume",
    "tests/images/test_store_failures", "tests/engines", "plugins/docker/tests", "tests/hostwatch",
    "tests/store/test_database_failures", "plugins/agents/tests/test_service", "tests/acceptance",
)  # fmt: skip


def group(nodeid: str) -> str:
    """Return the name of the group that a test belongs to."""
    file, _, test = nodeid.partition("::")
    folder = file.rpartition("/")[0]
    if file in APART:
        return nodeid
    if folder in TOGETHER:
        return folder
    if folder not in SUITES:
        return file
    platform = test.partition("[")[2].rstrip("]").partition("-")[0]
    if platform in GROUNDS and GROUNDS[platform].backend == "docker":
        return f"{folder} on {platform}"
    return f"{file} on {platform}"


def order(items: list[pytest.Item]) -> None:
    """Sort tests so that the slowest groups start first, and otherwise stay as they are."""
    items.sort(key=lambda item: _place(group(item.nodeid)))


def _place(name: str) -> int:
    listed = next((at for at, prefix in enumerate(FIRST) if name.startswith(prefix)), None)
    if listed is not None:
        return listed
    return len(FIRST) + (" on docker/" not in name)


def scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    # Its own order is by the number of tests, which would have the longest ones start last.
    config.option.loadscopereorder = False

    class Groups(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return Groups(config, log)
