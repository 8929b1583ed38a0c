"""The persistent shell: it remembers, keeps the order of commands, and cannot be blocked."""

from __future__ import annotations

import pytest

from sandkasten.errors import (
    FileNotFound,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
)
from sandkasten_contract.box import Box, eventually
from sandkasten_contract.shared_sandbox_cases import each
from sandkasten_runtime.wire.messages import decode_shells, to_bytes_json


async def test_a_shell_starts_in_the_workspace(box: Box):
    ran = await box.run("pwd")
    assert ran.stdout.decode() == box.workspace + "\n"
    assert (ran.reply.kind, ran.reply.shell, ran.reply.cwd) == ("shell", "default", box.workspace)


async def test_directory_variables_and_exports_persist(box: Box):
    await box.run("mkdir sub && cd sub && export A=1 && b=2")
    ran = await box.run("echo $A $b; pwd; sh -c 'echo ${A:-no} ${b:-no}'")
    assert ran.stdout.decode() == f"1 2\n{box.path('sub')}\n1 no\n"
    assert ran.reply.cwd == box.path("sub")


async def test_the_status_of_the_last_command_persists(box: Box):
    assert (await box.run("false")).exit_code == 1
    assert (await box.run("(exit 9)")).exit_code == 9


async def test_unset_removes_a_variable(box: Box):
    await box.run("export A=1")
    await box.run("unset A")
    assert (await box.run("echo ${A:-gone}")).stdout == b"gone\n"


async def test_stdout_and_stderr_are_separate_and_in_order(box: Box):
    ran = await box.run("echo one; echo two >&2; echo three; echo four >&2")
    assert ran.stdout == b"one\nthree\n"
    assert ran.stderr == b"two\nfour\n"
    assert [chunk.seq for chunk in ran.chunks] == sorted(chunk.seq for chunk in ran.chunks)


async def test_a_missing_program_is_the_shells_own_127(box: Box):
    ran = await box.run("no-such-program-here")
    assert (ran.exit_code, ran.reply.shell_reset) == (127, False)
    assert b"not found" in ran.stderr


@each("text", ["echo 'open", 'echo "open', "echo $(", "( echo a", "if true"])
async def test_incomplete_syntax_is_an_error_at_once_and_the_shell_continues(box: Box, text: str):
    await box.run("kept=yes")
    ran = await box.run(text)
    assert ran.exit_code == 2
    assert ran.stderr != b""
    after = await box.run("echo ${kept:-reset}")
    # A shell that gives up on a syntax error is replaced, and then the answer says so.
    assert after.stdout == (b"reset\n" if ran.reply.shell_reset else b"yes\n")


async def test_quotes_variables_and_operators_work(box: Box):
    ran = await box.run(
        """x='a  b'; echo "$x" $x '$x' "it's"; false || echo or; true && echo and"""
    )
    assert ran.stdout == b"a  b a b $x it's\nor\nand\n"


async def test_redirections_write_and_read_files(box: Box):
    ran = await box.run("echo one > f; echo two >> f; cat < f; cat nope 2> e; wc -c < f")
    assert ran.stdout == b"one\ntwo\n8\n"
    assert await box.read("f") == b"one\ntwo\n"
    assert b"No such file" in await box.read("e")


async def test_pipes_end_when_their_reader_does(box: Box):
    ran = await box.run("yes | head -n 3; seq 100000 | wc -l")
    assert ran.stdout == b"y\ny\ny\n100000\n"


async def test_exit_is_a_result_and_the_next_command_gets_a_new_shell(box: Box):
    await box.run("mkdir d; cd d; export KEPT=1; lost=1")
    ran = await box.run("exit 7")
    assert (ran.exit_code, ran.reply.shell_reset) == (7, True)
    after = await box.run('echo "${KEPT:-} ${lost:-}"; pwd')
    assert after.stdout.decode() == f"1 \n{box.path('d')}\n"
    assert not after.reply.shell_reset


async def test_a_shell_that_kills_itself_is_replaced(box: Box):
    ran = await box.run("kill -9 $$")
    assert ran.reply.shell_reset
    assert ran.exit_code in (None, 137)
    assert (await box.run("echo back")).stdout == b"back\n"


async def test_exec_replaces_the_shell_and_a_new_one_follows(box: Box):
    ran = await box.run("exec false")
    assert (ran.exit_code, ran.reply.shell_reset) == (1, True)
    assert (await box.run("echo back")).stdout == b"back\n"


async def test_stdin_of_a_shell_command_is_empty(box: Box):
    ran = await box.run("cat; read x; echo got:$x")
    assert ran.stdout == b"got:\n"


async def test_stdin_of_a_shell_command_can_be_streamed(box: Box):
    ran = await box.run("read a; echo first:$a; cat", stdin=b"line\nrest")
    assert ran.stdout == b"first:line\nrest"
    assert (await box.run("cat; echo done")).stdout == b"done\n"


async def test_cwd_and_env_of_a_shell_command_persist(box: Box):
    await box.mkdir("there")
    ran = await box.run("pwd; echo $NEW", cwd=box.path("there"), env={"NEW": "it's"})
    assert ran.stdout.decode() == f"{box.path('there')}\nit's\n"
    after = await box.run("pwd; sh -c 'echo $NEW'")
    assert after.stdout.decode() == f"{box.path('there')}\nit's\n"


async def test_a_missing_cwd_is_an_error_and_the_shell_stays_where_it_was(box: Box):
    with pytest.raises(FileNotFound):
        await box.run("touch ran", cwd=box.path("nowhere"))
    assert (await box.run("pwd; test -e ran || echo clean")).stdout.decode() == (
        f"{box.workspace}\nclean\n"
    )


async def test_commands_of_one_shell_run_strictly_in_order(box: Box):
    ids = [await box.begin(f"sleep 0.0{9 - number}; echo {number} >> log") for number in range(9)]
    replies = [await box.wait(exec_id) for exec_id in ids]
    assert [reply.exit_code for reply in replies] == [0] * 9
    assert await box.read("log") == b"".join(b"%d\n" % number for number in range(9))


async def test_a_command_waits_in_the_queue_until_its_turn(box: Box):
    first = await box.begin("read x; echo $x", stdin="stream")
    second = await box.begin("echo second")
    assert (await box.wait(second, timeout_ms=50)).state == "queued"
    await box.ask("exec.stdin", exec_id=first, data=b"go\n", close=True)
    assert (await box.wait(second)).exit_code == 0
    assert (await box.output(first)).stdout == b"go\n"


async def test_named_shells_run_in_parallel_and_share_nothing(box: Box):
    async def through(name: str, command: str) -> bytes:
        return (await box.run(command, shell=name)).stdout

    blocked = await box.begin("read x", stdin="stream", shell="one")
    assert await through("two", "v=2; echo two") == b"two\n"
    await box.ask("exec.stdin", exec_id=blocked, data=b"\n", close=True)
    await box.wait(blocked)
    assert await through("one", "echo ${v:-none}") == b"none\n"
    assert await through("two", "echo ${v:-none}") == b"2\n"


async def test_the_list_of_shells_includes_their_state(box: Box):
    assert decode_shells(await box.ask("shell.list")) == ()
    exec_id = await box.begin("echo up; read x", stdin="stream")
    await box.prints(exec_id, b"up")
    await box.begin("true")
    (shell,) = decode_shells(await box.ask("shell.list"))
    assert (shell.name, shell.busy, shell.queued, shell.cwd) == (
        "default",
        True,
        1,
        box.workspace,
    )
    assert shell.pid
    assert shell.program


async def test_closing_a_shell_ends_it_and_its_jobs(box: Box):
    await box.run("v=1; sleep 1000 &")
    await box.ask("shell.close", name="default")
    await eventually(lambda: shells(box), 0)
    await eventually(lambda: sleeping(box), 0)
    assert (await box.run("echo ${v:-fresh}")).stdout == b"fresh\n"


async def shells(box: Box) -> int:
    return len(decode_shells(await box.ask("shell.list")))


async def sleeping(box: Box) -> int:
    listed = (await box.ask("proc.list"))["processes"]
    return sum(1 for process in listed if process["cmdline"][:2] == ["sleep", "1000"])


@each("way", ["deadline", "kill", "close"])
async def test_a_shell_whose_command_ignores_signals_can_be_ended(box: Box, way: str):
    ends = {"deadline_ms": 150, "grace_ms": 150} if way == "deadline" else {}
    # It is the shell itself that ignores them.
    exec_id = await box.begin("trap '' TERM INT HUP; echo set; sleep 1000; sleep 1000", **ends)
    if way != "deadline":
        await box.prints(exec_id, b"set")
        await box.ask("exec.signal", exec_id=exec_id, signal=2)
    if way == "kill":
        await box.ask("exec.signal", exec_id=exec_id, signal=9)
    if way == "close":
        await box.ask("shell.close", name="default")
    assert (await box.wait(exec_id)).ended
    await eventually(lambda: sleeping(box), 0)
    assert (await box.run("echo there")).stdout == b"there\n"


async def test_closing_an_unknown_shell_is_not_found(box: Box):
    with pytest.raises(NotFound):
        await box.ask("shell.close", name="never")


async def test_a_background_job_does_not_block_the_command(box: Box):
    ran = await box.run("sleep 1000 & echo started")
    assert ran.stdout == b"started\n"
    # The job is there, but need not have become `sleep` yet.
    await eventually(lambda: sleeping(box), 1)
    assert (await box.run("kill $!; wait; echo gone")).stdout == b"gone\n"
    assert await sleeping(box) == 0


async def test_a_command_of_one_mebibyte_runs_and_a_longer_one_is_refused(box: Box):
    filler = ":" + " " * (1024 * 1024 - 9) + ";echo ok"
    assert len(filler) == 1024 * 1024
    assert (await box.run(filler)).stdout == b"ok\n"
    with pytest.raises(PayloadTooLarge):
        await box.run(filler + " ")


async def test_a_nul_in_a_command_is_invalid(box: Box):
    asked = {**box.fields("x"), "command": "echo a\0b"}
    with pytest.raises(InvalidRequest):
        await box.ask("exec.start", **asked)


@each("name", ["", "a b", "x" * 65, "../x", 5])
async def test_a_malformed_shell_name_is_invalid(box: Box, name: object):
    with pytest.raises(InvalidRequest):
        await box.ask("exec.start", **{**box.fields("true"), "shell": name})


async def test_a_directory_with_any_name_is_reported_exactly(box: Box):
    for name in [
        "new\nline",
        "quo'te",
        'dou"ble',
        " lead",
        b"\xff\xfe".decode("utf-8", "surrogateescape"),
    ]:
        await box.mkdir(name)
        ran = await box.run("pwd", cwd=to_bytes_json(box.path(name)))
        assert ran.reply.cwd == box.path(name)


@pytest.mark.aspect("large")
@pytest.mark.timeout(600)
async def test_a_thousand_commands_keep_their_state(box: Box):
    await box.run("export COUNT=start; cd /")
    for number in range(1000):
        ran = await box.run(f"echo $COUNT; export COUNT={number}; pwd")
        before = b"start" if number == 0 else b"%d" % (number - 1)
        assert ran.stdout == before + b"\n/\n"


@pytest.mark.parametrize(
    "name", ["eval", "printf", "echo", "read", "unset", "exec", "trap", "builtin"]
)
async def test_a_function_that_shadows_a_builtin_changes_no_result(box: Box, name: str):
    await box.run(f"{name}() {{ return 0; }}")
    ran = await box.run("false")
    assert ran.exit_code == 1
    assert (await box.run("(exit 42)")).exit_code == 42


@pytest.mark.parametrize("text", ["set -e; false", "set -u; : $nope"])
async def test_a_shell_that_ends_through_its_own_options_is_replaced(box: Box, text: str):
    ran = await box.run(text)
    assert ran.reply.shell_reset
    assert ran.exit_code not in (0,)
    assert (await box.run("echo back")).stdout == b"back\n"
