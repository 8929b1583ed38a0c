"""Show and check the state and the limits of one session: step 2 of the demo."""

from __future__ import annotations

import time

from sandkasten import QuotaExceeded, Sandbox


def report(label: str, value: object) -> None:
    print(f"   {label:<44} {value}")


def main() -> None:
    started = time.perf_counter()
    with Sandbox(limits={"memory_mb": 128, "workspace_mb": 32}) as box:
        report("ready after", f"{(time.perf_counter() - started) * 1000:.0f} ms")

        box.exec("cd /tmp && export A=1")
        remembered = box.exec("echo $A; pwd").output
        report("cd and export, then echo $A; pwd:", remembered.split())
        assert remembered == "1\n/tmp\n"

        broken = box.exec("echo 'an open quote")
        report("an open quote: exit code", broken.exit_code)
        assert broken.exit_code == 2

        late = box.exec("echo started; sleep 60", timeout_ms=500)
        report("a command past its deadline:", f"timed_out={late.timed_out}, kept {late.stdout!r}")
        assert late.timed_out
        assert late.stdout == "started\n"

        bomb = box.exec("python3 -c 'x = bytearray(10**10)'; python3 -c 'b\"x\" * (2 * 10**8)'")
        report("a memory bomb:", f"oom_killed={bomb.oom_killed}, exit code {bomb.exit_code}")
        assert bomb.oom_killed

        full = box.exec("head -c 100M /dev/zero > /workspace/full")
        report("100 MB into a workspace of 32:", full.stderr.strip().rpartition(": ")[2])
        assert full.exit_code != 0
        try:
            box.write("/workspace/more", bytes(4_000_000))
            raise AssertionError("a full workspace accepted another file")
        except QuotaExceeded as refused:
            report("the same through the file API:", refused.code)

        alive = box.exec("rm /workspace/full; echo $A; pwd").output
        report("afterwards, the same shell:", alive.split())
        assert alive == "1\n/tmp\n"
    report("sandboxes left:", f"{[info.id for info in Sandbox.list()]}")


if __name__ == "__main__":
    main()
