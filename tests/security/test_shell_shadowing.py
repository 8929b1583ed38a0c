"""Everything that a command can redefine in its shell, and what the next command sees.

Each case has its own named shell. Afterwards a command must be right (its own output and exit code)
or report that the shell was replaced; an invented exit code fails.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten_contract.shared_sandbox_cases import each
from tests.patience import PATIENCE_S
from tests.platform_choice import LONG
from tests.security.harness import WHOLE_SANDBOX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.security.harness import Answer, Box

NAMES = """
    printf eval builtin read unset export set trap . source exec command times : return break
    continue cd pwd [ test while echo true false declare local readonly shift wait exit type
    hash alias
    """.split()[:: 1 if LONG else 3]  # noqa: SIM905
BUILTINS = """
    . : [ alias bg bind break builtin caller cd command compgen complete compopt continue
    declare dirs disown echo enable eval exec exit export false fc fg getopts hash help history
    jobs kill let local logout mapfile popd printf pushd pwd read readarray readonly return set
    shift shopt source suspend test times trap true type typeset ulimit umask unalias unset wait
    """.split()[:: 1 if LONG else 3]  # noqa: SIM905

# What is redefined here are things of bash.
pytestmark = [pytest.mark.needs_program("bash"), pytest.mark.promise("P12")]

# Their subshells beget subshells until the process limit says no.
BOMBS = {"debug skips by two"}

_numbers = itertools.count()
# Some tricks can only be ended by the deadline; a dozen of these must not take a minute.
QUICK = {"timeout_s": 1.5, "grace_s": 0.2}
# Ended by a deadline is said and no lie; on a busy machine it may come to that.
PATIENT = {**QUICK, "timeout_s": PATIENCE_S}


def _cases(names: Iterable[str]) -> list[Any]:
    bomb = pytest.mark.not_on("gvisor", reason=WHOLE_SANDBOX)
    # Many are ended by their deadline alone; `make test` has every second one.
    asked = list(names)[:: 1 if LONG else 2]
    return [pytest.param(name, marks=[bomb] if name in BOMBS else []) for name in asked]


def _spoil(box: Box, *commands: str) -> None:
    """Run the commands in a new shell, then check its next results."""
    shell = f"case{next(_numbers)}"
    try:
        for command in commands:
            answer = box.exec(command, shell=shell, **QUICK)
            assert answer.code is not None or answer.reset or answer.reply.state != "exited"
        for within in (QUICK, QUICK, PATIENT):
            probe = "/bin/sh -c '/bin/echo ran; exit 7'"
            answer = box.exec(probe, shell=shell, **within)
            # What sh itself says of a limit is its own code too: gVisor counts `ulimit -u` later.
            right = (answer.code == 7 and b"ran\n" in answer.stdout) or (
                answer.code == 2 and answer.stderr == b"/bin/sh: 1: Cannot fork\n"
            )
            assert right or _flagged(answer), answer
            if right and not answer.reset:
                break
        else:
            raise AssertionError(f"still not right after three commands: {answer}")
        # A second value, so that a code that happens to stick is noticed.
        answer = box.exec("/bin/sh -c 'exit 9'", shell=shell, **QUICK)
        assert answer.code == 9 or _flagged(answer), answer
        answer = box.exec("cd /tmp", shell=shell, **QUICK)
        assert _flagged(answer) or answer.reply.cwd is not None
    finally:
        box.call("shell.close", name=shell)


def _flagged(answer: Answer) -> bool:
    return answer.reset or answer.code is None or answer.reply.timed_out


@each("name", NAMES)
@each(
    "body", ["/bin/echo SHADOW; return 0", "/bin/echo SHADOW; return 3", "/bin/cat"],
    ids=["zero", "three", "swallows"],
)  # fmt: skip
def test_a_function_named_like_a_builtin_changes_no_result(name, body, shared_box):
    _spoil(shared_box, f"function {name} {{ {body}; }}")


@each("name", NAMES)
def test_an_exported_function_named_like_a_builtin_changes_no_result(name, shared_box):
    _spoil(shared_box, f"function {name} {{ /bin/echo SHADOW; }}; export -f {name}", "exit 1")


@each("name", NAMES)
def test_an_alias_named_like_a_builtin_changes_no_result(name, shared_box):
    _spoil(shared_box, f"shopt -s expand_aliases\nalias {name}='/bin/echo SHADOW; false'", "true")


@each("name", BUILTINS)
def test_a_disabled_builtin_changes_no_result(name, shared_box):
    _spoil(shared_box, f"enable -n {name}")


def test_disabling_every_builtin_changes_no_result(shared_box):
    _spoil(
        shared_box,
        "for b in $(compgen -b | grep -v enable); do enable -n $b; done; enable -n enable",
    )


def test_shadowing_every_name_changes_no_result(shared_box):
    _spoil(shared_box, "\n".join(f"function {n} {{ /bin/echo SHADOW; return 0; }}" for n in NAMES))


TRAPS = {
    "debug prints": "trap '/bin/echo dbg' DEBUG",
    "debug exits": "trap 'exit 3' DEBUG",
    "debug returns": "trap 'return 3' DEBUG",
    "debug falsifies": "trap 'RC=0; false' DEBUG",
    "debug skips": "shopt -s extdebug; trap false DEBUG",
    "debug skips by two": "shopt -s extdebug; trap '(exit 2)' DEBUG",
    "debug everywhere": "set -T; trap '/bin/echo dbg' DEBUG",
    "exit prints": "trap '/bin/echo bye' EXIT",
    "exit falsifies": "trap 'exit 0' EXIT",
    "err exits": "trap 'exit 0' ERR",
    "err everywhere": "set -E; trap 'exit 0' ERR",
    "return returns": "set -T; trap 'return 0' RETURN",
    "return exits": "trap 'exit 0' RETURN",
    "chld exits": "trap 'exit 0' CHLD",
    "all ignored": "for s in $(seq 1 64); do trap '' $s; done 2>/dev/null",
    "all exit zero": "for s in $(seq 1 64); do trap 'exit 0' $s; done 2>/dev/null",
    "err then failing": "trap '/bin/echo err' ERR; false",
}


@pytest.mark.parametrize("name", _cases(TRAPS))
def test_a_trap_changes_no_result(name, shared_box):
    _spoil(shared_box, TRAPS[name])


OPTIONS = {
    "errexit": "set -e",
    "nounset": "set -u",
    "noexec": "set -n",
    "one command": "set -t",
    "verbose": "set -v",
    "xtrace": "set -x",
    "xtrace to the private descriptor": "BASH_XTRACEFD=9; set -x",
    "xtrace to a high descriptor": "BASH_XTRACEFD=10; set -x",
    "noglob": "set -f",
    "monitor": "set -m",
    "keyword": "set -k",
    "pipefail": "set -o pipefail",
    "posix": "set -o posix",
    "privileged": "set -p",
    "noclobber": "set -C",
    "allexport": "set -a",
    "restricted": "set -r",
    "history": "set -o history; set -o vi",
    "physical": "set -P",
    "failglob": "shopt -s failglob nullglob extglob globstar",
    "lastpipe": "shopt -s lastpipe",
    "sourcepath off": "shopt -u sourcepath",
    "many": "for o in allexport errexit nounset noclobber noglob pipefail; do set -o $o; done",
    "compat": "shopt -s compat31; BASH_COMPAT=3.1",
    "execfail": "shopt -s execfail; exec /nonexistent",
}


@pytest.mark.parametrize("name", _cases(OPTIONS))
def test_a_shell_option_changes_no_result(name, shared_box):
    _spoil(shared_box, OPTIONS[name])


VARIABLES = {
    "readonly PWD": "readonly PWD",
    "readonly PS1": "readonly PS1=x",
    "readonly IFS": "readonly IFS=/",
    "readonly OLDPWD": "readonly OLDPWD=/",
    "readonly POSIXLY_CORRECT": "readonly POSIXLY_CORRECT=1",
    "readonly PATH": "readonly PATH=/nonexistent",
    "readonly all": "for v in $(compgen -v); do readonly $v; done 2>/dev/null",
    "readonly all exported": "for v in $(compgen -e); do readonly $v; done 2>/dev/null",
    "strange IFS": "IFS='0123456789/'",
    "no PATH": "unset PATH",
    "PATH elsewhere": "PATH=/nonexistent",
    "no HOME": "unset HOME; cd",
    "CDPATH": "export CDPATH=/usr:/etc",
    "PWD is a lie": "PWD=/etc",
    "PWD is unset": "unset PWD",
    "PWD is a reference": "declare -n PWD=OTHER",
    "PWD is an array": "declare -a PWD; PWD[3]=x",
    "PWD is a number": "declare -i PWD",
    "BASH_ENV": "export BASH_ENV=/workspace/none ENV=/workspace/none",
    "SHELLOPTS": "export SHELLOPTS",
    "BASHOPTS": "export BASHOPTS",
    "POSIXLY_CORRECT set": "export POSIXLY_CORRECT=1",
    "PROMPT_COMMAND": "PROMPT_COMMAND='exit 0'; PS0='$(exit 0)'; PS4='$(/bin/echo x)'",
    "LC_ALL": "export LC_ALL=xx_XX.garbage LANG=C",
    "a million bytes exported": "export BIG=$(head -c 100000 /dev/zero | tr '\\0' x)",
    "newlines and quotes exported": "export ODD=$'a\\nRC=0\\n\\'\"$(id)`id`'",
    "a variable named like an answer": "export RC=0 STATUS=0 EXIT=0 _RC=0 __RC=0 rc=0",
    "every short variable": 'for a in {a..z} {A..Z} _; do eval "export $a=0"; done 2>/dev/null',
    "thousands of variables": "for i in $(seq 3000); do export V$i=$i; done",
    "random seeds": "RANDOM=1; SECONDS=5; unset BASHPID EPOCHSECONDS",
    "underscore": "readonly _",
    "FUNCNEST": "FUNCNEST=1",
    "TMOUT": "TMOUT=1; export TMOUT",
    "hash": "hash -p /bin/false sh; hash -p /bin/false echo",
    "GLOBIGNORE": "GLOBIGNORE='*'; export GLOBIGNORE",
    "EXECIGNORE": "EXECIGNORE='*'",
}


@pytest.mark.parametrize("name", _cases(VARIABLES))
def test_a_shell_variable_changes_no_result(name, shared_box):
    _spoil(shared_box, VARIABLES[name])


def test_changing_the_loops_own_variables_changes_no_result(shared_box):
    """Each name that the loop uses is set, made readonly and made an array, in its own shell."""
    shell = "looks"
    names = shared_box.exec("compgen -v", shell=shell).text.split()
    shared_box.call("shell.close", name=shell)
    ours = [
        n for n in names if not n.startswith(("BASH", "EPOCH")) and n not in ("PPID", "UID", "EUID")
    ]
    for name in ours:
        _spoil(shared_box, f"{name}=junk", f"readonly {name}=0")


DESCRIPTORS = {
    "9 closed": "exec 9>&-",
    "9 elsewhere": "exec 9>/dev/null",
    "9 is stdout": "exec 9>&1",
    "all closed": 'for i in $(seq 3 30); do eval "exec $i>&-"; done',
    "all elsewhere": 'for i in $(seq 3 30); do eval "exec $i>/dev/null"; done',
    "stdin closed": "exec 0<&-",
    "stdin is endless": "exec 0</dev/zero",
    "stderr closed": "exec 2>&-",
    "no descriptors left": "ulimit -n 3",
    "few descriptors left": "ulimit -n 10",
    "no processes left": "ulimit -u 1",
    "no file size": "ulimit -f 0",
    "no memory": "ulimit -v 20000",
    "no stack": "ulimit -s 64",
    "a second of cpu": "ulimit -t 1; while :; do :; done",
    "umask": "umask 777",
    "coprocess": "coproc cat",
    "suspended": "suspend -f",
    "logout": "logout",
    "deep recursion": "f() { f; }; f",
    "exec into a shell": "exec bash",
    "exec into another": "exec dash",
    "exec into a reader": "exec cat",
    "exec into nothing": "exec /nonexistent",
    "exec with a descriptor": "exec bash 9>&-",
    "double background": "( ( sleep 300 & ) & )",
    "wait forever": "sleep 300 & wait",
    "return at the top": "return 5",
    "break at the top": "break 100",
    "continue at the top": "continue 100",
    "break and forget": "while :; do break 50; done; continue 50",
    "shift": "shift 100; set -- a b c",
    "positional": "set -- $(seq 5000)",
    "unset everything": "unset -f $(compgen -A function); unset $(compgen -v) 2>/dev/null",
    "exit in a subshell": "(exit 3); (kill -9 $BASHPID)",
    "exit in a trap in a function": "f() { trap 'exit 4' RETURN; }; f",
    "source oneself": ". /proc/self/fd/0; . /dev/null",
    "reading the command pipe": "cat /run/sandkasten/state/* & sleep 0.2; kill %1",
    "removing the state": "rm -rf /run/sandkasten/state/*",
}


@pytest.mark.parametrize("name", _cases(DESCRIPTORS))
def test_a_descriptor_trick_changes_no_result(name, shared_box):
    _spoil(shared_box, DESCRIPTORS[name])


@pytest.mark.promise("P10")
def test_the_matrix_detects_an_invented_exit_code(shared_box):
    """The control: a shell whose every command reports a wrong code is detected."""
    with pytest.raises(AssertionError):
        _lying(shared_box)


def _lying(box: Box) -> None:
    answer = box.exec(["sh", "-c", "exit 0"])
    assert answer.code == 7 or answer.reset or answer.code is None
