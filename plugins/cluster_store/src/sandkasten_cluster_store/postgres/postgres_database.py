"""A PostgreSQL database: a bounded pool for statements, and one session for locks and notices.

A statement that returns is committed. Every wait is bounded. A database that is unavailable raises
BackendUnavailable: either nothing was written, or the answer was lost, so the caller may try again.
A full disk raises QuotaExceeded, a schema of a newer version StoreUnusable. The URL, which may
contain a password, is in no message.

The session is a separate connection, because locks and subscriptions (`LISTEN`) belong to a
connection. It is opened again when it is lost, and the locks that it held are reported as lost. A
connection pooler between daemon and database must therefore pool sessions and not transactions.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from sandkasten.errors import (
    BackendUnavailable,
    InternalError,
    InvalidConfiguration,
    InvalidRequest,
    QuotaExceeded,
    SandkastenError,
)
from sandkasten.model.optional_extras import install_command
from sandkasten_cluster_store.postgres.advisory_locks import AdvisoryLocks
from sandkasten_cluster_store.postgres.postgres_schema import migrate
from sandkasten_cluster_store.postgres.shard_leases import NODE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from sandkasten_cluster_store.postgres.shard_leases import ShardLeases

log = logging.getLogger("sandkasten.store")
Row = Any
"""A row of asyncpg: values by number and by name."""

SCHEMA: Final = "sandkasten"
# How often the session is checked, and how long a check may take. Together they are shorter than
# the time after which the server drops a silent client (25 s, by the keepalives below): a holder
# learns that its lock is lost before another process can take it.
_PULSE_S: Final = 5.0
_PULSE_TIMEOUT_S: Final = 5.0
_KEEPALIVE: Final = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    # Keepalives are not sent while data is on the way, and notices may be.
    "tcp_user_timeout": "25000",
}
# How long a request waits for a lost session. A server that restarts is usually ready by then.
_RETURN_S: Final = 3.0
_FIRST_RETRY_S: Final = 0.05
_LONGEST_RETRY_S: Final = 2.0
# After a restart of the server, all nodes get the time to announce that they live.
ALIVE: Final = (
    "(EXISTS (SELECT 1 FROM nodes WHERE nodes.id = {node}"  # noqa: S608  (two numbers)
    f" AND seen_at > now() - interval '{NODE_S} s')"
    f" OR pg_postmaster_start_time() > now() - interval '{NODE_S} s')"
)
"""Condition: whether a node lives."""
_SEEN = """
INSERT INTO nodes (id, seen_at) VALUES ($1, now())
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at
"""
# Copies of rows in memory are read again at least this often.
RELOAD_S: Final = 10.0


class PostgresDatabase:
    """Create with `open`."""

    def __init__(self, library: Any, url: str, schema: str, most: int, timeout_s: float) -> None:
        self.schema = schema
        self.sslmode = parse_qs(urlsplit(url).query).get("sslmode", [""])[-1]
        self._library = library
        self._timeout_s = timeout_s
        self._options: dict[str, Any] = {
            "dsn": url,
            "timeout": timeout_s,
            "command_timeout": timeout_s,
            "server_settings": {
                "search_path": schema,
                "application_name": "sandkasten",
                "idle_in_transaction_session_timeout": f"{int(timeout_s * 1000)}",
                "statement_timeout": f"{int(timeout_s * 1000)}",
                **_KEEPALIVE,
            },
        }
        self._most = most
        self._pool: Any = None
        self._session: Any = None
        self._session_turn = asyncio.Lock()
        self._there = asyncio.Event()
        self._pulse: Callable[[Any, float], Awaitable[object]] = _check
        self._watching: asyncio.Task[None] | None = None
        self._heard: dict[str, list[Callable[[str], None]]] = {}
        self.on_session_lost: list[Callable[[], None]] = []
        self.locks = AdvisoryLocks(self)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        schema: str = SCHEMA,
        max_connections: int = 10,
        timeout_s: float = 10.0,
    ) -> PostgresDatabase:
        """Connect and migrate the schema. Raise BackendUnavailable if that is impossible."""
        database = cls(await asyncio.to_thread(_library), url, schema, max_connections, timeout_s)
        try:
            await database._open()
        except BaseException:
            await database.aclose()
            raise
        return database

    async def _open(self) -> None:
        with self.translated():
            self._session = await self._connect()
            await migrate(self._session, self.schema, self.lock_key("migration"))
            await self._join(self._session)
            self._pool = await self._library.create_pool(
                min_size=0,
                max_size=self._most,
                max_inactive_connection_lifetime=60.0,
                # None of our statements changes the state of a connection, so none is reset.
                reset=_unchanged,
                **self._options,
            )
        self._watching = asyncio.create_task(self._watch())

    async def aclose(self) -> None:
        """Close every connection; locks that are held end. Twice is fine."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        session, self._session = self._session, None
        pool, self._pool = self._pool, None
        for part in (session, pool):
            if part is None:
                continue
            try:
                async with asyncio.timeout(_PULSE_TIMEOUT_S):
                    await part.close()
            except Exception:  # noqa: BLE001  (an unreachable database is closed by ending it)
                part.terminate()

    async def live_as(self, node: str, leases: ShardLeases | None = None) -> None:
        """Announce to other daemons that this node lives, from now on, and hold leases for it."""

        async def seen(connection: Any, timeout_s: float) -> None:
            await connection.execute(_SEEN, node, timeout=timeout_s)

        pulse = seen if leases is None else leases.renew
        async with self._connection() as connection:
            await pulse(connection, self._timeout_s)
        self._pulse = pulse

    # ---- statements

    async def fetch(self, sql: str, *values: object) -> Sequence[Row]:
        """Return the rows of a statement that only reads; it is repeated once if its connection
        was lost.
        """
        try:
            return await self.write(sql, *values)
        except BackendUnavailable as exc:
            if not isinstance(exc.__cause__, self._lost_errors):
                raise
        return await self.write(sql, *values)

    async def fetch_one(self, sql: str, *values: object) -> Row | None:
        rows = await self.fetch(sql, *values)
        return rows[0] if rows else None

    async def write(self, sql: str, *values: object) -> Sequence[Row]:
        """Run one statement and return its rows, committed."""
        async with self._connection() as connection:
            rows: Sequence[Row] = await connection.fetch(sql, *values)
            return rows

    async def execute(self, sql: str, *values: object) -> int:
        """Run one statement; return the number of changed rows, committed."""
        async with self._connection() as connection:
            return count_of(await connection.execute(sql, *values))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Yield a connection. What it does is committed together when the block ends."""
        async with self._connection() as connection, connection.transaction():
            yield connection

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        if self._pool is None:
            raise closed()
        with self.translated():
            async with (
                asyncio.timeout(self._timeout_s),
                self._pool.acquire(timeout=self._timeout_s) as connection,
            ):
                yield connection

    # ---- the session

    def lock_key(self, name: str) -> int:
        """Return the number by which PostgreSQL locks a name."""
        text = f"{self.schema}\0{name}".encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "big", signed=True)

    async def in_session(self, sql: str, *values: object) -> Any:
        """Run a statement in the session; return its first value."""
        if self._watching is None:
            raise closed()
        with self.translated():
            async with asyncio.timeout(_RETURN_S):
                await self._there.wait()
            async with self._session_turn:
                session = self._session
                if session is None:
                    raise ConnectionResetError("the connection was lost")
                within_s = min(self._timeout_s, _PULSE_TIMEOUT_S)
                try:
                    return await session.fetchval(sql, *values, timeout=within_s)
                except (TimeoutError, asyncio.CancelledError, self._library.QueryCanceledError):
                    # The lock that was asked for may be ours now, and only the end of the session
                    # surely releases it.
                    session.terminate()
                    raise

    def subscribe(self, topic: str, heard: Callable[[str], None]) -> None:
        """Call `heard` with each notice of the topic. After a loss of the session, in which notices
        may have been missed, call it with an empty string.
        """
        self._heard.setdefault(topic, []).append(heard)

    def unsubscribe(self, topic: str, heard: Callable[[str], None]) -> None:
        with suppress(ValueError):
            self._heard[topic].remove(heard)

    def notice(self, topic: str, text: str = "") -> tuple[str, str]:
        """Return the arguments of `pg_notify` that wake the subscribers of a topic."""
        return self.schema, f"{topic}:{text}"

    async def _join(self, session: Any) -> None:
        try:
            await session.add_listener(self.schema, self._on_notice)
        except BaseException:
            session.terminate()
            raise
        self._session = session
        self._there.set()

    async def _watch(self) -> None:
        pause_s = _FIRST_RETRY_S
        while True:
            if self._session is None:
                try:
                    with self.translated():
                        await self._join(await self._connect())
                except Exception as exc:  # noqa: BLE001  (without a session no lock can be had)
                    if not isinstance(exc, SandkastenError):
                        self._log_unexpected(exc)
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, _LONGEST_RETRY_S)
                    continue
                pause_s = _FIRST_RETRY_S
                for several in self._heard.values():
                    for heard in [*several]:
                        heard("")
            await self._until_lost(self._session)
            self._there.clear()
            session, self._session = self._session, None
            session.terminate()
            log.warning("store.session_lost", extra={"sandkasten": {}})
            for lost in [*self.on_session_lost]:
                lost()

    async def _until_lost(self, session: Any) -> None:
        ended = asyncio.Event()
        session.add_termination_listener(lambda _: ended.set())
        while not session.is_closed():
            try:
                async with self._session_turn:
                    await self._pulse(session, _PULSE_TIMEOUT_S)
            except Exception as exc:  # noqa: BLE001  (it is opened again)
                if not isinstance(exc, self._foreign_errors):
                    self._log_unexpected(exc)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(_PULSE_S):
                    await ended.wait()

    def _log_unexpected(self, exc: Exception) -> None:
        # Its message is not ours: it may repeat a part of the URL.
        log.error("store.failed", extra={"sandkasten": {"trouble": type(exc).__name__}})

    def _on_notice(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        topic, _, text = str(payload).partition(":")
        for heard in [*self._heard.get(topic, ())]:
            heard(text)

    async def _connect(self) -> Any:
        return await self._library.connect(**self._options)

    # ---- errors

    @property
    def _foreign_errors(self) -> tuple[type[Exception], ...]:
        return (OSError, self._library.PostgresError, *self._lost_errors)

    @property
    def _lost_errors(self) -> tuple[type[Exception], ...]:
        return (
            ConnectionError,
            self._library.InterfaceError,
            # Raised for a statement that starts while its connection breaks.
            self._library.InternalClientError,
            self._library.PostgresConnectionError,
            self._library.AdminShutdownError,
            self._library.CrashShutdownError,
        )

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate errors of the library and of the connection into SandkastenError."""
        try:
            yield
        except SandkastenError:
            raise
        except self._foreign_errors as exc:
            raise self._ours(exc) from exc

    def _ours(self, exc: Exception) -> SandkastenError:
        library = self._library
        kind = type(exc).__name__
        if isinstance(exc, library.DiskFullError):
            return QuotaExceeded(
                "the disk of the database is full, and nothing was written",
                hint="free space on the disk of the PostgreSQL server and retry",
                quota="disk",
            )
        if isinstance(exc, library.DataError):
            # Our numbers fit; texts and numbers of a request may not.
            return InvalidRequest(
                "the request contains a text or number that cannot be stored",
                hint="leave out NUL characters and lone surrogates, and keep numbers below 2**63",
            )
        if isinstance(exc, library.ClientConfigurationError):
            return InvalidConfiguration(
                "store.url, or a PG… variable that completes it, cannot be used",
                hint="check sslmode and target_session_attrs; verify-ca and verify-full need the"
                " file of sslrootcert, of PGSSLROOTCERT or ~/.postgresql/root.crt",
                setting="store.url",
            )
        refused = (
            library.InvalidAuthorizationSpecificationError,
            library.InvalidCatalogNameError,
            library.InsufficientPrivilegeError,
        )
        if isinstance(exc, refused):
            return BackendUnavailable(
                f"the database refuses this daemon ({kind})",
                hint="check user, password and database of store.url, and that the user may"
                " create a schema in it",
                store="postgres",
            )
        away = (
            OSError,
            *self._lost_errors,
            library.CannotConnectNowError,
            library.QueryCanceledError,
            library.InsufficientResourcesError,
            library.ReadOnlySQLTransactionError,
            library.IdleInTransactionSessionTimeoutError,
        )
        if isinstance(exc, away):
            return BackendUnavailable(
                f"the database does not answer ({kind})",
                hint="check that the PostgreSQL server of store.url runs and can be reached;"
                " sandboxes go on, and no restart is needed",
                store="postgres",
            )
        self._log_unexpected(exc)
        return InternalError(
            f"the database failed ({kind})", hint="see the log of the PostgreSQL server"
        )


class Refresher:
    """Call `load` after each notice of a topic, after a loss of the session, and every `every_s`
    seconds. A failure is logged, and the next call follows as usual.
    """

    def __init__(
        self, database: PostgresDatabase, topic: str, load: Callable[[], Any], every_s: float
    ) -> None:
        self._database = database
        self._topic = topic
        self._load = load
        self._every_s = every_s
        self._due = asyncio.Event()
        database.subscribe(topic, self._wake)
        self._task = asyncio.create_task(self._go())

    def _wake(self, _: str) -> None:
        self._due.set()

    async def _go(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._due.wait()
            self._due.clear()
            try:
                await self._load()
            except Exception as exc:  # noqa: BLE001  (a copy that is never read again is stale)
                event = {"what": self._topic, "error": getattr(exc, "code", type(exc).__name__)}
                log.warning("store.stale", extra={"sandkasten": event})

    async def aclose(self) -> None:
        """Stop calling `load`. Twice is fine."""
        self._database.unsubscribe(self._topic, self._wake)
        self._task.cancel()
        await asyncio.wait([self._task])


def count_of(status: str) -> int:
    """Return the number of rows in the answer to a command, such as `DELETE 3`."""
    last = status.rpartition(" ")[2]
    return int(last) if last.isdigit() else 0


def text_of(value: str) -> str:
    """Return a string that PostgreSQL can store: without NUL and lone surrogates."""
    return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def closed() -> InternalError:
    return InternalError("the database is closed", hint="the daemon is stopping; try again")


async def _check(connection: Any, timeout_s: float) -> None:
    await connection.execute("SELECT 1", timeout=timeout_s)


async def _unchanged(_connection: object) -> None:
    return None


def _library() -> Any:
    try:
        import asyncpg
    except ModuleNotFoundError as exc:
        raise InvalidConfiguration(
            f"store.url requires the library {exc.name}, which is not installed",
            hint=install_command("postgres"),
            setting="store.url",
        ) from exc
    return asyncpg
