"""Run `exec` through a daemon's socket with few imports: a command that gets no input.

`execute` returns None if the full command line has to run it; then nothing has been started. A
command is started under a key. If its start is not confirmed, the full command asks again under the
same key, and if its output breaks off, the full client follows it from there. So nothing runs twice
and nothing is printed twice.
"""

from __future__ import annotations

import os
import sys

from sandkasten.cli.quick_commands import (
    SILENCE_S,
    catch_signals,
    daemon_of,
    headers_of,
    is_whole,
    print_chunk,
    restore_signals,
    state_of,
)

# Not from typing, which takes longer to import than this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from sandkasten.cli.plain_options import Parsed
    from sandkasten.client.plain.daemon_socket import DaemonSocket
    from sandkasten.client.plain.plain_http import PlainAnswer

# As in `commands.exec`, which imports an event loop.
KEPT_BYTES = 8 * 1024 * 1024
TERM_GRACE_S = 2.0
_ANSWER_S = 60.0
_MAX_WORDS = 64 * 1024
_UNUSUAL = ("timed_out", "why", "network", "signal", "shell_reset")


class _Later(Exception):
    """The full client has to go on, by calling `how`."""

    def __init__(self, how: Callable[[], int]) -> None:
        super().__init__()
        self.how = how


def execute(parsed: Parsed) -> int | None:
    """Run the command and return its exit status; None if the full command has to run it."""
    from sandkasten.cli.stdin import is_prepared

    words = list(parsed.words)
    command = words[2:] if words[1:2] == ["--"] else words[1:]
    if words[1:2] != ["--"] and command[:1] and command[0].startswith("-"):
        # It may be an option of exec in the wrong place.
        return None
    if not command or not _is_id(words[0]) or "backend" in parsed.before or is_prepared():
        return None
    if len(command) == 1 and sys.stderr.isatty():
        # A person is told that the shell is busy.
        return None
    options = _options(parsed, command)
    if options is None:
        return None
    daemon = daemon_of(parsed.before)
    if daemon is None or daemon.connection is None:
        return None
    before = catch_signals()
    try:
        return _Execution(parsed, daemon, words[0], command, options).run()
    except KeyboardInterrupt:
        return 130
    except _Later as later:
        how = later.how
    except Exception as exc:
        from sandkasten.errors import SandkastenError

        if not isinstance(exc, SandkastenError):
            raise
        from sandkasten.cli.main import report

        return report(exc, state_of(parsed, daemon))
    finally:
        restore_signals(before)
    return how()


def _is_id(word: str) -> bool:
    """Return whether this is a whole id; the full command looks for the start of one."""
    digits = word.removeprefix("sbx_")
    return digits != word and len(digits) == 16 and not digits.strip("0123456789abcdef")


def _options(parsed: Parsed, command: list[str]) -> dict[str, Any] | None:
    """Return the options of the command by the names of the client; None if one is unusual."""
    given: dict[str, Any] = {**parsed.options}
    pairs = [word.partition("=") for word in given.get("env", ())]
    timeout, shell = given.get("timeout"), given.get("shell") or "default"
    if (
        not all(name and equals for name, equals, _ in pairs)
        or not is_whole(timeout)
        or timeout is not None
        and not int(timeout)
        or sum(map(len, command)) > _MAX_WORDS
    ):
        return None
    return {
        "timeout_seconds": None if timeout is None else float(timeout),
        "cwd": given.get("cwd"),
        "env": {name: value for name, _, value in pairs},
        "shell": shell,
        "idempotency_key": f"auto-{os.urandom(12).hex()}",
    }


class _Execution:
    """One command, from the look at its sandbox to its end."""

    def __init__(
        self,
        parsed: Parsed,
        daemon: DaemonSocket,
        sandbox_id: str,
        command: list[str],
        options: dict[str, Any],
    ) -> None:
        self._parsed = parsed
        self._daemon = daemon
        self._id = sandbox_id
        self._command: str | tuple[str, ...] = command[0] if len(command) == 1 else tuple(command)
        self._options = options
        self._json = bool(parsed.options.get("json", False))
        self._exec_id = ""
        self._seen = 0
        self._interrupted = False
        self._network: object = None

    def run(self) -> int | None:
        from sandkasten.client.plain.plain_http import send

        headers = headers_of(self._daemon, "*/*")
        connection = self._daemon.connection
        assert connection is not None
        with connection:
            if headers is None:
                return None
            try:
                connection.settimeout(_ANSWER_S)
                send(connection, "GET", f"/v1/sessions/{self._id}", headers)
                found, value = _json_of(connection)
            except (OSError, ValueError):
                return None
        body = self._body(value) if found.status == 200 else None
        if body is None:
            return None
        try:
            found, value = self._ask("POST", "exec", body)
        except (OSError, ValueError):
            raise _Later(self._in_full) from None
        if found.status in (429, 503) or not isinstance(value, dict):
            raise _Later(self._in_full)
        if found.status >= 300:
            self._refused(found.status, value)
        self._exec_id = str(value.get("exec_id", ""))
        if (
            not self._exec_id.isascii()
            or not self._exec_id.replace("_", "").replace("-", "").isalnum()
        ):
            raise _Later(self._in_full)
        return self._accompany()

    def _body(self, info: Any) -> bytes | None:
        """Return the request; None if it needs the full command."""
        from json import dumps

        limits = info.get("limits") if isinstance(info, dict) else None
        if not isinstance(limits, dict) or info.get("id") != self._id:
            return None
        self._network = info.get("network")
        asked = {name: value for name, value in self._options.items() if value not in (None, {})}
        # It is waited for, so it has the deadline of such a command.
        asked.setdefault("timeout_seconds", limits.get("exec_timeout_seconds"))
        if type(asked["timeout_seconds"]) is not float:
            return None
        text = isinstance(self._command, str)
        body = {
            **asked,
            **({"stateful": True} if text else {}),
            "max_output_bytes": KEPT_BYTES,
            "background": True,
            "cmd": self._command if text else list(self._command),
        }
        try:
            return dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return None

    def _accompany(self) -> int:
        """Show the output until the end; signals go to the command."""
        import signal

        def interrupted(number: int, frame: object) -> None:
            self._interrupted = True
            self._signal(signal.SIGINT)

        before = signal.signal(signal.SIGINT, interrupted)
        try:
            return self._follow()
        except BrokenPipeError:
            # The reader has left, as with `yes | head`: the output would go nowhere.
            self._signal(signal.SIGPIPE)
            raise
        except SystemExit:
            # SIGTERM or SIGHUP ends this process, which would leave the command behind.
            self._end()
            raise
        finally:
            signal.signal(signal.SIGINT, before)

    def _follow(self) -> int:
        from json import loads

        from sandkasten.client.plain.event_parser import Parser
        from sandkasten.client.plain.plain_http import PlainAnswer, send

        headers = headers_of(self._daemon, "text/event-stream")
        assert headers is not None
        parser = Parser()
        try:
            connection = self._connected()
            connection.settimeout(SILENCE_S)
        except OSError:
            raise _Later(self._resumed) from None
        with connection:
            try:
                path = f"/v1/sessions/{self._id}/execs/{self._exec_id}/output?since_seq=0"
                send(connection, "GET", path, headers)
                found = PlainAnswer(connection)
            except OSError:
                raise _Later(self._resumed) from None
            if found.status != 200:
                raise _Later(self._resumed)
            pieces = found.pieces()
            while True:
                # Only this can fail with the connection; a failure to print is handled elsewhere.
                try:
                    piece = next(pieces, None)
                    events = [] if piece is None else parser.feed(piece)
                    values = [(event.name, loads(event.data)) for event in events]
                except (OSError, ValueError):
                    raise _Later(self._resumed) from None
                if piece is None:
                    raise _Later(self._resumed)
                for name, value in values:
                    if not isinstance(value, dict) or name == "error":
                        raise _Later(self._resumed)
                    if name == "done":
                        return self._ended(value)
                    if name == "chunk":
                        self._show(value)

    def _show(self, value: dict[str, Any]) -> None:
        seq = value.get("seq")
        if type(seq) is not int:
            raise _Later(self._resumed)
        if seq > self._seen:
            self._seen = seq
            if not self._json:
                print_chunk(value)

    def _ended(self, value: dict[str, Any]) -> int:
        """Return the exit status; the full command shows a result that has more to report."""
        plain = type(value.get("exit_code")) is int and not any(map(value.get, _UNUSUAL))
        if plain and not self._json:
            status: int = value["exit_code"]
            return status
        from sandkasten.cli.commands.exec import show
        from sandkasten.client.http.session_json import exec_result_of
        from sandkasten.client.results import result_of

        state = state_of(self._parsed, self._daemon)
        state.interrupted = self._interrupted
        return show(state, result_of(exec_result_of(value)), self._id, self._network)

    def _refused(self, status: int, value: dict[str, Any]) -> NoReturn:
        from json import dumps

        from sandkasten.client.http.error_responses import error_of

        raise error_of(status, dumps(value).encode())

    # ---- the full client

    def _in_full(self) -> int:
        from sandkasten.cli.commands import exec
        from sandkasten.cli.state import go

        options: Any = {**self._options, "user": None}
        line = exec.CommandLine(self._command, options)
        state = state_of(self._parsed, self._daemon)
        return self._checked(lambda: go(exec.execute(state, self._id, line)))

    def _resumed(self) -> int:
        from sandkasten.cli.commands import exec
        from sandkasten.cli.state import go

        state = state_of(self._parsed, self._daemon)
        state.interrupted = self._interrupted
        again = exec.resume(state, self._id, self._exec_id, self._seen)
        return self._checked(lambda: go(again))

    def _checked(self, work: Callable[[], int]) -> int:
        from sandkasten.cli.main import report
        from sandkasten.errors import SandkastenError

        try:
            return work()
        except SandkastenError as exc:
            return report(exc, state_of(self._parsed, self._daemon))

    # ---- requests

    def _connected(self) -> Any:
        from sandkasten.client.plain.daemon_socket import connected

        assert self._daemon.url is not None
        connection = connected(self._daemon.url.removeprefix("unix://"))
        if connection is None:
            raise OSError("the daemon is away")
        connection.settimeout(_ANSWER_S)
        return connection

    def _ask(self, method: str, verb: str, body: bytes | None = None) -> tuple[PlainAnswer, Any]:
        from sandkasten.client.plain.plain_http import send

        headers = headers_of(self._daemon, "*/*")
        assert headers is not None
        with self._connected() as connection:
            send(connection, method, f"/v1/sessions/{self._id}/{verb}", headers, body)
            return _json_of(connection)

    def _signal(self, number: int) -> None:
        """Send a signal to the command, which may have ended just now."""
        from contextlib import suppress

        path = f"execs/{self._exec_id}/signal"
        with suppress(OSError, ValueError):
            self._ask("POST", path, b'{"signal": %d}' % number)

    def _end(self) -> None:
        import signal

        self._signal(signal.SIGTERM)
        try:
            path = f"execs/{self._exec_id}?wait_seconds={TERM_GRACE_S:g}"
            _, value = self._ask("GET", path)
        except (OSError, ValueError):
            return
        if isinstance(value, dict) and value.get("status") == "running":
            self._signal(signal.SIGKILL)


def _json_of(connection: Any) -> tuple[PlainAnswer, Any]:
    from json import loads

    from sandkasten.client.plain.plain_http import PlainAnswer

    found = PlainAnswer(connection)
    return found, loads(found.read())
