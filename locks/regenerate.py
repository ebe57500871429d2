#!/usr/bin/env python3
"""Resolve a runtime lock anew from its own header: ``python3 locks/regenerate.py LOCK``.

The header is the recipe: ``distribution`` and ``engine-version`` say what is asked of the index,
``excluded`` what is left out. The figures (``glibc``, ``packages``, ``download-bytes``,
``installed-bytes``) and the pins are rewritten; every other line is kept as it is.

Needs the interpreter the lock is for, with ``venv``, about three times ``download-bytes`` of room in
``TMPDIR``, and pip's ordinary configuration, to which the header's ``extra-index`` is added.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Dict, List, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "module_utils"))

from draftgate.runtime_lock import Lock, normalized_name, parse_lock, parse_wheel_name

_GLIBC_TAG = re.compile(r"manylinux_2_(\d+)_")


class Pin(NamedTuple):
    name: str
    version: str
    sha256: str
    download_bytes: int
    installed_bytes: int

    def line(self) -> str:
        return (
            f"{self.name}=={self.version} --hash=sha256:{self.sha256}"
            f"  # bytes={self.download_bytes}/{self.installed_bytes}"
        )


def resolve(pip: List[str], lock: Lock, index: str, work: Path) -> Dict[str, Dict[str, str]]:
    """What pip would install into an empty environment: name -> version and sha256, without the excluded."""
    report, wanted = work / "report.json", work / "wanted.txt"
    wanted.write_text(f"{index}{lock.distribution}=={lock.engine_version}\n", encoding="utf-8")
    subprocess.run(
        [*pip, "install", "--dry-run", "--ignore-installed", "--only-binary", ":all:"]
        + ["--report", str(report), "-r", str(wanted)],
        check=True,
    )
    found: Dict[str, Dict[str, str]] = {}
    for item in json.loads(report.read_text(encoding="utf-8"))["install"]:
        name = normalized_name(item["metadata"]["name"])
        if name not in lock.excluded:
            digest = item["download_info"]["archive_info"]["hash"]
            found[name] = {"version": item["metadata"]["version"], "sha256": digest.split("=", 1)[1]}
    return found


def measure(pip: List[str], found: Dict[str, Dict[str, str]], index: str, work: Path) -> List[Pin]:
    """The same files fetched by their hashes, for their sizes: also the proof that the pins alone resolve."""
    requirements, wheels = work / "requirements.txt", work / "wheels"
    lines = [f"{name}=={pin['version']} --hash=sha256:{pin['sha256']}" for name, pin in found.items()]
    requirements.write_text(index + "\n".join(lines) + "\n", encoding="utf-8")
    subprocess.run(
        [*pip, "download", "--no-deps", "--require-hashes", "--dest", str(wheels), "-r", str(requirements)],
        check=True,
    )
    pins = []
    for wheel in sorted(wheels.iterdir()):
        name = parse_wheel_name(wheel.name)[0]
        with zipfile.ZipFile(wheel) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        pins.append(Pin(name, found[name]["version"], found[name]["sha256"], wheel.stat().st_size, unpacked))
    return sorted(pins)


def glibc_minimum(work: Path) -> str:
    """The newest glibc that a wheel is built against; a wheel of several tags needs only its oldest."""
    needs = [
        min(int(minor) for minor in minors)
        for minors in (_GLIBC_TAG.findall(wheel.name) for wheel in (work / "wheels").iterdir())
        if minors
    ]
    return f"2.{max(needs)}"


def render(text: str, pins: List[Pin], glibc: str) -> str:
    figures = {
        "glibc": glibc,
        "packages": str(len(pins)),
        "download-bytes": str(sum(pin.download_bytes for pin in pins)),
        "installed-bytes": str(sum(pin.installed_bytes for pin in pins)),
    }
    header = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            break
        key = line[1:].split(":", 1)[0].strip()
        header.append(f"# {key}: {figures[key]}" if key in figures else line)
    return "\n".join(header).rstrip() + "\n\n" + "".join(pin.line() + "\n" for pin in pins)


def main() -> int:
    parser = argparse.ArgumentParser(description="Resolve a runtime lock anew from its own header.")
    parser.add_argument("lock", type=Path)
    parser.add_argument("--python", default="/usr/bin/python3", help="the interpreter the lock is for")
    parser.add_argument("--extra-index", help="default: the header's extra-index; '' for none")
    options = parser.parse_args()
    text = options.lock.read_text(encoding="utf-8")
    lock = parse_lock(text)
    extra = lock.extra_index if options.extra_index is None else options.extra_index
    with tempfile.TemporaryDirectory(prefix="draftgate-lock-") as directory:
        work = Path(directory)
        subprocess.run([options.python, "-m", "venv", str(work / "venv")], check=True)
        # A line of the requirements adds to the configured indexes; PIP_EXTRA_INDEX_URL would replace them.
        index = f"--extra-index-url {extra}\n" if extra else ""
        pip = [str(work / "venv" / "bin" / "python"), "-m", "pip"]
        pins = measure(pip, resolve(pip, lock, index, work), index, work)
        options.lock.write_text(render(text, pins, glibc_minimum(work)), encoding="utf-8")
    print(f"{options.lock}: {len(pins)} packages; runtime {parse_lock(options.lock.read_text()).runtime_id}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
