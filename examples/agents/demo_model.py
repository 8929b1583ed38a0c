"""A scripted model that plays every agent of this folder, without a network.

    python demo_model.py [--port 8600]

Each function decides from the conversation alone, as a model does: the system message and the
results of tools. The tools themselves are real. Needs aiohttp.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from scripted_model import Answer, Asked, Call, ScriptedModel

COUNTS = """\
import json, sys
from collections import Counter
lines = open("log.txt").read().strip().split("\\n")
errors = [line.split("ERROR ", 1)[1] for line in lines if "ERROR" in line]
top = [{"message": text, "count": count} for text, count in Counter(errors).most_common(5)]
print(json.dumps({"total_lines": len(lines), "error_count": len(errors), "top_errors": top}))
"""

PRIMES_WRONG = """\
def primes(limit):
    return [n for n in range(2, limit) if all(n % d for d in range(2, n // 2))]

print(primes(20))
assert primes(20) == [2, 3, 5, 7, 11, 13, 17, 19]
"""
PRIMES_RIGHT = PRIMES_WRONG.replace("n // 2)", "n // 2 + 1)")

TESTS = """\
import unittest
from stats import mean


class Mean(unittest.TestCase):
    def test_of_some(self):
        self.assertEqual(mean([1, 2, 3]), 2)

    def test_of_none(self):
        self.assertEqual(mean([]), 0)


unittest.main()
"""
FIXED_HALF = "def mean(values):\n    return sum(values) / len(values) if values else None\n"
FIXED = "def mean(values):\n    return sum(values) / len(values) if values else 0\n"

SLOWEST = """\
import json, collections
times = collections.defaultdict(list)
with open("requests.json") as file:
    rows = json.load(file)
for row in rows:
    times[row["service"]].append(row["ms"])
means = {name: round(sum(all_) / len(all_), 3) for name, all_ in times.items()}
slowest = sorted(means.items(), key=lambda item: -item[1])[:3]
print(json.dumps({
    "records": len(rows),
    "slowest": [{"service": name, "mean_ms": mean} for name, mean in slowest],
}))
"""


def answer(chat: Asked) -> Answer:
    """Answer as the agent that the system message names."""
    for part, play in PARTS.items():
        if part in chat.system:
            return play(chat)
    body = {"error": {"message": "this scripted model does not know the agent"}}
    return Answer(status=400, raw=json.dumps(body).encode())


def log_analyzer(chat: Asked) -> Answer:
    if chat.turn == 0:
        log = chat.system.split('log_data = """', 1)[1].split('"""', 1)[0]
        return _calls(("sandbox_run", {"code": COUNTS, "files": {"log.txt": log}}))
    return Answer(str(chat.last["stdout"]))


def python_developer(chat: Asked) -> Answer:
    """Write a program with an error, see it fail, and fix it."""
    turns = [
        _calls(("sandbox_open", {})),
        _calls(("sandbox_fs_write", {"path": "primes.py", "contents": PRIMES_WRONG})),
        _calls(("sandbox_exec", {"cmd": ["python3", "primes.py"]})),
        _calls(("sandbox_fs_write", {"path": "primes.py", "contents": PRIMES_RIGHT})),
        _calls(("sandbox_exec", {"cmd": ["python3", "primes.py"]})),
    ]
    if chat.turn < len(turns):
        return turns[chat.turn]
    return Answer(f"primes.py prints {chat.last['stdout'].strip()}")


def code_analyzer(chat: Asked) -> Answer:
    issue = "mean([]) divides by zero"
    turns = [
        _calls(("sandbox_fs_write", {"path": "stats.py", "contents": chat.user})),
        _calls(("sandbox_exec", {"command": "python3 -c 'import stats; stats.mean([])'"})),
        _calls(("sandbox_fs_write", {"path": "analysis.md", "contents": f"- {issue}\n"})),
    ]
    return turns[chat.turn] if chat.turn < len(turns) else Answer(json.dumps({"issues": [issue]}))


def code_fixer(chat: Asked) -> Answer:
    """Fix half of the problem, unless a test report exists already."""
    if chat.turn == 0:
        names = ("analysis.md", "test-report.txt")
        return _calls(*(("sandbox_fs_read", {"path": name}) for name in names))
    if chat.turn == 1:
        code = FIXED if "FAILED" in str(chat.last.get("contents", "")) else FIXED_HALF
        return _calls(("sandbox_fs_write", {"path": "stats.py", "contents": code}))
    return Answer("mean() of no values has a value now")


def test_runner(chat: Asked) -> Answer:
    turns = [
        _calls(("sandbox_fs_write", {"path": "test_stats.py", "contents": TESTS})),
        _calls(("sandbox_exec", {"command": "python3 test_stats.py > test-report.txt 2>&1"})),
    ]
    if chat.turn < len(turns):
        return turns[chat.turn]
    passed = chat.last["exit_code"] == 0
    return Answer(json.dumps({"all_passed": passed, "report": "test-report.txt"}))


def json_analyst(chat: Asked) -> Answer:
    key = chat.user.rsplit(maxsplit=1)[-1]
    turns = [
        _calls(
            ("sandbox_stage_file", {"file_key": key, "destination": "requests.json"}),
            ("sandbox_fs_write", {"path": "slowest.py", "contents": SLOWEST}),
        ),
        _calls(("sandbox_exec", {"cmd": ["python3", "slowest.py"]})),
    ]
    return turns[chat.turn] if chat.turn < len(turns) else Answer(str(chat.last["stdout"]))


PARTS = {
    "You are a log analysis agent": log_analyzer,
    "You are a Python developer agent": python_developer,
    "You are a code analyzer": code_analyzer,
    "You are a code fixer": code_fixer,
    "You are a test runner": test_runner,
    "You analyze a JSON file": json_analyst,
}


def _calls(*calls: tuple[str, dict[str, Any]]) -> Answer:
    return Answer(calls=[Call(name, arguments) for name, arguments in calls])


async def _serve(port: int) -> None:
    async with ScriptedModel(answer, port=port) as model:
        print(model.base_url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--port", type=int, default=8600, help="0 selects a free port")
    asyncio.run(_serve(arguments.parse_args().port))
