"""The modules that open HTTP sessions, each with one request to a URL as the product makes it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import ClientError

from sandkasten.client.http import connection
from sandkasten.client.http.connection import Connection, HttpRequest
from sandkasten.client.http.files import HttpFiles
from sandkasten.errors import SandkastenError
from sandkasten.outgoing_http import new_http_session, read_start
from sandkasten_agents.chat import chat_client
from sandkasten_agents.chat.chat_client import ChatModel, ChatRequest, ModelSettings
from sandkasten_cloud import websocket_stream
from sandkasten_cloud.fly import machines_api
from sandkasten_cloud.fly.fly_options import FlyOptions
from sandkasten_cluster_store.bucket.bucket import Bucket
from sandkasten_cluster_store.bucket.bucket_options import BucketOptions
from sandkasten_docker.docker_engine import bounded_response
from sandkasten_docker.docker_engine.docker_address import DockerAddress
from sandkasten_docker.docker_engine.docker_client import DockerClient, Refused
from sandkasten_kubernetes.api import cluster_client
from sandkasten_kubernetes.api.cluster_access import ClusterAccess
from sandkasten_kubernetes.api.cluster_client import ApiRefused, ClusterClient
from sandkasten_runtime.images.registry.registry_http import Patience, connected
from sandkasten_server.daemon import jwt_keys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

SECRET = "sk-secret-0123456789"
# Where the product reads up to 512 MiB, which would take long.
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class HttpUser:
    """`ask(url, deadline_s)` returns, or raises one of `failures`."""

    module: str
    ask: Callable[[str, float], Awaitable[object]]
    failures: tuple[type[BaseException], ...] = (SandkastenError,)
    limits: Mapping[str, int] | None = None
    """Limits that the test sets, by their paths."""
    deadlines: tuple[str, ...] = ()
    """Deadlines that are constants, by their paths."""
    follows_redirects: bool = False


async def client_answer(url: str, deadline_s: float) -> object:
    async with aclosing(Connection(url, SECRET, "tenant")) as daemon:
        return await daemon.ask(HttpRequest("GET", "/x", answer_s=deadline_s))


async def client_stream(url: str, deadline_s: float) -> object:
    order = HttpRequest("GET", "/x", answer_s=deadline_s)
    async with (
        aclosing(Connection(url, SECRET, "tenant")) as daemon,
        connection.reading(daemon, "it was read"),
        daemon.stream(order) as answer,
    ):
        return await read_start(answer, MOST_BYTES)


async def client_file(url: str, deadline_s: float) -> object:
    # A file may take as long as it takes: the deadline is the program's.
    async with aclosing(Connection(url, SECRET, "tenant")) as daemon, asyncio.timeout(deadline_s):
        return await HttpFiles(daemon).read("sbx_1", "/x")


async def client_terminal(url: str, deadline_s: float) -> object:
    del deadline_s
    async with aclosing(Connection(url, SECRET, "tenant")) as daemon:
        return await daemon.websocket("/x", {})


async def chat(url: str, deadline_s: float) -> object:
    settings = ModelSettings(
        url, SECRET, "model", timeout_s=deadline_s, idle_s=deadline_s, max_retries=0
    )
    async with ChatModel() as model:
        return await model.ask(settings, ChatRequest([{"role": "user", "content": "hello"}]))


async def fly(url: str, deadline_s: float) -> object:
    options = FlyOptions(app="app", api_token=SECRET, api_url=url, timeout_s=deadline_s)
    async with aclosing(machines_api.MachinesApi(options)) as api:
        return await api.app()


async def e2b_gate(url: str, deadline_s: float) -> object:
    async with new_http_session() as session:
        headers = {"e2b-traffic-access-token": SECRET}
        return await websocket_stream.connect(session, url, headers, deadline_s)


async def bucket(url: str, deadline_s: float) -> object:
    options = BucketOptions(
        endpoint=url, bucket="bucket", access_key="key", secret_key=SECRET, timeout_s=deadline_s
    )
    async with Bucket(options, attempts=1) as opened:
        return await opened.get("x", 100, "0" * 64)


async def docker(url: str, deadline_s: float) -> object:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    address = DockerAddress("tcp", url, host=parts.hostname, port=parts.port)
    async with aclosing(DockerClient(address, deadline_s)) as client:
        return await client.containers()


async def kubernetes_object(url: str, deadline_s: float) -> object:
    async with aclosing(_cluster(url, deadline_s)) as client:
        return await client.get("pods", "x")


async def kubernetes_logs(url: str, deadline_s: float) -> object:
    async with aclosing(_cluster(url, deadline_s)) as client:
        return await client.logs("x", "main")


async def kubernetes_watch(url: str, deadline_s: float) -> object:
    # What waits for an event has the deadline.
    async with aclosing(_cluster(url, deadline_s)) as client, asyncio.timeout(deadline_s):
        return [event async for event in client.watch("pods", "x", "1")]


async def kubernetes_stream(url: str, deadline_s: float) -> object:
    async with aclosing(_cluster(url, deadline_s)) as client:
        return await client.stream("x", "main", ["true"])


def _cluster(url: str, deadline_s: float) -> ClusterClient:
    return ClusterClient(lambda: ClusterAccess(url, "default", token=SECRET), "", deadline_s)


async def key_set(url: str, deadline_s: float) -> object:
    del deadline_s
    return await jwt_keys._fetched(url)


async def registry(url: str, deadline_s: float) -> object:
    patience = Patience(attempts=1, whole_s=deadline_s)
    async with connected("registry", patience, environ={}) as connections:
        answer = await connections.open(f"{url}/v2/", headers={}, authorization=f"Bearer {SECRET}")
        try:
            return await read_start(answer, MOST_BYTES)
        finally:
            answer.close()


_CLIENT = connection.__name__
_CLUSTER = cluster_client.__name__
_CLUSTER_LIMITS = {f"{_CLUSTER}._MOST_BYTES": MOST_BYTES, f"{_CLUSTER}._MOST_LINE": MOST_BYTES}
_CLUSTER_ERRORS = (SandkastenError, ApiRefused, TimeoutError)

USERS = (
    HttpUser(_CLIENT, client_answer, limits={f"{_CLIENT}._MAX_ANSWER_BYTES": MOST_BYTES}),
    HttpUser(_CLIENT, client_stream, deadlines=(f"{_CLIENT}.CONNECT_S",)),
    HttpUser(
        _CLIENT,
        client_file,
        (SandkastenError, TimeoutError),
        limits={"sandkasten.client.http.files.MAX_WHOLE_READ": MOST_BYTES},
        deadlines=(f"{_CLIENT}.CONNECT_S",),
    ),
    HttpUser(
        _CLIENT, client_terminal, deadlines=(f"{_CLIENT}.CONNECT_S", f"{_CLIENT}._HANDSHAKE_S")
    ),
    HttpUser(chat_client.__name__, chat, limits={f"{chat_client.__name__}.MOST_BYTES": MOST_BYTES}),
    HttpUser(
        machines_api.__name__,
        fly,
        (machines_api.Unanswered, machines_api.Refused),
        {f"{machines_api.__name__}._MOST_BYTES": MOST_BYTES},
    ),
    HttpUser("sandkasten_cloud.e2b.e2b_provider", e2b_gate, (OSError,)),
    HttpUser("sandkasten_cluster_store.bucket.bucket", bucket),
    HttpUser(
        "sandkasten_docker.docker_engine.docker_client",
        docker,
        (SandkastenError, Refused),
        {f"{bounded_response.__name__}.MOST_BYTES": MOST_BYTES},
    ),
    HttpUser(_CLUSTER, kubernetes_object, _CLUSTER_ERRORS, _CLUSTER_LIMITS),
    HttpUser(_CLUSTER, kubernetes_logs, _CLUSTER_ERRORS, _CLUSTER_LIMITS),
    HttpUser(_CLUSTER, kubernetes_watch, _CLUSTER_ERRORS, _CLUSTER_LIMITS),
    HttpUser(_CLUSTER, kubernetes_stream, _CLUSTER_ERRORS, _CLUSTER_LIMITS),
    HttpUser(
        jwt_keys.__name__,
        key_set,
        (ValueError, TimeoutError, OSError),
        deadlines=(f"{jwt_keys.__name__}._TIMEOUT_S",),
    ),
    HttpUser(
        "sandkasten_runtime.images.registry.registry_http",
        registry,
        (SandkastenError, ClientError),
        follows_redirects=True,
    ),
)
