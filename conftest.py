"""Fixtures for every suite, and two checks around it: the host, and the event loops.

`--hostwatch` compares the host before the first test with the host after the last one; any
difference fails the run. It is not the default, because other programs on the machine would count
as well; `make test` uses it. The canary belongs to one process and is always checked. With
pytest-xdist the controller checks the host and every worker its own canary.
"""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests import forked_programs, platform_markers, worker_groups
from tests.cloud import lent_services
from tests.cluster import lent_cluster
from tests.engines import lent
from tests.hostwatch import canary as canary_tree
from tests.hostwatch import loopwatch, snapshot
from tests.hostwatch.difference import settled
from tests.platform_choice import LONG
from tests.unisolated import composition

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

_before = pytest.StashKey[snapshot.Snapshot]()
_canary = pytest.StashKey[Path]()
_secret = pytest.StashKey[str]()
_left = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--hostwatch",
        action="store_true",
        help="fail when the run leaves a process, mount, cgroup, namespace, loop device or file, "
        "or changes a sysctl or the canary",
    )
    platform_markers.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    # A shell without job control starts background jobs with SIGINT ignored.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # So does nohup with SIGHUP, which ends terminals in tests.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Tests must not use the daemon of the person who runs them.
    for name in ("SANDKASTEN_URL", "SANDKASTEN_API_KEY"):
        os.environ.pop(name, None)
    # Both checks of Hypothesis measure time, which a busy machine does not have.
    hypothesis.settings.register_profile(
        "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("busy")
    if not LONG:
        # It would parse every loaded module, a thousand of them, for constants to try.
        providers._get_local_constants = Constants
    loopwatch.install()
    composition.install()
    forked_programs.install()
    platform_markers.configure(config)
    # World-readable on purpose: only isolation keeps a sandbox from it.
    root = Path(tempfile.mkdtemp(prefix="pytest-of-canary-", dir="/var/tmp"))
    root.chmod(0o755)
    config.stash[_canary] = root
    config.stash[_secret] = canary_tree.plant(root)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _canary in config.stash:
        shutil.rmtree(config.stash[_canary], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Before pytest-xdist starts its workers, which inherit the environment."""
    config = session.config
    os.environ.setdefault(snapshot.MARKER, secrets.token_hex(8))
    config.stash[_before] = _look(config)(config.stash[_canary])
    config.stash[_left] = []
    if config.getoption("numprocesses", None) and platform_markers.needs_engines(config):
        lent.start_all()
    if platform_markers.needs_cluster(config) and (why := lent_cluster.start()):
        pytest.exit(f"no cluster can be started: {why}", pytest.ExitCode.USAGE_ERROR)
    if _is_worker(config) and platform_markers.needs_engines(config) and forked_programs.SUPPORTED:
        forked_programs.start()


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _look(config: pytest.Config) -> Callable[[Path], snapshot.Snapshot]:
    whole = config.getoption("--hostwatch") and not _is_worker(config)
    return snapshot.take if whole else snapshot.of_canary


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without the garbage collector: all collected tests live to the end of the run, and
    every full pass would look at them again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    later = [item for item in items if not LONG and item.get_closest_marker("long")]
    if later:
        config.hook.pytest_deselected(items=later)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    if _is_worker(config):
        worker_groups.order(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    forked_programs.only_real(item.get_closest_marker("real_start") is not None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return worker_groups.scheduler(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker of pytest-xdist found wrong when it ended."""
    node.config.stash[_left] += getattr(node, "workeroutput", {}).get("left", [])


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    return platform_markers.told(config)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    lent.close()
    lent_cluster.close()
    lent_services.close()
    forked_programs.stop()
    if _before not in session.config.stash:
        return
    config = session.config
    config.stash[_left] += settled(config.stash[_before], config.stash[_canary], look=_look(config))
    left = config.stash[_left]
    if _is_worker(config):
        config.workeroutput["left"] = left  # type: ignore[attr-defined]
    if left and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    left = config.stash.get(_left, [])
    if not left and not config.getoption("--hostwatch"):
        return
    if not left:
        terminalreporter.write_line("hostwatch: the run left nothing on the host")
        return
    terminalreporter.section("hostwatch: the run changed the host", red=True)
    for line in left:
        terminalreporter.write_line(f"hostwatch: {line}")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def canary(pytestconfig: pytest.Config) -> Path:
    """Return a folder of the host that no sandbox may read or change."""
    return pytestconfig.stash[_canary]


@pytest.fixture(scope="session")
def canary_secret(pytestconfig: pytest.Config) -> str:
    """Return the content of the canary's files, which must never come out of a sandbox."""
    return pytestconfig.stash[_secret]


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """Return a folder on a disk: `tmp_path` may be in memory, where no space can be reserved."""
    with tempfile.TemporaryDirectory(prefix="pytest-of-disk-", dir="/var/tmp") as place:
        yield Path(place)


@pytest.fixture(scope="session")
def full_size() -> bool:
    """Return whether to run every size in full (`make test-long`)."""
    return LONG


@pytest.fixture(autouse=True)
def no_blocked_event_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test during which a callback blocked an event loop."""
    loopwatch.drain()
    yield
    slow = loopwatch.drain()
    if slow and request.node.get_closest_marker("slow_loop") is None:
        pytest.fail("a callback held the event loop:\n" + "\n".join(slow))
