"""The client on real sandboxes: processes, sizes and time."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING

import pytest

import sandkasten
from sandkasten import AsyncSandbox, Sandbox
from sandkasten.client.blocking import loop_thread
from sandkasten.client.server import server_pool

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="must be root to see what root sees"),
]


@pytest.fixture(autouse=True)
def local_only(monkeypatch: pytest.MonkeyPatch, unisolated_only: None) -> Iterator[None]:
    """Open the embedded engine of this test: one of an earlier test has another environment."""
    monkeypatch.delenv("SANDKASTEN_BACKEND")
    loop_thread.run(server_pool.aclose())
    yield
    loop_thread.run(server_pool.aclose())


@pytest.fixture
def real(tmp_path):
    with Sandbox(data_dir=tmp_path / "data") as made:
        yield made


def _program(source: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source), *words],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0), done
    return done.stdout


@pytest.mark.long(reason="`make test` has it in the contract")
def test_state_persists_over_a_thousand_commands(real):
    real.exec("N=0; cd /tmp")
    for _ in range(1000):
        real.exec("N=$((N+1))")
    assert real.exec("echo $N; pwd").output == "1000\n/tmp\n"


def test_a_sandbox_has_the_host_name_that_was_requested(real, tmp_path):
    assert real.exec("uname -n").output == "sandbox\n"
    with Sandbox(data_dir=tmp_path / "data", hostname="box-1") as named:
        assert named.exec("uname -n").output == "box-1\n"
    run = sandkasten.run("uname -n", "sh", data_dir=tmp_path / "data", hostname="once")
    assert run.stdout == "once\n"


def test_a_child_process_continues_with_the_sandbox_of_its_parent(real):
    real.exec("export WHO=parent")
    child = os.fork()
    if child == 0:
        status = 9
        try:
            status = 0 if real.exec("echo $WHO; export WHO=child").output == "parent\n" else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert real.exec("echo $WHO").output == "child\n"


def test_threads_can_share_one_sandbox(real):
    answers: list[str] = []

    def work(number: int) -> None:
        answers.append(real.exec(["echo", str(number)]).stdout.strip())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers, key=int) == [str(number) for number in range(16)]


def test_an_unclosed_sandbox_survives_its_process():
    name = _program(
        """
        from sandkasten import Sandbox
        box = Sandbox()
        box.exec("export LEFT=behind")
        print(box.id)
        """
    ).strip()
    with Sandbox.attach(name, destroy_on_exit=True) as box:
        assert box.exec("echo $LEFT").output == "behind\n"
    assert name not in [info.id for info in Sandbox.list()]


def test_memory_stays_flat_under_a_flood_of_output(full_size):
    amount = 1_000_000_000 if full_size else 200_000_000
    told = _program(
        """
        import resource, sys
        from sandkasten import Sandbox

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

        amount = int(sys.argv[1])
        with Sandbox() as box:
            box.exec("true")
            before = peak()
            result = box.exec(["head", "-c", str(amount), "/dev/zero"])
            with box.exec_stream(["head", "-c", str(amount), "/dev/zero"]) as stream:
                for piece in stream:
                    pass
            print(result.stdout_bytes, len(result.stdout_data) < 300_000, result.truncated)
            print(stream.result.stdout_bytes, peak() - before < 40_000_000, peak() - before)
        """,
        str(amount),
    ).split()
    assert told[:5] == [str(amount), "True", "True", str(amount), "True"], told


@pytest.mark.anyio
async def test_many_sandboxes_of_one_loop_work_concurrently(tmp_path):
    import asyncio

    async def one(number: int) -> str:
        async with AsyncSandbox(data_dir=tmp_path / "data") as box:
            await box.exec(f"export N={number}")
            return (await box.exec("echo $N")).output

    answers = await asyncio.gather(*(one(number) for number in range(6)))
    assert answers == [f"{number}\n" for number in range(6)]
    assert await AsyncSandbox.list(data_dir=tmp_path / "data") == []


def test_an_interrupted_program_destroys_its_sandbox(tmp_path):
    data = str(tmp_path / "data")
    told = _program(
        """
        import os, signal, sys, threading
        from sandkasten import Sandbox
        try:
            with Sandbox(data_dir=sys.argv[1]) as box:
                threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
                box.exec("sleep 60")
        except KeyboardInterrupt:
            print("interrupted")
        """,
        data,
    )
    assert told == "interrupted\n"
    assert Sandbox.list(data_dir=data) == []
