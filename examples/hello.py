"""A first sandbox: shell state, files, a failing command; the block's end destroys it."""

from __future__ import annotations

from sandkasten import Sandbox

with Sandbox() as box:
    box.exec("cd /tmp && export A=1")
    print(box.exec("echo $A; pwd").output, end="")

    box.write("greet.py", "import sys\nprint('hello,', sys.argv[1])\n")
    result = box.exec(["python3", "/workspace/greet.py", "sandbox"])
    print(result.stdout, end="")

    failed = box.exec("ls /nowhere")
    print("exit status", failed.exit_code)
