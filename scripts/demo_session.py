"""The second step of the demo: one session, its memory, its bounds. Fails when any is not so."""

from __future__ import annotations

import time

from sandkasten import QuotaExceeded, Sandbox


def told(what: str, got: object) -> None:
    print(f"   {what:<44} {got}")


def main() -> None:
    began = time.perf_counter()
    with Sandbox(limits={"memory_mb": 128, "workspace_mb": 32}) as box:
        told("ready after", f"{(time.perf_counter() - began) * 1000:.0f} ms")

        box.exec("cd /tmp && export A=1")
        remembered = box.exec("echo $A; pwd").output
        told("cd and export, then echo $A; pwd:", remembered.split())
        assert remembered == "1\n/tmp\n"

        broken = box.exec("echo 'an open quote")
        told("an open quote: exit code", broken.exit_code)
        assert broken.exit_code == 2

        late = box.exec("echo begun; sleep 60", timeout_ms=500)
        told("a command past its deadline:", f"timed_out={late.timed_out}, kept {late.stdout!r}")
        assert late.timed_out
        assert late.stdout == "begun\n"

        bomb = box.exec("python3 -c 'x = bytearray(10**10)'; python3 -c 'b\"x\" * (2 * 10**8)'")
        told("a memory bomb:", f"oom_killed={bomb.oom_killed}, exit code {bomb.exit_code}")
        assert bomb.oom_killed

        full = box.exec("head -c 100M /dev/zero > /workspace/full")
        told("100 MB into a workspace of 32:", full.stderr.strip().rpartition(": ")[2])
        assert full.exit_code != 0
        try:
            box.write("/workspace/more", bytes(4_000_000))
            raise AssertionError("a full workspace took another file")
        except QuotaExceeded as refused:
            told("the same through the file API:", refused.code)

        alive = box.exec("rm /workspace/full; echo $A; pwd").output
        told("and after all that, the same shell:", alive.split())
        assert alive == "1\n/tmp\n"
    told("and gone:", f"{[info.id for info in Sandbox.list()]}")


if __name__ == "__main__":
    main()
