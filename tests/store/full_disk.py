"""Run in a private mount namespace: the database on a 4 MB file system that is filled and emptied.

Prints one JSON document of what happened, which the test checks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

from sandkasten.errors import SandkastenError
from sandkasten.model.access.api_keys import DEFAULT_SCOPES, make_key
from sandkasten.model.access.tenancy import TenantQuota
from sandkasten.model.audit_records import AuditRow
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.journal_rows import ExecRow, KeyRow, SessionRow
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.daemon.persistent_stores import Books, open_books
from tests.api.daemon_in_process import serving


async def pieces(data: bytes):
    yield data


async def attempt(work) -> str:
    try:
        await work
    except SandkastenError as exc:
        return f"{exc.code} {exc.details.get('quota')}"
    return "ok"


def key() -> tuple[KeyRow, bytes]:
    made = make_key()
    return KeyRow(made.id, "default", "", DEFAULT_SCOPES, 1.0, TenantQuota()), made.hashed


def fill(place: Path) -> None:
    with contextlib.suppress(OSError), (place / "ballast").open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


async def asked(daemon) -> list[int]:
    return [
        (await daemon.ask("POST", "/v1/keys", {"name": "k" * 100})).status,
        (await daemon.ask("POST", "/v1/sessions", {"labels": {"pad": "x"}})).status,
        (await daemon.ask("GET", "/v1/keys")).status,
    ]


async def begin(books: Books, begun: list[str]) -> str:
    the_id = new_sandbox_id()
    row = SessionRow(the_id, "default", "host", "local", 1.0, labels={"pad": "x" * 8000})
    told = await attempt(books.journal.begin_session(row))
    if told == "ok":
        begun.append(the_id)
    return told


async def audited(books: Books, row: AuditRow) -> None:
    assert books.audit is not None
    await books.audit.record_lasting(row)


async def main(place: Path) -> dict[str, object]:
    # A disk of four megabytes never has the space that a create leaves free.
    variables = {"SANDKASTEN_DISK_MIN_FREE_MB": "0"}
    settings = load({"data_dir": str(place), "backend": "local"}, variables, place)
    begun: list[str] = []
    found: dict[str, object] = {}
    async with open_books(settings, SystemClock()) as books:
        found["before"] = await begin(books, begun)
        fill(place)
        told = "ok"
        while told == "ok":
            told = await begin(books, begun)
            fill(place)
        found["full"] = told
        found["many at once"] = sorted(
            set(await asyncio.gather(*(begin(books, begun) for _ in range(20))))
        )
        found["audit"] = await attempt(
            audited(books, AuditRow(0, 1.0, "t", None, "a.b", "x" * 9000, "ok"))
        )
        row, hashed = key()
        found["key"] = await attempt(books.keys.add(row, hashed))
        found["key works"] = books.keys.check(hashed, 2.0) is not None
        found["file"] = await attempt(books.files.put("t", "k", pieces(b"y" * 100_000)))
        books.journal.note_exec(ExecRow("exe_1", begun[0], "t", "z" * 4000, "running", 1.0))
        found["flush"] = await attempt(books.journal.flush())
        found["read"] = len(await books.journal.sessions(None)) == len(begun)
        engine = await open_engine(settings, journal=books.journal)
        async with serving(
            engine, journal=books.journal, audit=books.audit, keys=books.keys
        ) as daemon:
            found["over http"] = await asked(daemon)
            (place / "ballast").unlink()
            found["over http, after"] = await asked(daemon)
            begun += [one.id for one in await engine.list()]
            for info in await engine.list():
                await engine.destroy(info.id)
        await engine.aclose()
        found["after"] = [
            await begin(books, begun),
            await attempt(audited(books, AuditRow(0, 1.0, "t", None, "a.b", "x", "ok"))),
            await attempt(books.keys.add(row, hashed)),
            await attempt(books.files.put("t", "k", pieces(b"y" * 100_000))),
            await attempt(books.journal.flush()),
        ]
        found["exec"] = [one.id for one in await books.journal.execs(begun[0])]
        found["making"] = os.listdir(place / "files" / "making")
    async with open_books(settings, SystemClock()) as books:
        kept = {one.id for one in await books.journal.sessions(None, limit=10**6)}
        found["kept"] = kept == set(begun)
        found["files"] = [one.key for one in await books.files.list("t")]
    return found


if __name__ == "__main__":
    target = Path(sys.argv[1])
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(target)], check=True
    )
    sys.stdout.write(json.dumps(asyncio.run(main(target))))
