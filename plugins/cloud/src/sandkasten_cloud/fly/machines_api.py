"""Fly's Machines API: requests and what their answers mean, without a decision.

An answer that cannot be understood, or does not come, is `Unanswered`: whether the request took
effect is then unknown. A refusal is `Refused`, and the request had no effect, unless its status is
500 or more. Errors never contain the token.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import aiohttp

from sandkasten.model.retries import retry_after_s
from sandkasten.model.spelling import one_line
from sandkasten.outgoing_http import new_http_session, read_whole
from sandkasten_cloud.fly import machine_request
from sandkasten_cloud.provider import is_machine_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten_cloud.fly.fly_options import FlyOptions

# A list contains the configuration of every machine, with its files.
_MOST_BYTES: Final = 64 << 20
# The API waits for a state at most this long.
LONGEST_WAIT_S: Final = 60
_UNAUTHORIZED: Final = (401, 403)
_GONE: Final = (404, 410)
_SERVER: Final = 500


class Refused(Exception):
    """The API answered with an error."""

    def __init__(self, status: int, message: str, reason: str, retry_after: float) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.reason = reason
        """A word for programs, such as insufficient_capacity; often empty."""
        self.retry_after_s = retry_after

    @property
    def unauthorized(self) -> bool:
        return self.status in _UNAUTHORIZED

    @property
    def gone(self) -> bool:
        return self.status in _GONE

    @property
    def rate_limited(self) -> bool:
        return self.status == 429

    @property
    def name_taken(self) -> bool:
        return self.status in (409, 422) and "unique machine name" in self.message

    @property
    def timed_out(self) -> bool:
        return self.status == 408

    @property
    def uncertain(self) -> bool:
        """Whether the request may have had its effect."""
        return self.status >= _SERVER


class Unanswered(Exception):
    """There was no answer, or only a part of one."""


class MachinesApi:
    """Connects at its first request."""

    def __init__(self, options: FlyOptions) -> None:
        self._options = options
        self._session: aiohttp.ClientSession | None = None
        self._app = f"/v1/apps/{quote(options.app, safe='')}"

    async def app(self) -> Mapping[str, Any]:
        return _mapping(await self._ask("GET", self._app))

    async def addresses(self) -> list[Mapping[str, Any]]:
        """Return the addresses of the app: `ip`, and whether it is `shared` with other apps."""
        addresses = _mapping(await self._ask("GET", f"{self._app}/ip_assignments")).get("ips")
        return _mappings(addresses or [])

    async def machines(self, *, summary: bool) -> list[Mapping[str, Any]]:
        """Return the machines of the app; a summary has no configuration."""
        query = {"summary": "true"} if summary else {}
        machines = await self._ask("GET", f"{self._app}/machines", query=query)
        return [_checked(machine) for machine in _mappings(machines)]

    async def create(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return _checked(await self._ask("POST", f"{self._app}/machines", body=body))

    async def machine(self, machine_id: str) -> Mapping[str, Any]:
        return _checked(await self._ask("GET", self._machine(machine_id)))

    async def wait_until_started(self, machine_id: str, timeout_s: int) -> None:
        query = {"state": "started", "timeout": str(max(1, min(timeout_s, LONGEST_WAIT_S)))}
        path = f"{self._machine(machine_id)}/wait"
        await self._ask("GET", path, query=query, more_s=timeout_s)

    async def destroy(self, machine_id: str) -> None:
        await self._ask("DELETE", self._machine(machine_id), query={"force": "true"})

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _machine(self, machine_id: str) -> str:
        if not is_machine_id(machine_id):
            raise Unanswered("the id of a machine is not valid")
        return f"{self._app}/machines/{machine_id}"

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        more_s: float = 0.0,
    ) -> Any:
        try:
            async with asyncio.timeout(self._options.timeout_s + more_s):
                return await self._send(method, path, query or {}, body)
        except TimeoutError as exc:
            raise Unanswered(f"no answer within {self._options.timeout_s + more_s:g} s") from exc
        except ssl.SSLError as exc:
            raise Unanswered(f"no secure connection: {exc.reason or 'TLS'}") from exc
        except (OSError, aiohttp.ClientError) as exc:
            raise Unanswered(one_line(str(exc)) or type(exc).__name__) from exc

    async def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> Any:
        if self._session is None:
            self._session = new_http_session(compressed=True)
        url = self._options.api_url + path
        headers = {"Authorization": _authorization(self._options.api_token)}
        async with self._session.request(
            method, url, params=query, json=body, headers=headers, allow_redirects=False
        ) as answer:
            too_long = Unanswered(f"the answer has more than {_MOST_BYTES} bytes")
            content = await read_whole(answer, _MOST_BYTES, too_long)
            if answer.status >= 300:
                raise _refusal(answer.status, content, answer.headers)
        if not content:
            return {}
        try:
            # A list of a thousand machines takes a while.
            return await asyncio.to_thread(json.loads, content)
        except (ValueError, RecursionError) as exc:
            raise Unanswered("the answer is not JSON, or too deep") from exc


def _authorization(token: str) -> str:
    # Tokens of flyctl already begin with the name of their scheme.
    return token if token.startswith("FlyV1 ") else f"Bearer {token}"


def _refusal(status: int, content: bytes, headers: Mapping[str, str]) -> Refused:
    message = reason = ""
    try:
        document = json.loads(content)
        message, reason = (one_line(str(document.get(key) or "")) for key in ("error", "status"))
    except (ValueError, AttributeError, RecursionError):
        pass
    # A clock that differs from ours would turn a date into any time at all.
    wanted_s = retry_after_s({**headers, "Retry-After": _duration(headers)}, time.time())
    return Refused(status, message or f"status {status}", reason, wanted_s)


def _duration(headers: Mapping[str, str]) -> str:
    value = headers.get("Retry-After", "")
    return value if value.strip().replace(".", "", 1).isdigit() else ""


def _checked(answer: Any) -> Mapping[str, Any]:
    """Return a machine of whose parts all that are read have the right type."""
    wrong = machine_request.wrong_part(answer)
    if wrong is not None:
        raise Unanswered(f"{wrong} of a machine has another type than it should")
    return _mapping(answer)


def _mapping(answer: Any) -> Mapping[str, Any]:
    if not isinstance(answer, dict):
        raise Unanswered("the answer is not an object")
    return answer


def _mappings(answer: Any) -> list[Mapping[str, Any]]:
    if not isinstance(answer, list):
        raise Unanswered("the answer is not a list")
    return [_mapping(entry) for entry in answer]
