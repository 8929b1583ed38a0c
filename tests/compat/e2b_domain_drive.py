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
    seen["contexts"] = CodeSandbox.connect(box.sandbox_id).list_code_contexts()

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
    seen["kill"] = [box.kill(), box.is_running()]
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
