"""The packages of other projects: what is locked, under which licence, and what requires it.

    dependencies.py     writes requirements/packages.json from the locks, and prints what changed

`make lock` runs it. It asks the index about Python packages that are new. All else, the
page docs/reference/dependencies.md and the tests included, reads only files of the repository.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "requirements" / "packages.json"
# What people decide about packages: purposes and keepers, licences, duplicates.
NOTES = ROOT / "requirements" / "dependencies.toml"
CRATES = {"": "runner/crates.lock", "1": "runner/fuzz/crates.lock"}
NPM = ("dashboard", "sdks/typescript", "examples/typescript")
_PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)(?:\[[a-z0-9,-]+\])?==([^\s;\\]+)(.*)$", re.MULTILINE)
_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "GNU General Public License v3 or later (GPLv3+)": "GPL-3.0-or-later",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
_SPELLINGS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "mit": "MIT",
}
Packages = dict[str, dict[str, dict[str, Any]]]


def python_pins() -> dict[tuple[str, str], str]:
    """Return the marker of every version in requirements/, by name and version."""
    pins = {}
    for lock in sorted((ROOT / "requirements").rglob("*.txt")):
        for name, version, rest in _PIN.findall(lock.read_text()):
            pins[name, version] = rest.strip(" \\;")
    return pins


def locked() -> dict[str, set[tuple[str, str]]]:
    """Return names and versions of all locks, by ecosystem."""
    locks = [crates(lock) for lock in CRATES.values()]
    return {
        "python": set(python_pins()),
        "rust": {(name, version) for lock in locks for name, version, checked in lock if checked},
        "npm": {(name, p["version"]) for lock in NPM for name, p in _npm(lock)},
    }


def crates(lock: str) -> list[tuple[str, str, bool]]:
    """Return names and versions of a lock, and whether each has a checksum: our crate has none."""
    packages = tomllib.loads((ROOT / lock).read_text())["package"]
    return [(package["name"], package["version"], "checksum" in package) for package in packages]


def read() -> Packages:
    packages: Packages = json.loads(FILE.read_text())
    return packages


def notes() -> dict[str, Any]:
    return tomllib.loads(NOTES.read_text())


def direct() -> dict[str, dict[str, list[str]]]:
    """Return the packages that our own files name, by ecosystem, each with what needs it."""
    named: dict[str, dict[str, list[str]]] = {"python": {}, "rust": {}, "npm": {}}

    def add(ecosystem: str, name: str, needed_by: str) -> None:
        users = named[ecosystem].setdefault(name, [])
        if needed_by not in users:
            users.append(needed_by)

    for file in sorted(ROOT.glob("**/pyproject.toml")):
        parts = file.relative_to(ROOT).parts
        if parts[0] in (".venv", "build") or "node_modules" in parts:
            continue
        table = tomllib.loads(file.read_text())
        project = table["project"]
        extras = project.get("optional-dependencies", {})
        for extra, lines in [("", project.get("dependencies", [])), *extras.items()]:
            for line in lines:
                add("python", _name(line), project["name"] + (f"[{extra}]" if extra else ""))
        for line in table["build-system"]["requires"]:
            add("python", _name(line), "wheels")
    for file in sorted((ROOT / "requirements").rglob("*.in")):
        for line in file.read_text().splitlines():
            if line and not line.startswith("#"):
                add("python", _name(line), str(file.relative_to(ROOT)))
    cargo = tomllib.loads((ROOT / "runner/Cargo.toml").read_text())
    for name in cargo["dependencies"]:
        add("rust", name, "sandkasten-runtime")
    fuzz = tomllib.loads((ROOT / "runner/fuzz/manifest.toml").read_text())
    for name in fuzz["target"]["cfg(fuzzing)"]["dependencies"]:
        add("rust", name, "make fuzz")
    for place in NPM:
        package = json.loads((ROOT / place / "package.json").read_text())
        for kind in ("dependencies", "devDependencies"):
            for name, version in package.get(kind, {}).items():
                if not version.startswith("file:"):
                    add("npm", name, place)
    own = {name for name in named["python"] if name.startswith("sandkasten-")}
    named["python"] = {name: by for name, by in named["python"].items() if name not in own}
    return named


def _name(line: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", line.strip())[0].lower())


def _npm(place: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the packages of a package-lock.json that come from a registry."""
    packages = json.loads((ROOT / place / "package-lock.json").read_text())["packages"]
    names = ((key.rpartition("node_modules/")[2], package) for key, package in packages.items())
    return [(name, package) for name, package in names if name and "integrity" in package]


def collect(before: Packages) -> Packages:
    """Return the licence and the requirements of every locked package."""
    packages: Packages = {"python": {}, "rust": {}, "npm": {}}
    for (name, version), about in _python(before.get("python", {})).items():
        packages["python"].setdefault(name, {})[version] = about
    for fuzz in CRATES:
        words = [str(ROOT / "runner/cargo.sh"), "metadata", "--format-version", "1"]
        target = ROOT / "build" / ("fuzz" if fuzz else "runner-dev")
        environment = {**os.environ, "RUNNER_FUZZ": fuzz, "CARGO_TARGET_DIR": str(target)}
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True)
        for crate in json.loads(done.stdout)["packages"]:
            if crate["source"]:
                requires = {d["name"] for d in crate["dependencies"] if d["kind"] != "dev"}
                # Old crates write a choice with a slash.
                license_ = re.sub(" ?/ ?", " OR ", crate["license"] or "")
                about = {"license": license_, "requires": sorted(requires)}
                packages["rust"].setdefault(crate["name"], {})[crate["version"]] = about
    for place in NPM:
        for name, package in _npm(place):
            kinds = (package.get(kind, {}) for kind in ("dependencies", "optionalDependencies"))
            needed = sorted({name for kind in kinds for name in kind})
            about = {"license": package.get("license", ""), "requires": needed}
            packages["npm"].setdefault(name, {})[package["version"]] = about
    for table in packages.values():
        for about in (about for versions in table.values() for about in versions.values()):
            about["requires"] = [name for name in about["requires"] if name in table]
    return packages


def _python(before: dict[str, dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return all Python packages; ask the index for those that were not there before."""
    from packaging.markers import Marker

    packages, here, elsewhere = {}, [], []
    for (name, version), marker in sorted(python_pins().items()):
        if version in before.get(name, {}):
            packages[name, version] = before[name][version]
        elif not marker or Marker(marker).evaluate():
            here.append((name, version))
        else:
            elsewhere.append((name, version))
    other = ["--platform=win_amd64", "--python-version=3.14", "--only-binary=:all:", "--target=."]
    for options, pins in (([], here), (other, elsewhere)):
        while pins:
            # One version of a name at a time.
            batch = dict(reversed(pins))
            pins = [pin for pin in pins if batch[pin[0]] != pin[1]]
            packages |= _metadata(options, batch)
    return packages


def _metadata(options: list[str], pins: dict[str, str]) -> dict[tuple[str, str], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.json"
        words = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
        words += ["--no-deps", "--quiet", f"--report={report}", *options]
        subprocess.run([*words, *(f"{n}=={v}" for n, v in pins.items())], cwd=place, check=True)
        installs = json.loads(report.read_text())["install"]
    packages = {}
    for metadata in (install["metadata"] for install in installs):
        lines = [line for line in metadata.get("requires_dist", []) if "extra ==" not in line]
        about = {"license": _license(metadata), "requires": sorted({_name(x) for x in lines})}
        packages[_name(metadata["name"]), metadata["version"]] = about
    return packages


def _license(metadata: dict[str, Any]) -> str:
    """Return an SPDX expression, or the empty string."""
    if "license_expression" in metadata:
        return str(metadata["license_expression"])
    stated = metadata.get("license", "").strip()
    stated = _SPELLINGS.get(stated, stated)
    if stated in _CLASSIFIERS.values():
        return str(stated)
    classifiers = (c.rpartition(" :: ")[2] for c in metadata.get("classifier", []))
    known = sorted({_CLASSIFIERS[c] for c in classifiers if c in _CLASSIFIERS})
    return " AND ".join(known) or (stated if len(stated) < 40 and stated != "UNKNOWN" else "")


def changes(before: Packages, after: Packages) -> list[str]:
    """Return a line for each package that was added, removed, or has other versions."""
    lines = []
    for ecosystem, table in after.items():
        old = before.get(ecosystem, {})
        for name in sorted(old.keys() | table.keys()):
            was, now = ", ".join(sorted(old.get(name, {}))), ", ".join(sorted(table.get(name, {})))
            if was != now:
                lines.append(f"{ecosystem} {name}: {was or 'added'} -> {now or 'removed'}")
    return lines


def page() -> list[str]:
    """Return the lines of the reference page below its head."""
    packages, named, about = read(), direct(), notes()
    lines = ["## Direct dependencies", ""]
    titles = {"python": "Python", "rust": "Rust", "npm": "npm"}
    for ecosystem, title in titles.items():
        lines += [
            f"### {title}",
            "",
            "| package | version | licence | purpose | kept by | needed by |",
        ]
        lines.append("|---|---|---|---|---|---|")
        for name, users in sorted(named[ecosystem].items()):
            note, versions = about[ecosystem][name], packages[ecosystem][name]
            cells = [f"`{name}`", ", ".join(versions), _licenses(name, versions, about)]
            cells += [note["purpose"], note["keeper"], ", ".join(f"`{user}`" for user in users)]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += ["## Dependencies of dependencies", ""]
    for ecosystem, title in titles.items():
        lines += [
            f"### {title}",
            "",
            "| package | version | licence | required by |",
            "|---|---|---|---|",
        ]
        parents: dict[str, set[str]] = {}
        for parent, versions in packages[ecosystem].items():
            for name in (name for version in versions.values() for name in version["requires"]):
                parents.setdefault(name, set()).add(parent)
        for name, versions in sorted(packages[ecosystem].items()):
            if name not in named[ecosystem]:
                by = ", ".join(sorted(parents.get(name, set()))) or "an extra of another package"
                license = _licenses(name, versions, about)
                lines.append(f"| `{name}` | {', '.join(versions)} | {license} | {by} |")
        lines.append("")
    return lines


def _licenses(name: str, versions: dict[str, Any], about: dict[str, Any]) -> str:
    stated = about["licenses"]["stated"].get(name)
    return stated or ", ".join(sorted({version["license"] for version in versions.values()}))


def main() -> None:
    before = read() if FILE.exists() else {}
    after = collect(before)
    FILE.write_text(json.dumps(after, indent=0, sort_keys=True) + "\n")
    print("\n".join(changes(before, after)) or "no package changed")


if __name__ == "__main__":
    main()
