"""50 MB of JSON in, a sum by Python inside, the answer out."""

from __future__ import annotations

import json

from sandkasten import Sandbox

ROWS = 1_000_000

CODE = """
import json
with open("/workspace/data.json") as file:
    rows = json.load(file)
with open("/workspace/answer.json", "w") as file:
    json.dump({"rows": len(rows), "sum": sum(row["value"] for row in rows)}, file)
"""


def main() -> None:
    rows = [{"id": n, "label": f"row-{n:07d}", "value": n % 1000} for n in range(ROWS)]
    data = json.dumps(rows).encode()
    with Sandbox(limits={"mem_limit_mb": 2048}) as box:
        box.write("data.json", data)
        done = box.run(CODE, timeout_seconds=100)
        if not done.ok:
            raise SystemExit(f"{done.error}\n{done.stderr}")
        answer = json.loads(box.read("answer.json"))
    print(f"{len(data) / 1e6:.0f} MB, {answer['rows']} rows, sum {answer['sum']}")


if __name__ == "__main__":
    main()
