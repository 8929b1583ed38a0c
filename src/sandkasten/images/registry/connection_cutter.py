"""Connections that can be cut from outside: at the end of an errand's time, or when called off.

A timeout of a socket begins anew with each byte, so a server that sends one now and then would
hold a reader for as long as it likes; and nobody can stop a thread that reads. A watcher holds a
second descriptor of each connection and shuts it down, which ends whatever waits on it, TLS and
proxies included. Knows nothing of HTTP; what the cut looks like is the reader's to tell.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

if TYPE_CHECKING:
    from sandkasten.images.registry.registry_http import Errand

_LOOK_EVERY_S: Final = 0.1


class Watcher:
    """Of the connections of one errand; `close` ends it."""

    def __init__(self, errand: Errand) -> None:
        self._errand = errand
        self._lock = threading.Lock()
        self._held: list[socket.socket] = []
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, manager: urllib3.PoolManager) -> None:
        """Every connection that `manager` makes from here on."""
        hold = self._hold

        class Plain(HTTPConnection):
            def _new_conn(self) -> socket.socket:
                return hold(super()._new_conn())

        class Tls(HTTPSConnection):
            def _new_conn(self) -> socket.socket:
                return hold(super()._new_conn())

        class PlainPool(urllib3.HTTPConnectionPool):
            ConnectionCls = Plain

        class TlsPool(urllib3.HTTPSConnectionPool):
            ConnectionCls: Any = Tls

        manager.pool_classes_by_scheme = {"http": PlainPool, "https": TlsPool}

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            held, self._held = self._held, []
        for one in held:
            one.close()

    def _hold(self, made: socket.socket) -> socket.socket:
        with self._lock:
            # A second descriptor: TLS takes the first one over.
            self._held.append(made.dup())
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="sandkasten-pull-watch", daemon=True
                )
                self._thread.start()
        return made

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_EVERY_S):
            if self._errand.called_off.is_set() or time.monotonic() >= self._errand.ends_at:
                # Again and again: one may have been made in this very moment.
                with self._lock:
                    for one in self._held:
                        with contextlib.suppress(OSError):
                            one.shutdown(socket.SHUT_RDWR)
