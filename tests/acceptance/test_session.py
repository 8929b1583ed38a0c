"""The main use of a session: it remembers, computes, and exchanges files."""

from __future__ import annotations

import json
import random

import pytest

from sandkasten import AsyncSandbox
from tests.acceptance.conftest import sandkasten
from tests.shared_sandbox_cases import few

MIB = 1024 * 1024


def test_the_shell_remembers(data_dir, make):
    with make() as box:
        box.exec("cd /tmp && export A=1")
        assert box.exec("echo $A; pwd").output == "1\n/tmp\n"


async def test_the_asynchronous_sandbox_remembers_too(data_dir):
    async with AsyncSandbox(data_dir=data_dir) as box:
        await box.exec("cd /tmp && export A=1")
        assert (await box.exec("echo $A; pwd")).output == "1\n/tmp\n"


@pytest.mark.real_start
def test_a_one_shot_from_the_command_line_computes(data_dir):
    said = sandkasten("run", "-c", "print(6*7)")
    assert (said.status, said.out) == (0, "42\n")


@pytest.mark.promise("P11")
@pytest.mark.parametrize("count", few([20, 1000]))
def test_state_persists_over_many_commands(data_dir, make, count):
    with make() as box:
        box.exec(
            "n=0; mkdir -p /workspace/deep; cd /workspace/deep; export SEEN=; f() { echo f$n; }"
        )
        pid = box.exec("echo $$").output
        for turn in range(1, count + 1):
            result = box.exec(f"n=$((n + 1)); export SEEN=$n; /bin/sh -c 'exit {turn % 200}'")
            assert (result.exit_code, result.shell_reset) == (turn % 200, False)
        told = box.exec("echo $n $SEEN; pwd; f").output
        assert told == f"{count} {count}\n/workspace/deep\nf{count}\n"
        assert box.exec("echo $$").output == pid
        assert len(box.processes()) <= 4


@pytest.mark.slow_loop
@pytest.mark.parametrize("megabytes", few([5, 50]))
def test_megabytes_of_json_are_uploaded_summed_and_downloaded(data_dir, make, megabytes):
    rng = random.Random(7)
    count = megabytes * 10_000
    rows = [{"id": n, "value": rng.randrange(10**9), "text": "x" * 60} for n in range(count)]
    whole = json.dumps(rows).encode()
    assert len(whole) > megabytes * 1000 * 1000
    code = """
import json
rows = json.load(open("/workspace/in.json"))
answer = {"rows": len(rows), "sum": sum(r["value"] for r in rows)}
json.dump(answer, open("/workspace/out.json", "w"))
"""
    with make(limits={"mem_limit_mb": 2048}) as box:
        assert box.write("in.json", whole).size == len(whole)
        result = box.run(code)
        assert result.ok, result
        assert json.loads(box.read("out.json")) == {
            "rows": count,
            "sum": sum(int(str(row["value"])) for row in rows),
        }
        assert bytes(box.read("in.json")) == whole


@pytest.mark.parametrize(
    ("runtime", "code", "wanted"),
    [
        ("python", "import sys; print(sum(range(10)), sys.argv[1:])", "45 ['a b', 'c']\n"),
        ("node", "console.log([1,2].map(x => x * 2).join(), process.argv.slice(2))",
         "2,4 [ 'a b', 'c' ]\n"),
        ("bash", "declare -A m=([x]=1); echo ${m[x]} \"$@\" ${#@}", "1 a b c 2\n"),
    ],
)  # fmt: skip
def test_code_of_each_runtime_runs(runtime, code, wanted, data_dir, make):
    with make() as box:
        result = box.run(code, runtime=runtime, args=["a b", "c"])
        assert (result.stdout, result.exit_code, result.ok) == (wanted, 0, True)
    said = sandkasten("run", "--runtime", runtime, "-c", code, "--", "a b", "c")
    assert (said.out, said.status) == (wanted, 0)


@pytest.mark.real_start
@pytest.mark.long(reason="`make test` has it in tests/cli")
def test_the_command_line_exits_with_the_status_of_the_code(data_dir):
    assert sandkasten("run", "-c", "raise SystemExit(42)").status == 42
    assert sandkasten("run", "--runtime", "bash", "-c", "kill -9 $$").status == 137
    assert sandkasten("run", "--timeout", "1", "-c", "while True: pass").status == 124


def test_failing_code_is_a_result_and_not_an_error(data_dir, make):
    with make() as box:
        result = box.run("1/0")
        assert (result.ok, result.exit_code) == (False, 1)
        assert "ZeroDivisionError" in result.stderr
        assert box.exec("nonexistent-command").exit_code == 127


def test_interleaved_streams_arrive_in_order(data_dir, make):
    # Each line is written after the one before has arrived: two pipes have no order of their own.
    script = (
        "seen() { until test -e seen$1; do sleep 0.01; done; }; "
        "for i in 1 2 3; do echo out$i; seen out$i; echo err$i >&2; seen err$i; done"
    )
    with make() as box, box.exec_stream(script) as stream:
        for piece in stream:
            box.write(f"seen{piece.text.strip()}", b"")
        result = stream.result
        assert result.output == "out1\nerr1\nout2\nerr2\nout3\nerr3\n"
        assert result.stdout == "out1\nout2\nout3\n"
        assert result.stderr == "err1\nerr2\nerr3\n"
