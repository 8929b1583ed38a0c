"""The command line as a whole: help, errors, JSON, exit codes, start-up."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final, get_args

import pytest

from sandkasten import __version__
from sandkasten.client.sandbox import AsyncSandbox
from sandkasten.errors import BuildFailed, InvalidRequest, SessionNotFound
from sandkasten.model.access.tenancy import Scope
from sandkasten.model.language_runtimes import IMAGE_ALIASES
from sandkasten_runtime.assembly.settings.backend_names import BACKENDS
from sandkasten_runtime.images.image_names import ALIASES, HOST
from sandkasten_server.cli import completions
from sandkasten_server.cli.command_table import _table, build, command_in, command_names
from sandkasten_server.cli.exit_status import UsageError
from sandkasten_server.cli.options import network_of
from sandkasten_server.cli.output import age, counted, painted, paragraph, report, size, visible
from sandkasten_server.cli.quantities import limit, seconds
from sandkasten_server.cli.sandbox_names import Remote, pick, side
from tests.cli.conftest import COMMAND


def test_every_command_of_the_contract_exists():
    assert command_names() == [
        "agent cancel",
        "agent inspect",
        "agent list",
        "agent ls",
        "agent run",
        "agent runs",
        "agent show",
        "agent validate",
        "audit export",
        "audit ls",
        "audit show",
        "audit verify",
        "ca",
        "code",
        "config show",
        "cp",
        "create",
        "doctor",
        "down",
        "exec",
        "files download",
        "files get",
        "files info",
        "files ls",
        "files publish",
        "files put",
        "files rm",
        "files stage",
        "files upload",
        "fork",
        "forward",
        "image build",
        "image du",
        "image export",
        "image gc",
        "image import",
        "image inspect",
        "image ls",
        "image pull",
        "image rm",
        "image tag",
        "init",
        "inspect",
        "key create",
        "key ls",
        "key revoke",
        "key usage",
        "kill",
        "logs",
        "ls",
        "mcp",
        "net log",
        "net show",
        "net suggest",
        "pause",
        "ps",
        "replay",
        "resume",
        "rm",
        "run",
        "secret ls",
        "secret rm",
        "secret set",
        "serve",
        "shell",
        "snapshot create",
        "snapshot ls",
        "snapshot rm",
        "snapshot show",
        "stats",
        "top",
        "up",
        "update",
        "url",
        "version",
        "workflow cancel",
        "workflow graph",
        "workflow inspect",
        "workflow list",
        "workflow ls",
        "workflow resume",
        "workflow run",
        "workflow runs",
        "workflow show",
        "workflow validate",
        "workspace cp",
        "workspace create",
        "workspace du",
        "workspace ls",
        "workspace resize",
        "workspace rm",
    ]


@pytest.mark.parametrize("name", command_names())
def test_every_command_has_help_without_colour(cli, name):
    done = cli(*name.split(), "--help")
    assert done.status == 0
    assert done.out.startswith(f"Usage: sandkasten {name}")
    assert "\x1b" not in done.out


def test_output_to_a_full_disk_is_a_named_error():
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "version"], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert done.returncode == 125
    assert done.stderr.decode() == (
        "error: could not write the output: No space left on device\n"
        "hint: free space on that disk and try again\n"
    )


def test_version_prints_the_version(cli):
    assert cli("version").out == f"sandkasten {__version__}\n"
    assert json.loads(cli("version", "--json").out)["version"] == __version__
    assert cli("--version").out == f"sandkasten {__version__}\n"


@pytest.mark.parametrize(
    "words",
    [("nonsense",), ("ls", "--nonsense"), ("rm",), ("rm", "--all", "x"), ("exec", "x")]
    + [
        ("create", "--ttl", "soon"),
        ("create", "--limit", "mem_limit=512M"),
        ("create", "--env", "A"),
        ("create", "--network", "full", "--allow", "example.com"),
        ("create", "--deny", "example.com"),
        ("update", "sbx_0123456789abcdef", "--ttl", "soon"),
        ("key", "create", "--expires", "soon"),
        ("key", "create", "--max-network-bandwidth", "fast"),
        ("--url", "http://127.0.0.1:1", "--embedded", "ls"),
        ("cp", "a", "b"),
    ],
)
def test_an_invalid_command_line_exits_with_2(cli, words):
    done = cli(*words)
    assert (done.status, done.out) == (2, "")


def test_an_error_is_one_line_and_a_hint_on_stderr_with_status_125(cli):
    done = cli("ps", "sbx_0000000000000000")
    assert (done.status, done.out) == (125, "")
    lines = done.err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"]


def test_an_error_in_json_is_the_contracts_body_on_stdout(cli):
    done = cli("ps", "--json", "sbx_0000000000000000")
    assert (done.status, done.err) == (125, "")
    body = json.loads(done.out)
    assert list(body) == [
        "error_code",
        "error",
        "code",
        "message",
        "hint",
        "retryable",
        "details",
        "request_id",
    ]
    assert (body["code"], body["request_id"]) == ("SESSION_NOT_FOUND", None)


def test_a_missing_program_exits_with_127(cli):
    done = cli("run", "-r", "node", "-e", "PATH=/nowhere", "-c", "1")
    assert (done.status, done.out) == (127, "")


def test_an_empty_list_is_a_header_or_an_empty_json_list(cli):
    assert cli("ls").out.split()[0] == "ID"
    assert json.loads(cli("ls", "--json").out) == []


def test_create_prints_only_the_id(cli):
    done = cli("create", "--label", "a=b")
    assert done.status == 0
    assert done.out.startswith("sbx_")
    assert done.out.count("\n") == 1
    assert json.loads(cli("create", "--json").out)["status"] == "running"


def test_doctor_is_ready_with_the_unisolated_backend(cli):
    done = cli("doctor")
    assert done.status == 0
    assert "ready: sandboxes work on this machine" in done.out
    assert json.loads(cli("doctor", "--json").out)["ready"] is True


def test_config_show_names_the_origin_of_each_value(cli, tmp_path):
    done = cli("--data-dir", str(tmp_path / "x"), "config", "show", "--origin")
    rows = {line.split()[0]: line for line in done.out.splitlines()}
    assert str(tmp_path / "x") in rows["data_dir"]
    assert "flag" in rows["data_dir"]
    assert "SANDKASTEN_BACKEND" in rows["backend"] or "env" in rows["backend"]
    told = json.loads(cli("config", "show", "--origin", "--json").out)
    assert told["backend"]["value"] == "unisolated"
    assert json.loads(cli("config", "show", "--json").out)["backend"] == "unisolated"


def test_config_show_reads_the_file_that_it_is_given(cli, tmp_path):
    file = tmp_path / "box.yaml"
    file.write_text("default_image: python\n")
    told = json.loads(cli("config", "show", "--config", str(file), "--origin", "--json").out)
    assert told["default_image"] == {"value": "python", "origin": f"file {file}"}
    assert told["backend"]["value"] == "unisolated"
    absent = cli("config", "show", "--config", str(tmp_path / "absent.yaml"))
    assert absent.status == 125
    assert "absent.yaml" in absent.err
    assert "hint: check --config" in absent.err
    both = cli("config", "show", "--daemon", "--config", str(file))
    assert (both.status, both.out) == (2, "")
    assert both.err == (
        "error: --config and --daemon exclude each other\n"
        "hint: pass one of them; a daemon has read its own file\n"
    )


def test_a_malformed_setting_refuses_to_start(cli, monkeypatch):
    monkeypatch.setenv("SANDKASTEN_BACKEND", "nonsense")
    done = cli("ls")
    assert done.status == 125
    assert done.err.startswith("error: ")


@pytest.mark.parametrize(
    ("listen", "hint"),
    [
        ("19403", "write 127.0.0.1:19403; the port is 0 to 65535"),
        ("127.0.0.1:80000", "write 127.0.0.1:8080; the port is 0 to 65535"),
        ("::1:80", "write [::1]:8080"),
    ],
)
def test_an_invalid_address_is_refused_with_an_example(cli, listen, hint):
    done = cli("serve", "--listen", listen)
    assert (done.status, done.err.splitlines()[-1]) == (125, f"hint: {hint}")


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        (
            ("exec", "sbx_1", "--timeout", "1", "sleep 5"),
            "error: the option --timeout is after the id, where the command begins",
            "hint: options of exec come before the id: sandkasten exec OPTIONS sbx_1 CMD",
        ),
        (
            ("exec", "sbx_1", "--timeout=1", "sleep 5"),
            "error: the option --timeout=1 is after the id, where the command begins",
            "hint: options of exec come before the id: sandkasten exec OPTIONS sbx_1 CMD",
        ),
        (
            ("exec", "sbx_1", "-d", "sleep 5"),
            "error: the option -d is after the id, where the command begins",
            "hint: options of exec come before the id: sandkasten exec OPTIONS sbx_1 CMD",
        ),
        (
            ("serve", "--data-dir", "d"),
            "error: serve has no option '--data-dir'",
            "hint: it goes before the command: sandkasten --data-dir … serve",
        ),
        (
            ("secret", "set", "NAME", "--value", "x"),
            "error: secret set has no option '--value'",
            "hint: a value is read from stdin, or from a variable with --env NAME",
        ),
        (
            ("create", "--imagee", "x"),
            "error: create has no option '--imagee'",
            "hint: did you mean --image?",
        ),
        (
            ("create", "--mem", "512"),
            "error: create has no option '--mem'",
            "hint: did you mean --limit mem_limit_mb=N?",
        ),
        (
            ("create", "--cpus", "2"),
            "error: create has no option '--cpus'",
            "hint: did you mean --limit cpu_limit=N?",
        ),
        (
            ("create", "--ttl-seconds", "9"),
            "error: create has no option '--ttl-seconds'",
            "hint: did you mean --ttl?",
        ),
        (
            ("create", "--image"),
            "error: option '--image' requires an argument",
            "hint: see sandkasten create --help",
        ),
        (
            ("serve", "--port", "80"),
            "error: serve has no option '--port'",
            "hint: did you mean --listen HOST:PORT?",
        ),
        (
            ("logs", "-x"),
            "error: logs has no option '-x'",
            "hint: known: --follow, --json; see sandkasten logs --help",
        ),
        (
            ("image", "build", "--refrsh"),
            "error: image build has no option '--refrsh'",
            "hint: did you mean --refresh?",
        ),
        (
            ("--bakend", "oci", "ls"),
            "error: sandkasten has no option '--bakend'",
            "hint: did you mean --backend?",
        ),
        (
            ("--all", "ls"),
            "error: --all is not an option of all commands",
            "hint: it goes after the command: sandkasten ls --all",
        ),
        (
            ("creat",),
            "error: sandkasten has no command 'creat'",
            "hint: did you mean sandkasten create?",
        ),
        (
            ("image", "biuld"),
            "error: sandkasten image has no command 'biuld'",
            "hint: did you mean sandkasten image build?",
        ),
        (
            ("pull", "python"),
            "error: sandkasten has no command 'pull'",
            "hint: did you mean sandkasten image pull?",
        ),
        (
            ("exec",),
            "error: missing argument 'ID'",
            "hint: see sandkasten exec --help",
        ),
        (
            ("rm",),
            "error: name sandboxes, or say --all or --all-tenants",
            "hint: see sandkasten rm --help",
        ),
        (
            ("create", "--limit", "mem=512"),
            "error: 'mem' is not a valid limit",
            "hint: did you mean mem_limit_mb?",
        ),
    ],
)
def test_a_likely_mistake_is_explained(cli, line, message, hint):
    done = cli(*line)
    assert (done.out, done.err.splitlines()) == ("", [message, hint])
    assert done.status in (2, 125)


@pytest.mark.parametrize("name", command_names())
def test_a_mistyped_option_of_each_command_is_answered_with_the_nearest(cli, name):
    done = cli(*name.split(), "--hellp", *(("sbx_1", "true") if name == "exec" else ()))
    assert (done.status, done.out) == (2, "")
    more = " a file of that name is ./--hellp" if name == "run" else ""
    message = f"error: {name} has no option '--hellp'"
    assert done.err == f"{message}\nhint: did you mean --help?{more}\n"


def test_a_group_without_a_command_shows_its_help(cli):
    # The innocent twin of an unknown command.
    assert "Usage: sandkasten image" in cli("image").err


def test_an_invalid_command_line_with_json_is_an_error_in_json(cli):
    done = cli("ls", "--json", "--nonsense")
    assert (done.status, done.err) == (2, "")
    assert json.loads(done.out)["message"] == "ls has no option '--nonsense'"


def test_a_port_is_a_number(cli):
    done = cli("url", "sbx_1", "http")
    assert done.status == 2
    assert "a port is a number from 1 to 65535, got 'http'" in done.err
    for wrong in ("65536", "0", "000001234567"):
        assert f"got '{wrong}'" in cli("forward", "sbx_1", wrong).err


def test_a_program_whose_name_is_not_an_option_of_exec_is_run(cli):
    # The innocent twin: only options of exec are refused there.
    assert "no sandbox" in cli("exec", "sbx_1", "--no-such-program", "x").err
    assert "no sandbox" in cli("exec", "sbx_1", "--", "-d", "x").err


def test_a_time_beyond_the_lifetime_names_the_setting(cli):
    done = cli("create", "--ttl", "99d")
    assert done.err.splitlines()[-1] == (
        "hint: choose from 1 to 14400 seconds; the operator sets the maximum "
        "(session_max_lifetime_seconds)"
    )


def test_more_memory_than_the_machine_has_is_a_warning(cli):
    assert (
        " is more than this machine has (" in cli("create", "--limit", "mem_limit_mb=1048576").err
    )
    assert cli("create", "--limit", "mem_limit_mb=64").err == ""


def test_help_lists_every_command_in_one_section(cli):
    listed = [
        line.split()[0]
        for line in cli("--help").out.partition("Sandboxes:")[2].splitlines()
        if line.startswith("  ") and line[2:3].isalpha() and line.split()[0] in _table()
    ]
    assert sorted(listed) == sorted(_table())


def test_a_misspelled_image_is_corrected(cli):
    done = cli("run", "-i", "pyhton", "-c", "1")
    assert done.status == 125
    assert "hint: did you mean python?; " in done.err
    assert "did you mean" not in cli("run", "-i", "registry.example/x", "-c", "1").err


def test_a_missing_recipe_is_not_reported_as_a_wrong_mode(cli, tmp_path):
    done = cli("image", "build", "x", "-f", str(tmp_path / "nothing.yaml"))
    assert done.status == 125
    assert "No such file or directory" in done.err
    assert done.err.endswith("hint: check the path\n")


def test_doctor_asks_a_named_daemon(cli, monkeypatch):
    monkeypatch.setenv("SANDKASTEN_URL", "http://127.0.0.1:1")
    done = cli("doctor")
    assert done.status == 1
    assert "not ready: no daemon answers" in done.out
    done = cli("--backend", "local", "doctor")
    assert (done.status, done.out) == (125, "")
    assert "for this machine: sandkasten --embedded doctor" in done.err
    assert cli("--embedded", "doctor").status == 0


def test_help_explains_the_exit_statuses(cli):
    shown = " ".join(cli("--help").out.split())
    for status in (
        "124 if it timed out",
        "125 for an error of sandkasten itself",
        "130 for Ctrl-C",
    ):
        assert status in shown


def test_help_lists_every_scope_of_a_key(cli):
    shown = " ".join(cli("key", "create", "--help").out.split())
    *scopes, last = get_args(Scope)
    assert f"{', '.join(scopes)} or {last}; repeatable" in shown


def test_completion_knows_commands(monkeypatch, process):
    monkeypatch.setenv("_SANDKASTEN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "sandkasten d")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert sorted(process().stdout.split()) == [b"doctor", b"down"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sandkasten run --isolation g", ["gvisor"]),
        ("sandkasten create --backend ", sorted(completions._backends())),
        ("sandkasten config show --conf", ["--config"]),
        ("sandkasten create --profile d", ["dev"]),
        ("sandkasten run -i py", ["python"]),
        ("sandkasten run -r ", ["bash", "node", "python", "sh"]),
        ("sandkasten --backend lo", ["local"]),
        ("sandkasten create --network ", ["full", "none"]),
        ("sandkasten run --limit mem", ["mem_limit_mb=", "memory_mb="]),
        ("sandkasten create --network-limit bytes_i", ["bytes_in="]),
        ("sandkasten create --allow preset:py", ["preset:pypi"]),
        ("sandkasten image build data", ["datascience"]),
        ("sandkasten image bu", ["build"]),
        ("sandkasten code sbx_1 --language ja", ["java", "javascript"]),
        ("sandkasten kill --signal HU", ["HUP"]),
        ("sandkasten key create --scope adm", ["admin"]),
        ("sandkasten serve --log-level w", ["warning"]),
        ("sandkasten agent runs --status c", ["cancelled", "completed"]),
        ("sandkasten audit show --kind pol", ["policy"]),
    ],
)
def test_completion_knows_choices(monkeypatch, process, line, words):
    assert _completed(monkeypatch, process, line) == words


# Of these values, any string is possible; a file is completed by the shell itself.
_FREE: Final = {
    "any": {
        *("--action", "--api-key", "--artifact", "--basic", "--build-arg", "--code", "--context"),
        *("--cwd", "--env", "--expires", "--file", "--gpus", "--head", "--header", "--host"),
        *(
            "--hostname",
            "--interval",
            "--keep-last",
            "--key",
            "--label",
            "--lifetime",
            "--limit",
            "--listen",
        ),
        *("--max-disk", "--max-memory", "--max-network-bandwidth", "--max-network-bytes-per-day"),
        *("--max-network-connections", "--max-sessions", "--mirror", "--mount", "--name", "--npm"),
        *("--pip", "--platform", "--query", "--rate", "--retain", "--revoke", "--session"),
        *("--session-key", "--shell", "--since", "--since-seq", "--size", "--speed", "--tag"),
        *("--target", "--tenant", "--timeout", "--ttl", "--type", "--url", "--user", "--var"),
        *("--count", "--debian", "--include", "--variant", "--engine", "--engine-image"),
        *("CMD", "LOCAL", "NEW", "PORT", "TASK|-", "SIZE", "TARGET"),
    },
    "file": {
        *("--agents", "--api-key-file", "--config", "--data-dir", "--engine-certs", "--input"),
        *("--out", "--output", "--save", "--socket", "--tls-cert", "--tls-key", "--variables"),
        *("--workflows", "FILE", "FILE|-] [--] [ARGS"),
    },
}


def test_each_value_is_completed_or_can_be_any_string(monkeypatch):
    used, free, silent = set(), set(), []
    completed = completions.keys()

    def see(app, path):
        for command in app.registered_commands:
            for parameter in completions.parameters(command.callback):
                look(f"{path} {command.name}".strip(), parameter)
        for group in app.registered_groups:
            see(group.typer_instance, f"{path} {group.name}".strip())
        if app.registered_callback is not None:
            for parameter in completions.parameters(app.registered_callback.callback):
                look("", parameter)

    def look(command, parameter):
        name = parameter.name
        keys = (f"{command} {name}", f"{command.partition(' ')[0]} {name}", name)
        found = next((key for key in keys if key in completed), None)
        if found is not None:
            used.add(found)
        elif parameter.info.metavar is not None or not name.startswith("--"):
            known = {key for names in _FREE.values() for key in names if key in keys}
            free.update(known)
            silent.extend([f"{command} {name}"] if not known else [])

    see(build(), "")
    assert silent == []
    assert completions.keys() - used == set()
    assert {one for names in _FREE.values() for one in names} - free == set()


def test_completion_asks_where_the_line_says(monkeypatch, process, tmp_path):
    line = f"sandkasten --data-dir {tmp_path / 'other'} workspace rm "
    assert _completed(monkeypatch, process, line) == []
    words = ("--data-dir", str(tmp_path / "other"), "workspace", "create", "team-b")
    assert process(*words).returncode == 0
    assert _completed(monkeypatch, process, line) == ["team-b"]
    assert _completed(monkeypatch, process, "sandkasten workspace rm ") == []


@pytest.mark.anyio
async def test_completion_knows_sandboxes_and_their_commands(state):
    async with AsyncSandbox(backend="unisolated", url="embedded") as box:
        line: Any = SimpleNamespace(params={"id": box.id})
        assert await completions.TABLE["ID"](state, line) == [box.id]
        assert await completions.TABLE["cp SRC"](state, line) == [f"{box.id}:"]
        assert await completions.TABLE["EXEC"](state, line) == []
        done = await box.exec("true")
        assert await completions.TABLE["EXEC"](state, line) == [done.exec_id]


def test_completion_knows_workspaces(monkeypatch, cli, process):
    assert cli("workspace", "create", "team-a").status == 0
    assert _completed(monkeypatch, process, "sandkasten create --workspace t") == ["team-a"]
    assert _completed(monkeypatch, process, "sandkasten workspace rm ") == ["team-a"]


def test_completed_names_are_those_that_exist():
    completed = tuple(completions._backends())
    assert tuple(one for one in BACKENDS if one != "unisolated") == completed
    assert {HOST, *ALIASES} == {*IMAGE_ALIASES}


def _completed(monkeypatch, process, line: str) -> list[str]:
    with monkeypatch.context() as patch:
        patch.setenv("_SANDKASTEN_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", line)
        patch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        return process().stdout.decode().split()


def test_a_closed_output_pipe_ends_the_command_quietly():
    done = subprocess.run(
        f"{sys.executable} -m tests.unisolated run -r sh -c "
        "'for i in 1 2 3 4 5 6 7 8 9; do echo $i; done' | true",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr


def test_run_loads_no_unneeded_modules():
    code = (
        "import sys\n"
        "from tests.unisolated.composition import install\n"
        "from sandkasten_server.cli.main import main\n"
        "install()\n"
        "try: main(['run', '-r', 'sh', '-c', 'true'])\n"
        "except SystemExit as end: print(end.code)\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'rich', 'pydantic', 'yaml'}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "0\n[]\n"


@pytest.mark.parametrize("words", [["version"], ["--version"], ["--embedded", "image", "--help"]])
def test_a_command_describes_only_itself_to_the_parser(words):
    code = (
        "import sys\n"
        "from sandkasten_server.cli.main import main\n"
        f"try: main({words!r})\n"
        "except SystemExit: pass\n"
        "mine = {'asyncio', 'rich', 'aiohttp', 'sandkasten_runtime'} & set(sys.modules)\n"
        "other = {m for m in sys.modules if m.startswith('sandkasten_server.cli.commands.')}\n"
        "print('', *sorted(mine | other), sep='\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = done.stdout.split("\n\n")[-1].split("\n")
    images = ["sandkasten_server.cli.commands.images"]
    assert [one for one in loaded if one] == (images if "image" in words else [])


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["ls", "--json"], "ls"),
        (["--data-dir", "run", "--embedded", "image", "ls"], "image"),
        (["--url=http://x", "ps"], "ps"),
        (["--help"], None),
        (["--unknown", "ls"], None),
        (["--url"], None),
        ([], None),
    ],
)
def test_the_command_of_a_command_line_is_found(words, command):
    assert command_in(words) == command


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("grün 漢字", "grün 漢字"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\nb\tc\r", "a\\x0ab\\x09c\\x0d"),
        ("\u202eevil", "\\u202eevil"),
        ("\x9b2J", "\\x9b2J"),
        ("byte\udcff", "byte\\xff"),
        ("\u2028", "\\u2028"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_terminal_control_characters_are_escaped(text, shown):
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\ntwo\r\n\tthree\n\n", "one\n  two\n      three"),
        ("a\rb\nerror: \x1b[31mx", "a\\x0db\n  error: \\x1b[31mx"),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_lines_of_a_message_are_kept_and_indented(text, shown):
    assert paragraph(text) == shown


def test_an_error_of_several_lines_is_printed_as_such(capsys):
    report(BuildFailed("it failed:\nErr:5 x\nE: y", hint="see above"), as_json=False)
    assert capsys.readouterr().err == "error: it failed:\n  Err:5 x\n  E: y\nhint: see above\n"


def test_labels_have_colour_on_a_terminal_only(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert painted("error:", "error", Terminal()) == "\x1b[1;31merror:\x1b[0m"
    assert painted("hint:", "hint", Terminal()) == "hint:"
    assert painted("error:", "error", io.StringIO()) == "error:"
    monkeypatch.setenv("TERM", "dumb")
    assert painted("error:", "error", Terminal()) == "error:"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert painted("error:", "error", Terminal()) == "error:"


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("250ms", 0.25),
        ("2s", 2),
        ("30m", 1800),
        ("1h", 3600),
        ("2D", 172800),
    ],
)
def test_durations_have_units(text, amount):
    assert seconds(text) == amount


@pytest.mark.parametrize(
    ("name", "text", "amount"),
    [
        ("mem_limit_mb", "512", 512),
        ("mem_limit_mb", "512M", 512),
        ("mem_limit_mb", "2GiB", 2048),
        ("max_stdout_bytes", "2M", 2 << 20),
        ("max_stdout_bytes", "100", 100),
        ("exec_timeout_seconds", "5m", 300),
        ("max_exec_timeout_ms", "5s", 5000),
        ("cpu_limit", "0.5", 0.5),
    ],
)
def test_limits_have_units_that_fit_their_names(name, text, amount):
    assert limit(name, text) == amount


@pytest.mark.parametrize("text", ["", "h", "1w", "-5m", "nan", "1 2", "1hh"])
def test_an_invalid_duration_is_refused_with_examples(text):
    with pytest.raises(InvalidRequest) as caught:
        seconds(text)
    assert "30m" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "text"), [("cpu_limit", "1G"), ("mem_limit_mb", "1h"), ("pids_limit", "many")]
)
def test_a_limit_with_a_wrong_unit_is_refused(name, text):
    with pytest.raises(InvalidRequest):
        limit(name, text)


def test_create_takes_units(cli):
    made = cli("create", "--json", "--ttl", "1h", "--limit", "mem_limit_mb=1G")
    told = json.loads(made.out)
    assert told["limits"]["mem_limit_mb"] == 1024
    alive = datetime.fromisoformat(told["expires_at"]) - datetime.fromisoformat(told["created_at"])
    assert 3590 < alive.total_seconds() < 3610


def test_a_limit_with_a_unit_and_a_wrong_name_is_corrected(cli):
    done = cli("create", "--limit", "mem_limit=512M")
    assert done.err == "error: 'mem_limit' is not a valid limit\nhint: did you mean mem_limit_mb?\n"


def test_ids_are_matched_by_prefix():
    ids = ["sbx_aaaa000000000000", "sbx_aabb000000000000"]
    assert pick("sbx_aaaa", ids) == ids[0]
    assert pick("aab", ids) == ids[1]
    assert pick(ids[0], ids) == ids[0]
    with pytest.raises(InvalidRequest, match="2 sandboxes"):
        pick("aa", ids)
    for start in ("b", "", "--all", "../x", "sbx_aaaa*"):
        with pytest.raises(SessionNotFound):
            pick(start, ids)


def test_the_sides_of_a_copy_are_parsed():
    assert side("sbx_aa:x/y") == Remote("sbx_aa", "x/y")
    assert side("aa:") == Remote("aa", ".")
    assert side("./a:b") == "./a:b"
    assert side("/a:b") == "/a:b"
    assert side("plain") == "plain"
    with pytest.raises(InvalidRequest) as caught:
        side("report:1.txt")
    assert caught.value.hint == "for a local file write ./report:1.txt"


def test_numbers_are_formatted_for_people():
    assert [age(n) for n in (5, 65, 3700, 90_000)] == ["5s", "1m", "1h 1m", "1d 1h"]
    assert [size(n) for n in (None, 5, 2048, 3 << 20)] == ["-", "5 B", "2.0 KiB", "3.0 MiB"]
    assert [counted(n, "layer") for n in (0, 1, 2)] == ["0 layers", "1 layer", "2 layers"]
    assert [counted(n, "box", "boxes") for n in (1, 2)] == ["1 box", "2 boxes"]


def test_a_logged_warning_has_a_label(process, monkeypatch):
    monkeypatch.setenv("SANDKASTEN_LISTNE", "x")
    done = process("ls")
    assert done.returncode == 0
    assert done.stderr.decode().splitlines() == [
        "warning: the environment variable SANDKASTEN_LISTNE has no effect; did you mean "
        "SANDKASTEN_LISTEN?"
    ]


def test_the_flags_of_a_network_stand_for_one_value():
    def network(mode=None, allow=(), deny=()):
        return network_of(mode, allow, deny, (), dry_run=False)

    assert network() is None
    assert network("full") == "full"
    assert network(allow=["a.example"]) == {"allow": ["a.example"]}
    denied = {"deny": ["b.a.example"]}
    assert network(allow=["*.a.example"], **denied) == {"allow": ["*.a.example"], **denied}
    assert network("full", **denied) == {"allow": ["*"], **denied}
    for flags, said in (
        ({"mode": "full", "allow": ["a.example"]}, "--network full excludes --allow"),
        ({"mode": "none", **denied}, "--network none excludes the other flags of a network"),
        (denied, "--deny requires --allow or --network full"),
    ):
        with pytest.raises(UsageError) as refused:
            network(**flags)
        assert refused.value.message == said
    with pytest.raises(UsageError, match="--network-limit requires"):
        network_of(None, (), (), ["connections=4"], dry_run=False)


def test_a_shell_takes_the_options_of_a_new_sandbox(cli):
    shown = cli("shell", "--help").out
    for option in ("--pip", "--npm", "--workspace", "--shared", "--backend", "--deny"):
        assert f"{option} " in shown


def test_mcp_refuses_a_misspelled_image_at_its_start(process):
    done = process("mcp", "--image", "pyhton")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"did you mean python?" in done.stderr
