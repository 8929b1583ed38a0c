"""Files of a one-shot by their key, over HTTP, the SDK and the command line of a whole daemon."""

from __future__ import annotations

from sandkasten.client.run_once import run_async
from tests.api.daemon_with_database import AS_OPERATOR, OPERATOR, new_key
from tests.api.test_quotas import AS_ACME, whole_daemon

CODE = "import os; print(sorted(os.listdir('.')), os.path.getsize('in.csv'))"


async def test_a_stored_file_reaches_the_code_by_its_key(tmp_path):
    async with whole_daemon(tmp_path) as daemon:
        data = b"x" * (900_000)
        put = await daemon.ask("POST", "/v1/files?key=data/in.csv", data=data, headers=AS_ACME)
        assert put.status == 201, put.raw
        for files in (
            {"in.csv": {"file_key": "data/in.csv"}},
            [{"file_key": "data/in.csv"}],
            [{"file_key": "data/in.csv", "destination": "in.csv"}],
        ):
            body = {"code": CODE, "files": files}
            reply = await daemon.ask("POST", "/v1/run", body, headers=AS_ACME)
            assert reply.status == 200, reply.raw
            assert reply.json["stdout"] == f"['in.csv', 'main.py'] {900_000}\n"
        put = await daemon.ask("POST", "/v1/files?key=in.csv", data=data, headers=AS_OPERATOR)
        assert put.status == 201, put.raw
        result = await run_async(
            CODE, files={"in.csv": {"file_key": "in.csv"}}, url=daemon.url, api_key=OPERATOR
        )
        assert result.stdout == f"['in.csv', 'main.py'] {900_000}\n"
        wrong: list[object] = [[{"path": "x"}], [{"file_key": "a", "pth": "x"}], "a", [1]]
        for one in wrong:
            bad = {"code": "", "files": one}
            assert (await daemon.ask("POST", "/v1/run", bad, headers=AS_ACME)).status == 422
        # The operator is another tenant.
        for key in ("data/in.csv", "nothing"):
            missing = await daemon.ask(
                "POST", "/v1/run", {"code": "", "files": [{"file_key": key}]}, headers=AS_OPERATOR
            )
            assert (missing.status, missing.json["code"]) == (404, "FILE_NOT_FOUND")


async def test_a_key_without_the_scope_cannot_name_stored_files(tmp_path):
    async with whole_daemon(tmp_path) as daemon:
        mine = await new_key(daemon, tenant="acme", scopes=["sessions"])
        files = [{"file_key": "data/in.csv"}]
        reply = await daemon.ask("POST", "/v1/run", {"code": "", "files": files}, headers=mine)
        assert (reply.status, reply.json["code"]) == (403, "FORBIDDEN")
        fine = await daemon.ask("POST", "/v1/run", {"code": "print(1)"}, headers=mine)
        assert fine.json["stdout"] == "1\n"
        body = {"arguments": {"code": "", "files": files}, "session": "s"}
        tool = await daemon.ask("POST", "/v1/tools/sandbox_run", body, headers=mine)
        assert tool.json["code"] == "FORBIDDEN", tool.raw
