"""A client of an engine with nothing but the command line and its GraphQL endpoint.

The tests of the engine and of its deployment use it, so that they depend on no SDK and on no code
of ours. `python -m tests.dagger.client ADDRESS HOME IMAGE WORD...` runs one command, for a client
inside a container.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.dagger import programs
from tests.hostwatch import loopwatch
from tests.patience import FAR_TOO_LATE_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def environment(address: str) -> dict[str, str]:
    """Return the environment by which an SDK uses our command line and that engine."""
    return {
        "_EXPERIMENTAL_DAGGER_CLI_BIN": str(programs.command_line()),
        "_EXPERIMENTAL_DAGGER_RUNNER_HOST": address,
        "DO_NOT_TRACK": "1",
        "DAGGER_NO_UPDATE_CHECK": "1",
    }


@dataclass(frozen=True, slots=True)
class Ran:
    exit_code: int
    stdout: str
    stderr: str


ROUTES = ("cat", "/proc/net/route")


def has_a_way_out(routes: Ran) -> bool:
    """Return whether a container in which ROUTES ran has a default route."""
    return any(line.split()[1] == "00000000" for line in routes.stdout.splitlines())


class Session:
    """`with Session(engine.address, tmp_path) as session:` connects to an engine."""

    def __init__(self, address: str, home: Path, environ: Mapping[str, str] | None = None) -> None:
        self._home = home
        self._environ = {
            **os.environ,
            **environment(address),
            # It keeps a configuration and a state, which must not be those of the user.
            "HOME": str(home),
            **{f"XDG_{name}_HOME": str(home) for name in ("CONFIG", "STATE", "CACHE", "DATA")},
            **(environ or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._url = self._authorization = ""

    @loopwatch.of_the_test
    def __enter__(self) -> Session:
        label = ("--label", "dagger.io/sdk.name:sandkasten-test")
        with (self._home / "session.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(programs.command_line()), "session", *label],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environ,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.__exit__()
            raise RuntimeError(f"no session: {(self._home / 'session.log').read_text()[-3000:]}")
        told = json.loads(line)
        self._url = f"http://127.0.0.1:{told['port']}/query"
        token = base64.b64encode(f"{told['session_token']}:".encode()).decode()
        self._authorization = f"Basic {token}"
        return self

    @loopwatch.of_the_test
    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        try:
            self._process.communicate(timeout=FAR_TOO_LATE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def kill(self) -> None:
        """End it at once: it waits for minutes for an engine that was killed."""
        assert self._process is not None
        self._process.kill()

    @loopwatch.of_the_test
    def ask(self, query: str, **variables: Any) -> Any:
        """Send a GraphQL query; return its data or raise what the engine says."""
        request = urllib.request.Request(
            self._url,
            json.dumps({"query": query, "variables": variables}).encode(),
            {"content-type": "application/json", "authorization": self._authorization},
        )
        with urllib.request.urlopen(request, timeout=FAR_TOO_LATE_S) as response:
            answer = json.load(response)
        if answer.get("errors"):
            raise RuntimeError(json.dumps(answer["errors"])[:3000])
        return answer["data"]

    def run(self, image: Path, command: Sequence[str]) -> Ran:
        """Run a command in a new container of an image's archive."""
        file = self.ask(
            "query($path: String!) { host { file(path: $path) { id } } }", path=str(image)
        )
        # The engine does not run a command again whose result it has.
        query = """
            query($file: ID!, $words: [String!]!, $nonce: String!) {
                container { import(source: $file) { withEnvVariable(name: "NONCE", value: $nonce) {
                    withExec(args: $words, expect: ANY) { exitCode stdout stderr }
                } } }
            }
        """
        told = self.ask(
            query, file=file["host"]["file"]["id"], words=list(command), nonce=secrets.token_hex(8)
        )
        ran = told["container"]["import"]["withEnvVariable"]["withExec"]
        return Ran(ran["exitCode"], ran["stdout"], ran["stderr"])


def main(address: str, home: str, image: str, *command: str) -> int:
    with Session(address, Path(home)) as session:
        json.dump(asdict(session.run(Path(image), command)), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
