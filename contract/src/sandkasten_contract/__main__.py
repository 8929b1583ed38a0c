"""Run the contract on an installed backend: `sandkasten-contract NAME --image IMAGE`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from sandkasten_contract import suite_options


def main() -> int:
    """Return the exit status of pytest."""
    parser = argparse.ArgumentParser(
        prog="sandkasten-contract",
        description="Run the tests that every backend of Sandkasten passes.",
        epilog="Further arguments are arguments of pytest.",
    )
    parser.add_argument("backend", help="the name of an installed backend")
    parser.add_argument("--image", default="host", help="an image of the store; default: host")
    parser.add_argument(
        "--lacks",
        action="append",
        default=[],
        metavar="PROGRAM",
        help="a program that the image does not have (repeatable): tests that need it are left out",
    )
    options, rest = parser.parse_known_args()
    suite_options.chosen = suite_options.SuiteOptions(
        options.backend, options.image, frozenset(options.lacks)
    )
    suite = Path(__file__).with_name("suite")
    return int(
        pytest.main(
            [
                *("--rootdir", str(suite), "-c", str(suite / "pytest.ini")),
                *("-p", "no:cacheprovider", "--import-mode=importlib", str(suite), *rest),
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(main())
