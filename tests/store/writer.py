"""A process that writes to the database of a directory until it is killed.

Prints one line `kind id` after each acknowledged call.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from sandkasten.model.access.api_keys import DEFAULT_SCOPES, make_key
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.audit_records import AuditRow
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.journal_rows import KeyRow, SessionRow
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.daemon.persistent_stores import Books, open_books


def content(key: str) -> bytes:
    return key.encode() * 200


async def pieces(data: bytes):
    for at in range(0, len(data), 1000):
        yield data[at : at + 1000]


def said(kind: str, the_id: str) -> None:
    os.write(1, f"{kind} {the_id}\n".encode())


async def write(books: Books, number: int) -> None:
    while True:
        the_id = new_sandbox_id()
        if number % 4 == 0:
            await books.journal.begin_session(
                SessionRow(the_id, "default", "host", "local", 1.0, labels={"pad": "x" * 2000})
            )
            said("session", the_id)
            await books.journal.end_session(the_id, "destroyed", 2.0)
            said("ended", the_id)
        elif number % 4 == 1:
            assert books.audit is not None
            await books.audit.record_lasting(AuditRow(0, 1.0, "default", None, "a.b", the_id, "ok"))
            said("audit", the_id)
        elif number % 4 == 2:
            key = make_key()
            row = KeyRow(key.id, "default", "", DEFAULT_SCOPES, 1.0, TenantQuota())
            await books.keys.add(row, key.hashed)
            said("key", key.id)
        else:
            await books.files.put("default", the_id, pieces(content(the_id)))
            said("file", the_id)


async def main(data_dir: str) -> None:
    settings = load({"data_dir": data_dir, "backend": "local"}, {}, Path(data_dir))
    async with open_books(settings, SystemClock()) as books, asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(write(books, number))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
