"""`sandkasten replay`: a session again, also after its end, and without harm to the terminal."""

from __future__ import annotations

import json
import shlex

import pytest

from sandkasten.client.http import replay
from tests.client.http.served import served

pytestmark = [pytest.mark.slow, pytest.mark.promise("P87")]

HOSTILE = r"printf 'a\033]52;c;ZXZpbA==\007b\033[6nc\033[31mred\n'; exit 3"


def test_a_prefix_names_a_sandbox_in_every_command_that_shows_its_past(tmp_path, cli):
    with served(tmp_path / "data"):
        box = json.loads(cli("create", "--json").out)["id"]
        assert cli("exec", box, "--", "echo", "mine").status == 0
        for ended in (False, True):
            if ended:
                assert cli("rm", box).status == 0
            for start in (box, box[:12], box[4:12], box.replace("_", "-")):
                for shown in (
                    cli("replay", start, "--no-wait"),
                    cli("audit", "show", "--session", start),
                ):
                    assert (shown.status, "echo mine" in shown.out) == (0, True), shown.err
                cast = cli("replay", start, "--cast", "exe_0000000000000000")
                assert "no sandbox has the id" not in cast.err
        for command in (("replay", "sbx_fff"), ("audit", "show", "--session", "sbx_fff")):
            assert "no sandbox has the id 'sbx_fff'" in cli(*command).err


@pytest.mark.parametrize("recorded", ["true", "false"])
def test_a_session_is_shown_again_with_output_times_and_statuses(
    tmp_path, cli, recorded, monkeypatch
):
    with served(tmp_path / "data", SANDKASTEN_RECORDING_ENABLED=recorded):
        box = json.loads(cli("create", "--json").out)["id"]
        assert cli("exec", box, "--", "sh", "-c", HOSTILE).status == 3
        assert cli("exec", box, "--", "echo", "second").status == 0
        for ended in (False, True):
            if ended:
                assert cli("rm", box).status == 0
            shown = cli("replay", box, "--no-wait")
            assert shown.status == 0, shown.err
            lines = shown.out.splitlines()
            asked = [one.partition("] $ ")[2] for one in lines if "] $ " in one]
            assert asked == [shlex.join(["sh", "-c", HOSTILE]), "echo second"]
            kept = recorded == "true" or not ended
            assert ("abc\x1b[31mred" in shown.out, "second" in lines) == (kept, kept)
            assert "\x1b]" not in shown.out
            assert "\x1b[6n" not in shown.out
            assert [one for one in lines if one.startswith("[exit")][0].startswith("[exit 3, ")
            assert ("its output was not kept" in shown.err) is not kept
            told = json.loads(cli("replay", box, "--json").out)
            assert [one["exit_code"] for one in told] == [3, 0]
            assert (told[1]["output"] == "second\n") is kept
            cast = cli("replay", box, "--cast", told[1]["exec_id"])
            if recorded == "true":
                assert cast.status == 0, cast.err
                head, event = map(json.loads, cast.out.splitlines())
                assert (head["version"], head["title"]) == (2, "echo second")
                assert event[1:] == ["o", "second\n"]
                with monkeypatch.context() as patched:
                    patched.setattr(replay, "_MAX_RECORDING", len(cast.out) - 1)
                    large = cli("replay", box, "--cast", told[1]["exec_id"])
                assert (large.status, large.out) == (125, "")
                assert "hint: download it with another client: GET /v1/" in large.err
            else:
                assert (cast.status, cast.out) == (125, "")
                assert "hint: recording.enabled" in cast.err
        assert "\x1b]52" in cli("replay", box, "--no-wait", "--raw").out or recorded == "false"
        assert cli("replay", "sbx_0000000000000000").status == 125


def test_without_a_daemon_there_is_nothing_to_replay(cli):
    alone = cli("replay", "sbx_0000000000000000")
    assert (alone.status, alone.out) == (125, "")
    assert "hint: start one: sandkasten serve" in alone.err


CODE = "x = 1  # \x1b]52;c;ZXZpbA==\x07\x1b[6n\u202e\r\nprint('shown')\n1 / 0"
LINES = [
    r"  x = 1  # \x1b]52;c;ZXZpbA==\x07\x1b[6n\u202e",
    "  print('shown')",
    "  1 / 0",
]


def test_code_and_commands_of_several_lines_are_lines_and_nothing_acts_on_the_terminal(
    tmp_path, cli
):
    with served(tmp_path / "data", SANDKASTEN_RECORDING_ENABLED="true"):
        box = json.loads(cli("create", "--json").out)["id"]
        assert cli("code", box, "-c", CODE).status == 1
        assert cli("exec", box, "for i in 1\ndo echo $i\ndone").status == 0
        shown = cli("replay", box, "--no-wait").out
        lines = shown.splitlines()
        at = next(number for number, line in enumerate(lines) if line.endswith("] python>"))
        assert lines[at + 1 : at + 5] == [*LINES, "shown"]
        assert any(line.startswith("[error ZeroDivisionError, ") for line in lines)
        at = next(number for number, line in enumerate(lines) if line.endswith("] $ for i in 1"))
        assert lines[at + 1 : at + 4] == ["  do echo $i", "  done", "1"]
        assert [line.partition("] ")[2] for line in lines if "kernel" in line] == ["python kernel"]
        assert "import json" not in shown

        audit = cli("audit", "show", "--kind", "exec", "--session", box)
        for line in (*LINES, "  do echo $i", "  done"):
            assert "    " + line.strip() in audit.out.splitlines()
        for printed in (shown.replace("\x1b[0m", ""), audit.out):
            assert not {"\x1b", "\x07", "\r"} & set(printed)

        cell, command = [
            one
            for one in json.loads(cli("inspect", box).out)["commands"]
            if one["kind"] != "kernel"
        ]
        assert (cell["kind"], cell["command"], cell["error_name"]) == (
            "cell",
            CODE,
            "ZeroDivisionError",
        )
        assert command["command"] == "for i in 1\ndo echo $i\ndone"
        # The newest command, also if code ran later.
        assert cli("code", box, "-c", "1").status == 0
        assert cli("logs", box).out == "1\n"
        refused = cli("logs", box, cell["exec_id"])
        assert (refused.status, "is code in a context" in refused.err) == (125, True)
        table = cli("ps", box).out
        assert "kernel_bridge python" in table
        assert "import json" not in table


def test_another_tenant_sees_no_code(tmp_path, cli, monkeypatch):
    with served(tmp_path / "data"):
        box = json.loads(cli("create", "--json").out)["id"]
        assert cli("code", box, "-c", "mine = 1").status == 0
        monkeypatch.setenv("SANDKASTEN_TENANT", "other")
        for verb in ("inspect", "replay"):
            other = cli(verb, box)
            assert (other.status, "mine" in other.out + other.err) == (125, False)
