"""From a request to a command: every refusal by its rule, with an accepted case beside it."""

from __future__ import annotations

import math

import pytest

from sandkasten.errors import InvalidRequest, PayloadTooLarge, PolicyDenied
from sandkasten.model.commands.accounts import Account, find_account
from sandkasten.model.commands.command import checked_command, fingerprint
from sandkasten.model.commands.exec_values import ExecRequest, Pty
from sandkasten.model.sandbox.limits import Limits


def checked(command: object, **more: object):
    return checked_command(ExecRequest(command, **more), Limits(), "bash")  # type: ignore[arg-type]


def test_a_string_goes_to_the_shell_and_a_list_to_a_new_process():
    text, argv = checked("ls -l"), checked(("ls", "-l"))
    assert (text.text, text.argv, text.cwd) == ("ls -l", None, None)
    assert (argv.text, argv.argv, argv.cwd) == (None, ("ls", "-l"), "/workspace")


def test_stateful_overrides_the_default_of_both():
    assert checked("ls -l", stateful=False).argv == ("bash", "-c", "ls -l")
    assert checked(("echo", "a b", "$HOME"), stateful=True).text == "echo 'a b' '$HOME'"


@pytest.mark.parametrize("command", ["a\0b", ("a", "b\0"), "\ud800", (), ("",), 7, None, ("a", 7)])
def test_an_invalid_command_is_refused(command):
    with pytest.raises(InvalidRequest):
        checked(command)


def test_an_empty_string_and_control_characters_are_valid_commands():
    assert checked("").text == ""
    assert checked("a\r\x03\x04\x16b").text == "a\r\x03\x04\x16b"


def test_a_command_of_one_mebibyte_is_the_largest():
    assert checked("x" * 2**20).text is not None
    with pytest.raises(PayloadTooLarge):
        checked("x" * (2**20 + 1))
    with pytest.raises(PayloadTooLarge):
        checked("ü" * (2**19 + 1))


def test_one_argument_is_bounded_by_the_kernel():
    assert checked(("echo", "x" * 131_071)).argv is not None
    for command in (("echo", "x" * 131_072), ("echo", *["x" * 100_000] * 19)):
        with pytest.raises(PayloadTooLarge):
            checked(command)
    with pytest.raises(PayloadTooLarge) as refused:
        checked("x" * 131_072, stateful=False)
    assert "file" in refused.value.hint


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, True, "5", 3600.1])
def test_a_timeout_out_of_range_is_refused(timeout):
    with pytest.raises(InvalidRequest):
        checked("true", timeout_seconds=timeout)


def test_a_timeout_over_the_maximum_names_the_rule():
    with pytest.raises(InvalidRequest) as refused:
        checked("true", timeout_seconds=4000)
    assert "max_exec_timeout_seconds (3600)" in refused.value.message


def test_timeouts_default_to_the_limits():
    assert checked("true").timeout_s == 120
    assert checked("true", timeout_seconds=3600).timeout_s == 3600


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A=B", "A B", "A\0", "é", "A\n"])
def test_an_invalid_environment_name_is_refused(name):
    with pytest.raises(InvalidRequest):
        checked("true", env={name: "x"})


def test_environment_values_can_contain_anything_except_nul():
    assert checked("true", env={"_a1": "x\ny=\udcff"}).env == {"_a1": "x\ny=\udcff"}
    with pytest.raises(InvalidRequest):
        checked("true", env={"A": "x\0y"})
    with pytest.raises(InvalidRequest):
        checked("true", env={"A": 7})
    with pytest.raises(PayloadTooLarge):
        checked("true", env={"A": "x" * 200_000})


@pytest.mark.parametrize("shell", ["", "a b", "../x", "x" * 65])
def test_an_invalid_shell_name_is_refused(shell):
    with pytest.raises(InvalidRequest):
        checked("true", shell=shell)


@pytest.mark.parametrize("pty", [Pty(0, 80), Pty(24, -1), Pty(True, 80), Pty(24, 10_001)])
def test_a_terminal_size_must_be_in_range(pty):
    with pytest.raises(InvalidRequest):
        checked("true", pty=pty)


@pytest.mark.parametrize("most", [-1, True, 1.5, 32 * 2**20 + 1])
def test_output_caps_are_whole_and_bounded(most):
    with pytest.raises(InvalidRequest):
        checked("true", max_output_bytes=most)


def test_an_output_cap_applies_to_both_streams():
    command = checked("true", max_output_bytes=10)
    assert (command.stdout_cap, command.stderr_cap) == (10, 10)


def test_output_over_8_mebibytes_has_the_operators_ceiling():
    def kept(most, **ceiling):
        request = ExecRequest("ls", max_output_bytes=most)
        return checked_command(request, Limits(), "bash", ceiling=ceiling).stdout_cap

    assert kept(32 * 2**20) == 32 * 2**20
    # The command line asks for this much, whatever the ceiling of a sandbox's own limits is.
    assert kept(8 * 2**20, max_stdout_bytes=1000, max_stderr_bytes=1000) == 8 * 2**20
    assert kept(9 * 2**20, max_stdout_bytes=9 * 2**20, max_stderr_bytes=9 * 2**20) == 9 * 2**20
    with pytest.raises(PolicyDenied) as error:
        kept(9 * 2**20, max_stderr_bytes=1000)
    assert error.value.details == {
        "rule": "policy.max.max_stderr_bytes",
        "field": "max_output_bytes",
    }


def test_a_command_for_another_user_is_a_new_process_of_its_own():
    assert checked("id", user="app").argv == ("bash", "-c", "id")
    made = checked_command(ExecRequest("id", user="app"), Limits(), "bash", background=True)
    assert (made.argv, made.cwd, made.state_of) == (("bash", "-c", "id"), "/workspace", None)
    one, other = ExecRequest("id", user="app"), ExecRequest("id", user="ann")
    assert fingerprint(one) != fingerprint(other)


def test_accounts_are_those_of_the_files():
    passwd = b"root:x:0:0:root:/root:/bin/sh\napp:x:12:13::/home/app:\nbad:x:99999999:1::/:\nx\n"
    group = b"app:x:13:\nteam:x:20:ann,app\n"

    def found(text):
        return find_account(passwd, group, text, lambda message, _: InvalidRequest(message))

    assert (found("app"), found("app").ids) == (
        Account(12, 13, (20,), "/home/app", "app"),
        "12:13,20",
    )
    assert found("12") == found("app")
    assert found("app:team") == Account(12, 20, (), "/home/app", "app")
    assert found("77") == Account(77, 0)
    assert found("77:78").ids == "77:78"
    for text in ("ann", "app:none", "65534", "bad", "70000:1", "1:70000", "\u0663"):
        with pytest.raises(InvalidRequest):
            found(text)
