"""A small client of the Kubernetes API for tests, independent of the product's own.

It knows JSON over HTTPS and the exec stream (v5.channel.k8s.io), one connection for each call.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode, urlsplit

from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.hostwatch import loopwatch
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_STDIN, _STDOUT, _STDERR, _STATUS, _CLOSE = 0, 1, 2, 3, 255
Found = TypeVar("Found")
_APPLY = "application/apply-patch+yaml"
_EXEC_PROTOCOL = Subprotocol("v5.channel.k8s.io")


class ApiError(RuntimeError):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Executed:
    stdout: bytes
    stderr: bytes
    code: int


class KubeApi:
    def __init__(self, server: str, ca: str, token: str) -> None:
        self._where = urlsplit(server)
        self._token = token
        self._ca = ca
        self._trust = ssl.create_default_context(cadata=ca)

    @classmethod
    def of(cls, kubeconfig: Path) -> KubeApi:
        """Return a client for a file that `Cluster` wrote: JSON with one of everything."""
        read = json.loads(kubeconfig.read_text())
        cluster = read["clusters"][0]["cluster"]
        ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return cls(cluster["server"], ca, read["users"][0]["user"]["token"])

    @loopwatch.of_the_test
    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        kind: str = "application/json",
        raw: bool = False,
    ) -> Any:
        """Return the answer as JSON, or as bytes; raise ApiError where it is a refusal."""
        assert self._where.hostname is not None
        connection = http.client.HTTPSConnection(
            self._where.hostname, self._where.port, context=self._trust, timeout=PATIENCE_S
        )
        try:
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, body=sent, headers=headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise ApiError(answer.status, f"{method} {path}: {content.decode(errors='replace')}")
        return content if raw else json.loads(content or b"null")

    # ---- objects of any kind

    def apply(self, thing: Mapping[str, Any], *, dry_run: bool = False) -> Any:
        """Create or change an object as `kubectl apply --server-side` does."""
        query = "fieldManager=tests&force=true&fieldValidation=Strict"
        query += "&dryRun=All" if dry_run else ""
        return self.ask("PATCH", f"{path_of(thing)}?{query}", thing, kind=_APPLY)

    def acting_as(self, token: str) -> KubeApi:
        """Return a client with the rights of another account."""
        return KubeApi(self._where.geturl(), self._ca, token)

    # ---- Pods

    def create_pod(self, pod: Mapping[str, Any], namespace: str = "default") -> Any:
        return self.ask("POST", f"/api/v1/namespaces/{namespace}/pods", pod)

    def pod(self, name: str, namespace: str = "default") -> Any:
        return self.ask("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")

    def pods(self, labels: str = "", namespace: str = "default") -> list[Any]:
        query = urlencode({"labelSelector": labels})
        found = self.ask("GET", f"/api/v1/namespaces/{namespace}/pods?{query}")
        return list(found["items"])

    def delete_pod(self, name: str, namespace: str = "default") -> None:
        """Delete a Pod without waiting for its end."""
        self.ask("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})

    def ready_pod(self, name: str, namespace: str = "default") -> Any:
        """Wait until a Pod is ready; return it."""
        return wait_for(
            lambda: self.pod(name, namespace),
            is_ready,
            lambda pod: f"Pod {name} is not ready: {json.dumps(pod['status'])}",
        )

    def nodes(self) -> list[Any]:
        return list(self.ask("GET", "/api/v1/nodes")["items"])

    # ---- commands

    @loopwatch.of_the_test
    def run_in(
        self,
        name: str,
        command: Sequence[str],
        stdin: bytes = b"",
        namespace: str = "default",
        container: str = "",
    ) -> Executed:
        """Run a command in a Pod through the API server; raise ApiError where it did not run."""
        query = urlencode(
            [("command", word) for word in command]
            + [("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
            + ([("container", container)] if container else [])
        )
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/exec?{query}"
        got: dict[int, bytes] = {_STDOUT: b"", _STDERR: b"", _STATUS: b""}
        try:
            opened = connect(
                f"wss://{self._where.netloc}{path}",
                ssl=self._trust,
                subprotocols=[_EXEC_PROTOCOL],
                additional_headers={"Authorization": f"Bearer {self._token}"},
                open_timeout=PATIENCE_S,
                proxy=None,
                max_size=None,
            )
        except InvalidStatus as exc:
            raise ApiError(exc.response.status_code, str(exc.response.body)) from exc
        with opened as stream:
            if stdin:
                stream.send(bytes([_STDIN]) + stdin)
            stream.send(bytes([_CLOSE, _STDIN]))
            for message in stream:
                assert isinstance(message, bytes)
                if message and message[0] in got:
                    got[message[0]] += message[1:]
        return Executed(got[_STDOUT], got[_STDERR], _exit_code(json.loads(got[_STATUS])))


def _exit_code(status: Any) -> int:
    if status["status"] == "Success":
        return 0
    causes = status.get("details", {}).get("causes", ())
    for cause in causes:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise ApiError(0, json.dumps(status))


def path_of(thing: Mapping[str, Any]) -> str:
    """Return the path of an object in the API."""
    version, kind, about = thing["apiVersion"], str(thing["kind"]).lower(), thing["metadata"]
    top = "/api/v1" if version == "v1" else f"/apis/{version}"
    inside = f"/namespaces/{about['namespace']}" if "namespace" in about else ""
    many = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    return f"{top}{inside}/{many}/{about['name']}"


def is_ready(found: Mapping[str, Any]) -> bool:
    """Return whether a Pod or a node says that it is ready."""
    conditions = found.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


@loopwatch.of_the_test
def wait_for(
    look: Callable[[], Found],
    good: Callable[[Found], bool],
    why: Callable[[Found], str],
    seconds: float = PATIENCE_S,
) -> Found:
    """Look until it is good; raise TimeoutError with what was seen last."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if good(found):
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(why(found))
        time.sleep(0.05)
