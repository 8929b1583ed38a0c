"""A command that the program `sandkasten` has begun, and leaves to this command line to finish.

The program (`runner/src/cli`) sends ordinary commands to a daemon itself. If something about one
turns out to be unusual after the daemon has been asked, the program becomes this command line, with
the same arguments. What it knows is a JSON document in a file without a name; a variable has the
number of its descriptor.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from sandkasten.client.results import RunResult
    from sandkasten_server.cli.state import State

_VARIABLE: Final = "_SANDKASTEN_BEGUN"


@dataclass(frozen=True, slots=True)
class BegunCommand:
    """The fields are those of the document."""

    url: str
    """The daemon that was asked; empty for a list, of which a part was printed."""
    key: str | None = None
    """The idempotency key of a command in a sandbox whose start was not confirmed."""
    exec_id: str = ""
    """The command in a sandbox that has started."""
    seen: int = 0
    """The number of the last piece of its output that was printed."""
    interrupted: bool = False
    """Whether Ctrl-C was sent to it."""
    status: int = 0
    """The status of the response to `run`, if it was refused; `body` has its bytes as Latin-1."""
    body: str = ""
    event: str | None = None
    """The name of an event of `run` that is shown here, with its `data`."""
    data: str = ""
    too_large: bool = False
    """Whether an event was larger than any that a daemon sends."""
    message: str = ""
    """Why the connection was lost, and a `hint`."""
    hint: str = ""
    errno: int = 0
    """Why output could not be written."""

    def connect(self, state: State) -> None:
        """Have the command ask the same daemon as before."""
        from sandkasten.client.server.daemon_or_embedded import place_of

        state.place = place_of(url=self.url, api_key=state.api_key)
        state.interrupted = self.interrupted

    def check_written(self) -> None:
        """Raise why output could not be written."""
        if self.errno:
            raise OSError(self.errno, os.strerror(self.errno))

    def run_result(self) -> RunResult:
        """Return the result of `run`, or raise what prevented it."""
        from sandkasten.client.http.error_responses import body_error, error_of
        from sandkasten.client.http.event_parser import Event, too_large
        from sandkasten.client.http.event_streams import parsed
        from sandkasten.client.http.session_json import chunk_of, run_result_of
        from sandkasten.client.results import run_result_of as result_of
        from sandkasten.errors import BackendUnavailable

        self.check_written()
        if self.message:
            raise BackendUnavailable(self.message, hint=self.hint)
        if self.status:
            raise error_of(self.status, self.body.encode("latin-1"))
        if self.too_large or self.event is None:
            raise too_large()
        value = parsed(Event(self.event, self.data))
        if self.event == "done":
            return result_of(run_result_of(value))
        if self.event == "chunk":
            chunk_of(value)
        raise body_error(value)


def begun_command() -> BegunCommand | None:
    """Return the command that was begun; None if it begins here."""
    number = os.environ.pop(_VARIABLE, None)
    if number is None:
        return None
    with open(int(number), "rb") as file:
        document: dict[str, Any] = json.load(file)
    return BegunCommand(**document)
