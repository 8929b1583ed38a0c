"""Deadlines and signals: the right processes end, with their output, and no others do."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from sandkasten.errors import InvalidRequest
from sandkasten_contract.box import Box, Ran, eventually
from sandkasten_contract.patience import FAR_TOO_LATE_S
from sandkasten_contract.shared_sandbox_cases import each

SOON: dict[str, Any] = {"deadline_ms": 150, "grace_ms": 150}
# A deadline that leaves time for a first word, and a grace in which to die of SIGTERM. Where that
# is not enough the machine is busy, and the next are tried.
SOON_ENOUGH = ((150, 5_000), (1_500, 15_000), (15_000, 20_000))


async def gone(box: Box, *words: str) -> None:
    """Wait until no process has this command line."""

    async def count() -> int:
        listed = (await box.ask("proc.list"))["processes"]
        return sum(1 for one in listed if one["cmdline"][: len(words)] == list(words))

    await eventually(count, 0)


async def overdue(
    box: Box, command: list[str] | str, said: bytes, *, first: str = "", **fields: Any
) -> Ran:
    """Run a command that prints something before its deadline; `first` goes to the shell first."""
    for deadline_ms, grace_ms in SOON_ENOUGH:
        if first:
            await box.run(first)
        asked = {"deadline_ms": deadline_ms, "grace_ms": grace_ms, **fields}
        ran = await box.run(command, **asked)
        if ran.stdout == said:
            break
    return ran


async def test_a_deadline_ends_an_argv_command_and_keeps_its_output(box: Box):
    ran = await overdue(box, ["sh", "-c", "echo before; sleep 1001"], b"before\n")
    assert ran.stdout == b"before\n"
    reply = ran.reply
    assert (reply.timed_out, reply.killed) == (True, False)
    assert (reply.state, reply.signal, reply.exit_code) == ("signaled", signal.SIGTERM, None)
    assert 100 <= reply.duration_ms < FAR_TOO_LATE_S * 1000
    await gone(box, "sleep", "1001")


@pytest.mark.promise("P13")
async def test_a_deadline_ends_the_whole_tree(box: Box):
    ran = await box.run(["sh", "-c", "sleep 1002 & sleep 1002 & sleep 1002; true"], **SOON)
    assert ran.reply.timed_out
    await gone(box, "sleep", "1002")


async def test_a_command_that_ignores_sigterm_dies_by_sigkill_after_the_grace(box: Box):
    script = "trap '' TERM; echo set; sleep 1003; sleep 1003"
    ran = await overdue(box, ["sh", "-c", script], b"set\n", grace_ms=150)
    assert ran.stdout == b"set\n"
    assert ran.reply.timed_out
    assert (ran.reply.state, ran.reply.signal) == ("signaled", signal.SIGKILL)
    await gone(box, "sleep", "1003")


async def test_a_command_that_ends_in_time_is_not_timed_out(box: Box):
    ran = await box.run(["echo", "quick"], deadline_ms=40_000)
    assert (ran.stdout, ran.exit_code, ran.reply.timed_out) == (b"quick\n", 0, False)


async def test_a_deadline_ends_a_shell_command_and_the_shell_answers_again(box: Box):
    ran = await overdue(box, "echo before; sleep 1004", b"before\n", first="kept=1")
    assert ran.stdout == b"before\n"
    assert ran.reply.timed_out
    assert ran.exit_code != 0
    after = await box.run("echo ${kept:-reset}")
    assert after.stdout == (b"reset\n" if ran.reply.shell_reset else b"1\n")
    await gone(box, "sleep", "1004")


async def test_a_deadline_spares_earlier_background_jobs_of_the_shell(box: Box):
    first = "sleep 1005 & true"
    ran = await overdue(box, "echo begun; sleep 1006", b"begun\n", first=first)
    assert ran.reply.timed_out

    async def spared() -> set[tuple[str, ...]]:
        listed = (await box.ask("proc.list"))["processes"]
        return {tuple(one["cmdline"]) for one in listed if "1005" in one["cmdline"]}

    wanted: set[tuple[str, ...]] = {("sleep", "1005")}
    await eventually(spared, wanted)


async def test_a_shell_in_an_endless_loop_is_replaced_at_its_deadline(box: Box):
    ran = await box.run("while true; do :; done", **SOON)
    assert (ran.reply.timed_out, ran.reply.shell_reset) == (True, True)
    assert (await box.run("echo back")).stdout == b"back\n"


async def test_the_deadline_counts_from_the_start_and_not_from_the_queue(box: Box):
    for deadline_ms in (300, 3_000, 15_000):
        first = await box.begin(f"sleep {deadline_ms / 1000 + 0.1}")
        second = await box.begin("echo second", deadline_ms=deadline_ms)
        reply = await box.wait(second)
        assert (await box.wait(first)).exit_code == 0
        if not reply.timed_out:
            break
        # So busy a machine that an echo took that long; or else it is always so.
    assert (reply.timed_out, reply.exit_code) == (False, 0)


async def test_the_next_command_in_the_queue_runs_after_a_deadline(box: Box):
    first = await box.begin("sleep 1007", **SOON)
    second = await box.begin("echo next")
    assert (await box.wait(first)).timed_out
    assert (await box.wait(second)).exit_code == 0
    assert (await box.output(second)).stdout == b"next\n"


@each("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
async def test_a_signal_ends_a_command_and_is_reported(box: Box, number: int):
    exec_id = await box.begin(["sleep", "1008"])
    assert await box.ask("exec.signal", exec_id=exec_id, signal=int(number)) == {}
    reply = await box.wait(exec_id)
    assert (reply.state, reply.signal, reply.exit_code) == ("signaled", number, None)
    assert (reply.killed, reply.timed_out) == (True, False)


async def test_a_signal_reaches_the_whole_tree(box: Box):
    exec_id = await box.begin(["sh", "-c", "sleep 1009 & echo up; sleep 1009; true"])
    await box.prints(exec_id, b"up")
    await box.ask("exec.signal", exec_id=exec_id, signal=9)
    assert (await box.wait(exec_id)).signal == 9
    await gone(box, "sleep", "1009")


async def test_a_harmless_signal_changes_nothing(box: Box):
    exec_id = await box.begin(["sleep", "1010"])
    await box.ask("exec.signal", exec_id=exec_id, signal=int(signal.SIGCONT))
    assert (await box.wait(exec_id, timeout_ms=50)).state == "running"


async def test_a_signal_to_a_shell_command_ends_what_it_started(box: Box):
    exec_id = await box.begin("echo up; sleep 1011")
    await box.prints(exec_id, b"up")
    await box.ask("exec.signal", exec_id=exec_id, signal=9)
    reply = await box.wait(exec_id)
    assert reply.ended
    assert reply.exit_code in (137, None)
    await gone(box, "sleep", "1011")
    assert (await box.run("echo back")).stdout == b"back\n"


async def test_a_signal_to_a_finished_command_succeeds(box: Box):
    exec_id = (await box.run(["true"])).reply.exec_id
    assert await box.ask("exec.signal", exec_id=exec_id, signal=15) == {}
    assert (await box.wait(exec_id)).exit_code == 0


@each("number", [0, -1, 65, 9999, "TERM", None])
async def test_an_invalid_signal_number_is_refused(box: Box, number: object):
    exec_id = await box.begin(["sleep", "1012"])
    with pytest.raises(InvalidRequest):
        await box.ask("exec.signal", exec_id=exec_id, signal=number)


async def test_a_command_killed_from_inside_is_signaled(box: Box):
    ran = await box.run(["sh", "-c", "kill -9 $$"])
    assert (ran.reply.state, ran.reply.signal, ran.reply.killed) == ("signaled", 9, False)
    assert ran.reply.oom_suspect


async def test_a_deadline_kills_processes_that_left_the_process_group(box: Box):
    daemon = "trap '' TERM HUP; sleep 1013"
    ran = await box.run(["sh", "-c", f'setsid sh -c "{daemon}" & sleep 1014'], **SOON)
    assert ran.reply.timed_out
    await gone(box, "sleep", "1013")


async def test_a_stopped_command_dies_at_its_deadline(box: Box):
    ran = await box.run(["sh", "-c", "kill -STOP $$; echo never"], **SOON)
    assert (ran.reply.timed_out, ran.stdout) == (True, b"")


async def test_killing_everything_from_inside_does_not_kill_the_runner(box: Box):
    await box.run("kill -9 -1")
    assert (await box.run(["echo", "alive"])).stdout == b"alive\n"
