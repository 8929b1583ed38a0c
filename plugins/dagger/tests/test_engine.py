"""The engine itself: as a process and as a container it runs commands, apart from the network."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.dagger import programs
from tests.dagger.client import ROUTES, Session, has_a_way_out
from tests.dagger.engine_process import PORT, EngineProcess
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.promise("P113"),
    pytest.mark.long(reason="the engine is compiled for a quarter of an hour"),
]


@contextmanager
def listener(address: str) -> Iterator[int]:
    """Accept connections at an address of this host; yield the port."""
    with socket.create_server((address, 0)) as server:
        yield server.getsockname()[1]


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def connecting(address: str, port: int) -> list[str]:
    return ["nc", "-w", "3", address, str(port), "-e", "true"]


def test_a_command_runs_and_its_exit_code_and_output_are_right(
    dagger_none: EngineProcess, busybox: Path, tmp_path: Path
) -> None:
    with Session(dagger_none.address, tmp_path) as session:
        ran = session.run(busybox, ["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (ran.exit_code, ran.stdout, ran.stderr) == (7, "out\n", "err\n")


def test_a_container_of_class_none_has_no_route_and_reaches_neither_host_nor_engine(
    dagger_none: EngineProcess, busybox: Path, tmp_path: Path
) -> None:
    host_address, machine = dagger_none.machine.our_address, dagger_none.machine.address
    with Session(dagger_none.address, tmp_path) as session, listener(host_address) as port:
        routes = session.run(busybox, ROUTES)
        to_host = session.run(busybox, connecting(host_address, port))
        to_engine = session.run(busybox, connecting(machine, PORT))
    assert not has_a_way_out(routes)
    assert (to_host.exit_code, to_engine.exit_code) == (1, 1)
    assert "unreachable" in to_host.stderr
    assert "unreachable" in to_engine.stderr


def test_a_container_of_class_egress_reaches_the_network_of_its_machine(
    dagger_egress: EngineProcess, busybox: Path, tmp_path: Path
) -> None:
    host_address = dagger_egress.machine.our_address
    with Session(dagger_egress.address, tmp_path) as session, listener(host_address) as port:
        assert has_a_way_out(session.run(busybox, ROUTES))
        assert session.run(busybox, connecting(host_address, port)).exit_code == 0


def test_an_engine_is_reached_by_tcp_too(
    dagger_none: EngineProcess, busybox: Path, tmp_path: Path
) -> None:
    with Session(dagger_none.tcp_address, tmp_path) as session:
        assert session.run(busybox, ["echo", "hello"]).stdout == "hello\n"


def test_all_capabilities_are_refused_by_the_engines_settings(
    dagger_none: EngineProcess, busybox: Path, tmp_path: Path
) -> None:
    query = (
        """{ container { withExec(args: ["id"], insecureRootCapabilities: true) { stdout } } }"""
    )
    with (
        Session(dagger_none.address, tmp_path) as session,
        pytest.raises(RuntimeError, match="security.insecure|insecure"),
    ):
        session.ask(query)


def test_a_killed_engine_ends_what_runs_in_it_and_starts_again(
    busybox: Path, tmp_path: Path
) -> None:
    programs.require()
    with EngineProcess("none") as dagger, ThreadPoolExecutor(1) as pool:
        with Session(dagger.address, tmp_path) as session:
            running = pool.submit(session.run, busybox, ["sleep", "1000"])
            until(lambda: running.done() or dagger.processes())
            assert not running.done()
            dagger.kill9()
            assert running.exception() is not None
            session.kill()
        until(lambda: not dagger.processes())
        dagger.start()
        with Session(dagger.address, tmp_path) as session:
            assert session.run(busybox, ["echo", "2"]).stdout == "2\n"


def test_the_version_is_the_one_that_was_asked_for(
    dagger_none: EngineProcess, tmp_path: Path
) -> None:
    with Session(dagger_none.address, tmp_path) as session:
        assert session.ask("{ version }")["version"] == programs.VERSION
