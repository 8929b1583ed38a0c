"""Fixtures of every suite, and the two watches around it: the host, and the event loops.

`--hostwatch` compares the host before the first test with the host after the last one; any
difference fails the run. It is not the default, because on a machine where somebody else works at
the same time their doings would count as ours; `make test` puts the same watch around its runs
(tests/hostwatch/__main__.py). The canary of a run is its own, and always watched.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import asked
from tests.engines import lent
from tests.hostwatch import canary as canary_tree
from tests.hostwatch import loopwatch, snapshot
from tests.hostwatch.difference import settled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_before = pytest.StashKey[snapshot.Snapshot]()
_canary = pytest.StashKey[Path]()
_secret = pytest.StashKey[str]()
_left = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ground",
        default="local",
        metavar="NAME",
        help="what the sandboxes of tests/security stand on; see tests/grounds.py",
    )
    parser.addoption(
        "--backend",
        action="append",
        metavar="NAME",
        help="what to hold to the contract: a ground of tests/grounds.py or package.module:factory",
    )
    parser.addoption(
        "--hostwatch",
        action="store_true",
        help="fail when the run leaves a process, mount, cgroup, namespace, loop device or file, "
        "or changes a sysctl or the canary",
    )
    asked.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    # Somebody's own daemon is not to be tested on.
    for name in ("SANDKASTEN_URL", "SANDKASTEN_API_KEY"):
        os.environ.pop(name, None)
    loopwatch.install()
    asked.configure(config)
    # World-readable on purpose: only isolation keeps a sandbox from it.
    root = Path(tempfile.mkdtemp(prefix="pytest-of-canary-", dir="/var/tmp"))
    root.chmod(0o755)
    config.stash[_canary] = root
    config.stash[_secret] = canary_tree.plant(root)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _canary in config.stash:
        shutil.rmtree(config.stash[_canary], ignore_errors=True)


def pytest_sessionstart(session: pytest.Session) -> None:
    # Given by whoever watches over several runs.
    os.environ.setdefault(snapshot.MARKER, secrets.token_hex(8))
    session.config.stash[_before] = _look(session.config)(session.config.stash[_canary])


def _look(config: pytest.Config) -> Callable[[Path], snapshot.Snapshot]:
    return snapshot.take if config.getoption("--hostwatch") else snapshot.of_canary


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # It tells what the other suites of the run found.
    items.sort(key=lambda item: item.path.parent.name == "matrix")


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    return asked.told(config)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    lent.close()
    if _before not in session.config.stash:
        return
    config = session.config
    left = settled(config.stash[_before], config.stash[_canary], look=_look(config))
    session.config.stash[_left] = left
    if left and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    left = config.stash.get(_left, None)
    if left is None:
        return
    if not left and not config.getoption("--hostwatch"):
        return
    if not left:
        terminalreporter.write_line("hostwatch: the host is as it was before the run")
        return
    terminalreporter.section("hostwatch: the run changed the host", red=True)
    for line in left:
        terminalreporter.write_line(line)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def canary(pytestconfig: pytest.Config) -> Path:
    """A tree on the host that no sandbox may read or change."""
    return pytestconfig.stash[_canary]


@pytest.fixture(scope="session")
def canary_secret(pytestconfig: pytest.Config) -> str:
    """What stands in the canary's files; it must never come out of a sandbox."""
    return pytestconfig.stash[_secret]


@pytest.fixture(scope="session")
def full_size() -> bool:
    """Whether to run every size in full (`make test-long`)."""
    return os.environ.get("SANDKASTEN_LONG") == "1"


@pytest.fixture(autouse=True)
def loops_are_not_held(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test during which an event loop stood still."""
    loopwatch.drain()
    yield
    slow = loopwatch.drain()
    if slow and request.node.get_closest_marker("slow_loop") is None:
        pytest.fail("a callback held the event loop:\n" + "\n".join(slow))
