"""What a program for E2B does with `E2B_DOMAIN` alone; prints what was seen as JSON.

Runs in the environment of other implementations' clients, where the names of the domain are known.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request

from e2b import Sandbox
from e2b_code_interpreter import Sandbox as CodeSandbox

ECHO = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        open("/home/user/host", "w").write(self.headers["Host"])
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


def main():
    box = Sandbox.create(timeout=300)
    seen = {"id": box.sandbox_id, "host": box.get_host(8000)}
    seen["run"] = box.commands.run("echo $((6 * 7))").stdout
    box.files.write("/home/user/a.txt", "grüße")
    seen["read"] = box.files.read("/home/user/a.txt")
    # By another TLS library than the SDK's.
    with urllib.request.urlopen(box.download_url("/home/user/a.txt")) as found:
        seen["url"] = found.read().decode()
    with urllib.request.urlopen(box.download_url("a.txt").replace("49983-", "49999-")) as found:
        seen["other port"] = found.read().decode()
    seen["listed"] = [one.sandbox_id == box.sandbox_id for one in Sandbox.list().next_items()]
    again = Sandbox.connect(box.sandbox_id)
    seen["again"] = [again.sandbox_id == box.sandbox_id, again.files.exists("/home/user/a.txt")]
    code = CodeSandbox.connect(box.sandbox_id)
    default = next(one for one in code.list_code_contexts() if one.language == "python")
    code.restart_code_context(default)
    seen["contexts"] = [default.id, default.cwd, code.run_code("6 * 7", context=default).text]
    started = [one for one in code.list_code_contexts() if one.language == "python"]
    seen["contexts"] += [len(started), started[0].id != default.id]

    box.commands.run("python3 -m http.server 8000 --bind 127.0.0.1", background=True)
    token = {"e2b-traffic-access-token": box.traffic_access_token}
    deadline = time.monotonic() + 40
    while (seen_now := fetched(box.get_host(8000), token)) == 502 and time.monotonic() < deadline:
        time.sleep(0.05)
    seen["port"] = seen_now
    seen["no token"] = fetched(box.get_host(8000), {})
    seen["false token"] = fetched(box.get_host(8000), {"e2b-traffic-access-token": "0" * 64})
    seen["key"] = fetched("api." + os.environ["E2B_DOMAIN"] + "/sandboxes", {"X-API-KEY": "wrong"})
    seen["our api"] = fetched("api." + os.environ["E2B_DOMAIN"] + "/v1/sessions", {})
    other = box.sandbox_id[:-16] + "0123456789abcdef"
    seen["other sandbox"] = fetched(
        f"49983-{other}.{os.environ['E2B_DOMAIN']}/health",
        {"E2b-Sandbox-Id": box.sandbox_id, "X-Access-Token": box._envd_access_token},
    )
    network = {"allow_public_traffic": True, "mask_request_host": "own.example:${PORT}"}
    opened = Sandbox.create(timeout=300, network=network)
    opened.files.write("/home/user/echo.py", ECHO)
    opened.commands.run("python3 /home/user/echo.py", background=True)
    while (seen_now := fetched(opened.get_host(8000), {})) == 502 and time.monotonic() < deadline:
        time.sleep(0.05)
    seen["public"] = [seen_now, opened.files.read("/home/user/host")]
    opened.kill()
    closed = Sandbox.create(timeout=300, network={"allow_public_traffic": False})
    seen["closed"] = fetched(closed.get_host(8000), {})
    closed.kill()
    seen["woken"] = woken()
    seen["kill"] = [box.kill(), box.is_running()]
    return seen


def woken():
    """A request to a port resumes a sandbox that paused at its timeout."""
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    box = Sandbox.create(timeout=300, lifecycle=lifecycle)
    box.commands.run("python3 -m http.server 8000 --bind 127.0.0.1", background=True)
    token = {"e2b-traffic-access-token": box.traffic_access_token}
    deadline = time.monotonic() + 40
    while fetched(box.get_host(8000), token) == 502 and time.monotonic() < deadline:
        time.sleep(0.05)
    box.set_timeout(0)
    while box.get_info().state.value != "paused" and time.monotonic() < deadline:
        time.sleep(0.05)
    seen = [box.get_info().state.value, fetched(box.get_host(8000), {})]
    # Only a sandbox that runs answers; a second later it pauses again.
    seen += [box.get_info().state.value, fetched(box.get_host(8000), token)]
    box.kill()
    return seen


def fetched(where, headers):
    try:
        request = urllib.request.Request(f"https://{where}", headers=headers)
        with urllib.request.urlopen(request) as found:
            return found.status
    except urllib.error.HTTPError as exc:
        return exc.code


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main()))
