"""A Jupyter kernel for bash. The engine sends it into sandboxes; it runs there with ipykernel.

One bash stays for all cells. It is interactive, because only such a bash goes on with its input
after an interrupt. A cell is a file, evaluated with no input; its exit status comes back on a
descriptor of its own. A status other than 0 is an error named ExitStatus.
"""

from __future__ import annotations

import codecs
import importlib
import os
import selectors
import signal
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

START = "set +H +o history; PS1= PS2= PROMPT_COMMAND=; unset HISTFILE\n"
PIECE = 65536


class Bash:
    """One bash process."""

    def __init__(self) -> None:
        self.cell = os.path.join(tempfile.mkdtemp(prefix="bash-"), "cell")
        self.ended, self.end = os.pipe()
        take_no_interrupt()
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "--noediting", "-i"],  # noqa: S607
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(self.end,),
        )
        os.close(self.end)
        assert self.process.stdout
        assert self.process.stderr
        self.streams = {
            self.process.stdout.fileno(): "stdout",
            self.process.stderr.fileno(): "stderr",
        }
        self.ready = selectors.DefaultSelector()
        for number in (self.ended, *self.streams):
            os.set_blocking(number, False)
            self.ready.register(number, selectors.EVENT_READ)
        self.run(START, lambda *_: None)

    def run(self, code: str, show: Callable[[str, str], object]) -> int:
        """Run code and return its exit status; end this process if bash ended.

        `show` gets the name of a stream and what was written to it.
        """
        take_no_interrupt()
        with open(self.cell, "w", errors="surrogateescape") as file:
            file.write(code + "\n")
        line = f". {self.cell} </dev/null {self.end}>&-\necho $? >&{self.end}\n"
        assert self.process.stdin
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()
        decoders = {
            number: codecs.getincrementaldecoder("utf-8")("replace") for number in self.streams
        }
        status, last = b"", False
        while True:
            # After the status, only what is in the pipes already.
            ready = [key.fd for key, _ in self.ready.select(0 if last else None)]
            for number in ready:
                data = os.read(number, PIECE)
                if number == self.ended:
                    status += data
                    if not data:
                        os._exit(self.process.wait())
                elif not data:
                    self.ready.unregister(number)  # `exec >file` has closed it
                else:
                    show(self.streams[number], decoders[number].decode(data))
            if last and not ready:
                return int(status)
            last = status.endswith(b"\n")


def take_no_interrupt() -> None:
    """Leave interrupts to bash, which gets them too. Commands would inherit SIG_IGN."""
    signal.signal(signal.SIGINT, lambda *_: None)


def main() -> None:
    # By name: ipykernel is a library of the image, not of the engine.
    base: Any = importlib.import_module("ipykernel.kernelbase").Kernel

    class BashKernel(base):  # type: ignore[misc]
        implementation = "sandkasten-bash"
        implementation_version = "1"
        language_info = {"name": "bash", "mimetype": "text/x-sh", "file_extension": ".sh"}
        banner = "bash"

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.bash = Bash()

        def do_execute(self, code: str, silent: bool, *_: Any, **__: Any) -> dict[str, Any]:
            def show(stream: str, text: str) -> None:
                if not silent:
                    shown = {"name": stream, "text": text}
                    self.send_response(self.iopub_socket, "stream", shown)

            status = self.bash.run(code, show)
            count = {"execution_count": self.execution_count}
            if status == 0:
                return {"status": "ok", "user_expressions": {}, **count}
            error = {"ename": "ExitStatus", "evalue": str(status), "traceback": []}
            if not silent:
                self.send_response(self.iopub_socket, "error", error)
            return {"status": "error", **error, **count}

    importlib.import_module("ipykernel.kernelapp").IPKernelApp.launch_instance(
        kernel_class=BashKernel
    )


if __name__ == "__main__":
    main()
