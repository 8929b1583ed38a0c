"""Run frequent commands (`version`, `ls`, `exec` and `run`) with as few imports as they need.

`answer` does exactly what the full command line would do. If that is not certain, it returns None
and has changed and printed nothing, and the full command line runs the command. With a daemon,
`ls`, `exec` (see `quick_list` and `quick_exec`) and `run` use a blocking socket. The modules of the
full client decode and show anything unusual in a response. Without a daemon, `run` calls the full
command in this process, without its parser. Failures are printed and become an exit status, as in
every command.
"""

from __future__ import annotations

import os
import sys

from sandkasten.cli.plain_options import parse

# Not from typing, which takes longer to import than this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from sandkasten.cli.plain_options import Parsed
    from sandkasten.cli.state import State
    from sandkasten.client.plain.daemon_socket import DaemonSocket
    from sandkasten.client.plain.plain_http import PlainAnswer

# A daemon sends something every 15 s, if only a comment.
SILENCE_S = 60.0
# The result of `run --json` in its order; a result that has more is decoded by the full client.
_RESULT = {
    "ok": bool,
    "runtime": str,
    "exit_code": int,
    "signal": None,
    "duration_ms": int,
    "stdout": str,
    "stderr": str,
    "truncated": bool,
    "timed_out": bool,
    "oom_killed": bool,
    "artifacts": list,
    "limits": dict,
    "image": str,
    "backend": str,
    "why": None,
    "warnings": list,
    "network": None,
    "acquire_source": str,
    "acquire_detail": str,
}
# Options of `run` that are fields of the request; the others need the full client.
_BODY = {
    "image": "image",
    "hostname": "hostname",
    "isolation": "isolation",
    "workspace": "workspace_id",
    "backend": "backend",
}


def answer(line: Sequence[str]) -> int | None:
    """Run the command and return its exit status; None if the full command line has to run it."""
    if "_SANDKASTEN_COMPLETE" in os.environ:
        from sandkasten.cli.quick_list import complete

        return complete(os.environ)
    parsed = parse(["version"] if list(line) == ["--version"] else line)
    if parsed is None:
        return None
    if parsed.command == "version":
        return None if parsed.words or parsed.options else _version()
    if parsed.command == "exec":
        from sandkasten.cli.quick_exec import execute

        return execute(parsed)
    if parsed.command == "ls":
        from sandkasten.cli.quick_list import show

        return show(parsed)
    return _run(parsed)


def _version() -> int:
    from sandkasten import __version__

    sys.stdout.write(f"sandkasten {__version__}\n")
    return 0


def _run(parsed: Parsed) -> int | None:
    body = _body(parsed)
    daemon = daemon_of(parsed.before)
    if daemon is not None and daemon.connection is not None:
        if body is not None:
            return _asked(parsed, daemon, body)
        daemon.connection.close()
    return _run_in_full(parsed, daemon)


def _run_in_full(parsed: Parsed, daemon: DaemonSocket | None) -> int | None:
    """Run the full command without its parser; None if the parser would refuse the line."""
    given: dict[str, Any] = {**parsed.options}
    timeout = given.get("timeout")
    env = [word.partition("=") for word in given.get("env", ())]
    if (
        any(word.startswith("-") and word != "-" for word in parsed.words)
        or not all(name and equals for name, equals, _ in env)
        or not is_whole(timeout)
    ):
        return None
    from sandkasten.cli.commands.run import Job, run
    from sandkasten.cli.main import report
    from sandkasten.cli.state import State
    from sandkasten.errors import SandkastenError

    before: dict[str, Any] = {**parsed.before}
    before["backend"] = given.get("backend") or before.get("backend")
    state = State(**before, json=given.get("json", False))
    if daemon is not None and daemon.connection is None:
        from sandkasten.client.server.daemon_or_embedded import ServerAddress

        state.place = ServerAddress(
            before.get("data_dir"), before["backend"], tenant=daemon.tenant, embedded=True
        )
    job = Job(
        code=given.get("code"),
        words=tuple(parsed.words),
        runtime=given.get("runtime"),
        timeout_s=None if timeout is None else float(timeout),
        files=tuple(given.get("file", ())),
        artifacts=tuple(given.get("artifact", ())),
        out=given.get("out", "."),
        stdin=given.get("stdin", False),
        options={
            "image": given.get("image"),
            "env": {name: value for name, _, value in env},
            "hostname": given.get("hostname"),
            "isolation": given.get("isolation"),
            "workspace": given.get("workspace"),
            "mounts": given.get("mount", []),
            "pip_packages": given.get("pip", []),
            "npm_packages": given.get("npm", []),
        },
    )
    try:
        return run(state, job)
    except SandkastenError as exc:
        return report(exc, state)


def is_whole(timeout: str | None) -> bool:
    """Return whether a timeout is a plain number of seconds, or not given."""
    return timeout is None or (timeout.isascii() and timeout.isdigit() and len(timeout) < 10)


def daemon_of(before: dict[str, Any]) -> DaemonSocket | None:
    from sandkasten.client.plain.daemon_socket import find

    return find(
        os.environ,
        data_dir=before.get("data_dir"),
        url=before.get("url"),
        api_key=before.get("api_key"),
        embedded=before.get("embedded", False),
    )


def _body(parsed: Parsed) -> bytes | None:
    """Return the request; None if something in it needs the full command."""
    options: dict[str, Any] = {**parsed.before, **parsed.options}
    code, args = options.pop("code", None), list(parsed.words)
    runtime = options.pop("runtime", None)
    if code is None:
        if not args or args[0] == "-":
            return None
        from sandkasten.model.language_runtimes import RUNTIME_OF_SUFFIX

        name = args.pop(0)
        runtime = runtime or RUNTIME_OF_SUFFIX.get(os.path.splitext(name)[1])
        try:
            with open(name, "rb") as file:
                code = file.read().decode()
        except (OSError, ValueError):
            return None
    if any(word.startswith("-") for word in args):
        return None
    if ":" in (options.get("image") or ""):
        # The image may have to be pulled, and the full command reports that.
        return None
    body: dict[str, Any] = {"runtime": runtime or "python"}
    if args:
        body["args"] = args
    for name in ("data_dir", "url", "api_key", "embedded", "json"):
        options.pop(name, None)
    for name, value in options.items():
        if name == "env":
            pairs = [word.partition("=") for word in value]
            if not all(name and equals for name, equals, _ in pairs):
                return None
            body["env"] = {name: text for name, _, text in pairs}
        elif name == "timeout":
            if not is_whole(value):
                return None
            body["timeout_seconds"] = float(value)
        elif name not in _BODY or not value:
            return None
        else:
            body[_BODY[name]] = value
    from json import dumps

    try:
        return dumps({**body, "code": code}, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return None


def _asked(parsed: Parsed, daemon: DaemonSocket, body: bytes) -> int | None:
    """Send the request and show what comes back, until the run has ended."""
    from sandkasten.client.plain.plain_http import Incomplete, PlainAnswer, send

    as_json = parsed.options.get("json", False)
    headers = headers_of(daemon, "*/*" if as_json else "text/event-stream")
    if headers is None:
        return None
    connection = daemon.connection
    assert connection is not None
    before = catch_signals()
    try:
        # Closing the connection ends the run.
        with connection:
            try:
                send(connection, "POST", "/v1/run", headers, body)
                found = PlainAnswer(connection)
            except Incomplete:
                raise _lost_early("ServerDisconnectedError") from None
            except OSError:
                raise _lost_early("ClientOSError") from None
            if found.status == 429:
                # Nothing was done. The full client knows when to ask again.
                return None
            if as_json:
                return _documented(found, daemon)
            connection.settimeout(SILENCE_S)
            return _shown(found, daemon)
    except KeyboardInterrupt:
        return 130
    except Exception as exc:
        from sandkasten.errors import SandkastenError

        if not isinstance(exc, SandkastenError):
            raise
        return _reported(exc, parsed, daemon)
    finally:
        restore_signals(before)


def headers_of(daemon: DaemonSocket, accept: str) -> dict[str, str] | None:
    """Return the headers of a request; None if one has to be checked."""
    headers = {
        "Host": "localhost",
        "User-Agent": "sandkasten-python",
        "Accept": accept,
        "Accept-Encoding": "identity",
    }
    if daemon.api_key is not None:
        headers["Authorization"] = f"Bearer {daemon.api_key}"
    if daemon.tenant is not None:
        headers["X-Sandkasten-Tenant"] = daemon.tenant
    plain = all(value.isascii() and value.isprintable() for value in headers.values())
    return headers if plain else None


def catch_signals() -> dict[int, Any]:
    """Have signals exit with 128 + N, and return what they did before."""
    import signal

    before: dict[int, Any] = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        # `nohup` has the program ignore SIGHUP.
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, _end)
    return before


def restore_signals(before: dict[int, Any]) -> None:
    import signal

    for number, handler in before.items():
        signal.signal(number, handler)


def _end(number: int, frame: object) -> None:
    """Exit with 128 + N; a second signal ends the process at once."""
    import signal

    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)


def _documented(found: PlainAnswer, daemon: DaemonSocket) -> int:
    """Print the result as one JSON document and return the exit status."""
    from json import loads

    from sandkasten.client.plain.plain_http import Incomplete

    try:
        raw = found.read()
    except (Incomplete, ValueError):
        raise _lost_early("ClientPayloadError") from None
    except OSError:
        raise _lost_early("ClientOSError") from None
    if found.status >= 300:
        from sandkasten.client.http.error_responses import error_of

        raise error_of(found.status, raw)
    try:
        value = loads(raw)
    except ValueError:
        from sandkasten.errors import ProtocolViolation

        raise ProtocolViolation(
            "POST /v1/run did not return JSON",
            hint=f"check that {daemon.url} is a Sandkasten daemon",
        ) from None
    if not _is_plain_result(value):
        return _decoded(value, as_json=True)
    from sandkasten.cli.output import put_json

    result = {name: value[name] for name in _RESULT}
    if value.get("error") is not None:
        result["error"] = value["error"]
    put_json(result)
    status: int = value["exit_code"]
    return status


def _is_plain_result(value: Any) -> bool:
    """Return whether the full client would print the fields of a result as they are."""
    if not isinstance(value, dict) or not {*_RESULT} <= {*value}:
        return False
    limits = value["limits"]
    return (
        all(
            value[name] is None if kind is None else type(value[name]) is kind
            for name, kind in _RESULT.items()
        )
        and not (value["timed_out"] or value["artifacts"] or value["warnings"])
        and not any(name in value for name in ("stdout_b64", "stderr_b64", "output_b64"))
        and all(type(one) in (int, float) for one in limits.values())
        and type(value.get("output")) is str
        and type(value.get("sandbox_id")) is str
        and (value.get("error") is None or type(value["error"]) is str)
    )


def _shown(found: PlainAnswer, daemon: DaemonSocket) -> int:
    from json import loads

    from sandkasten.client.plain.event_parser import Parser
    from sandkasten.client.plain.plain_http import Incomplete

    if found.status >= 300:
        from sandkasten.client.http.error_responses import error_of

        raise error_of(found.status, found.read())
    parser = Parser()
    pieces = found.pieces()
    while True:
        # Only this can fail with the connection; a failure to print is handled elsewhere.
        try:
            piece = next(pieces, None)
        except (Incomplete, ValueError):
            raise _lost(daemon, "ClientPayloadError") from None
        except TimeoutError:
            raise _lost(daemon, "TimeoutError") from None
        except OSError:
            raise _lost(daemon, "ClientOSError") from None
        if piece is None:
            from sandkasten.errors import BackendUnavailable

            raise BackendUnavailable(
                "the connection was lost while the code ran",
                hint="the daemon ended the run; start it again",
            )
        for event in parser.feed(piece):
            try:
                value = loads(event.data)
            except ValueError:
                value = None
            if event.name == "chunk":
                print_chunk(value)
            elif event.name == "done":
                return _ended(value)
            elif event.name == "error":
                from sandkasten.client.http.error_responses import body_error

                if isinstance(value, dict):
                    raise body_error(value)
            if not isinstance(value, dict):
                from sandkasten.errors import ProtocolViolation

                raise ProtocolViolation("an event of the daemon is not JSON")


def print_chunk(value: Any) -> None:
    """Print a chunk of output; the full client decodes one that is not plain text."""
    if not (
        isinstance(value, dict)
        and value.get("stream") in ("stdout", "stderr")
        and isinstance(value.get("text"), str)
        and "data_b64" not in value
        and "gap_bytes" not in value
    ):
        from sandkasten.cli.output import write_chunk
        from sandkasten.client.http.session_json import chunk_of

        chunk = chunk_of(value)
        write_chunk(chunk.source, chunk.data, chunk.gap_bytes)
        return
    out = sys.stderr.buffer if value["stream"] == "stderr" else sys.stdout.buffer
    out.write(value["text"].encode("utf-8", "surrogatepass"))
    out.flush()


def _ended(value: Any) -> int:
    """Return the exit status; the full command shows a result that has more to report."""
    plain = isinstance(value, dict) and type(value.get("exit_code")) is int
    if plain and not any(
        value.get(name) for name in ("timed_out", "why", "warnings", "network", "signal")
    ):
        status: int = value["exit_code"]
        return status
    return _decoded(value, as_json=False)


def _decoded(value: Any, *, as_json: bool) -> int:
    """Show a result as the full command does, and return the exit status."""
    from sandkasten.cli.commands.run import Job, show
    from sandkasten.cli.exit_status import status_of
    from sandkasten.client.http.session_json import run_result_of as decoded
    from sandkasten.client.results import run_result_of

    result = run_result_of(decoded(value))
    show(result, Job(code="", words=()), as_json=as_json)
    return status_of(result.exit_code, result.signal, timed_out=result.timed_out)


def _lost_early(how: str) -> Exception:
    from sandkasten.errors import BackendUnavailable

    return BackendUnavailable(
        f"the connection was lost before POST /v1/run was answered ({how})",
        hint="it may have been done; check before you retry",
    )


def _lost(daemon: DaemonSocket, how: str) -> Exception:
    from sandkasten.errors import BackendUnavailable

    return BackendUnavailable(
        f"the connection to {daemon.url} was lost while the code ran ({how})",
        hint="the daemon may have been restarted; retry",
    )


def _reported(exc: Any, parsed: Parsed, daemon: DaemonSocket) -> int:
    """Print an error as every command does, and return the exit status."""
    from sandkasten.cli.main import report

    return report(exc, state_of(parsed, daemon))


def state_of(parsed: Parsed, daemon: DaemonSocket) -> State:
    """Return the state of the full command line, with the daemon that was found."""
    from sandkasten.cli.state import State
    from sandkasten.client.server.daemon_or_embedded import ServerAddress

    given: dict[str, Any] = {**parsed.before, **parsed.options}
    state = State(url=given.get("url"), json=given.get("json", False))
    state.place = ServerAddress(url=daemon.url, api_key=daemon.api_key, tenant=daemon.tenant)
    return state
