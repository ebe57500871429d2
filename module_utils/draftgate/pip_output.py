"""pip's words: where it looks for wheels, how far it is, and what its failure means."""

from __future__ import annotations

import ast
import contextlib
import glob
import os
import re
from typing import Dict, Iterable, List, Optional, Sequence, Set
from urllib.parse import unquote, urlsplit

from .canonical import file_digest
from .errors import DraftgateError, HostError
from .progress import Report
from .runtime_host import disk_needed, mib
from .runtime_lock import Lock, Package, normalized_name, parse_wheel_name

DOING = "installing the engine runtime"


def configured_find_links(config_list: Iterable[str]) -> List[str]:
    """Directories among the ``find-links`` that ``pip config list`` prints (``x.find-links='/a /b'``)."""
    found: List[str] = []
    for line in config_list:
        key, _equals, value = line.partition("=")
        if key.split(".")[-1] == "find-links" and value[:1] in ("'", '"'):
            found += str(ast.literal_eval(value)).split()
    return [path for path in map(_local_directory, found) if path]


def _local_directory(link: str) -> str:
    parts = urlsplit(link)
    path = unquote(parts.path) if parts.scheme == "file" else link
    return path if os.path.isdir(path) else ""


def local_wheels(packages: Iterable[Package], directories: Iterable[str]) -> Dict[str, str]:
    """Name → directory of those ``packages`` whose very file, by its hash, lies in one of ``directories``."""
    wanted = {(package.name, package.version): package for package in packages}
    found: Dict[str, str] = {}
    for directory in directories:
        for filename in sorted(os.listdir(directory)):
            with contextlib.suppress(ValueError, OSError):
                package = wanted.get(parse_wheel_name(filename))
                if package and file_digest(os.path.join(directory, filename)) in package.hashes:
                    found.setdefault(package.name, directory)
    return found


def redact(text: str) -> str:
    """``text`` without the user part of any URL."""
    return re.sub(r"(?<=://)[^/\s@]+@", "***@", text)


_WHEEL_LINE = re.compile(r"\s*(?:Downloading|Using cached|Processing)\s+(?P<path>\S+\.whl)(?=\s|$|#)")


class PipProgress:
    """pip's lines and what lies on the disk → ``progress(stage, done, total, detail)``, bytes of bytes.

    :param scratch: pip's TMPDIR, where an unfinished download grows.
    :param site_packages: where ``*.dist-info/RECORD`` appears as the last file of each installed package.
    """

    def __init__(self, lock: Lock, scratch: str, site_packages: str, progress: Report) -> None:
        self._packages = {package.name: package for package in lock.packages}
        self._total = lock.download_bytes, lock.installed_bytes
        self._scratch, self._site_packages, self._progress = scratch, site_packages, progress
        self._fetched: Set[str] = set()
        self._current, self._file, self._most = "", "", 0
        self._installing = False

    def __call__(self, line: Optional[str]) -> None:
        """A :data:`Watch`."""
        wheel = _WHEEL_LINE.match(line or "")
        if wheel:
            self._file = unquote(wheel["path"].rsplit("/", 1)[-1])
            with contextlib.suppress(ValueError):
                self._fetch(parse_wheel_name(self._file)[0])
        elif (line or "").startswith("Installing collected packages"):
            self._installing = True
        elif line:
            return
        (self._report_install if self._installing else self._report_download)()

    def _fetch(self, name: str) -> None:
        if self._current:  # pip works one by one: the one before is complete
            self._fetched.add(self._current)
        self._current = name

    def _report_download(self) -> None:
        done = sum(self._packages[name].download_bytes for name in self._fetched if name in self._packages)
        current = self._packages.get(self._current)
        if current and current.name not in self._fetched:
            done += min(self._unfinished_bytes(), current.download_bytes)
        # A file that is complete leaves the scratch directory before pip names the next one.
        done = self._most = max(done, self._most)
        count = f"{self._current} {len(self._fetched)}/{len(self._packages)}".strip()
        self._progress("download", done, self._total[0], f"{count}, {mib(done)} of {mib(self._total[0])}")

    def _unfinished_bytes(self) -> int:
        files = glob.glob(os.path.join(glob.escape(self._scratch), "pip-*", glob.escape(self._file)))
        return sum(os.path.getsize(path) for path in files if os.path.exists(path))

    def _report_install(self) -> None:
        names = self._installed() & self._packages.keys()
        done = sum(self._packages[name].installed_bytes for name in names)
        detail = f"{len(names)}/{len(self._packages)}, {mib(done)} of {mib(self._total[1])}"
        self._progress("install", done, self._total[1], detail)

    def _installed(self) -> Set[str]:
        records = glob.glob(os.path.join(glob.escape(self._site_packages), "*.dist-info", "RECORD"))
        return {normalized_name(os.path.basename(os.path.dirname(path)).split("-")[0]) for path in records}


def pip_failure(lock: Lock, output: Sequence[str], extra_index: str) -> DraftgateError:
    """pip's last words → one error. ``extra_index``: the one that was in use, empty for none."""
    text = redact("\n".join(output))
    tail = text.splitlines()[-20:]
    for explain in (_hash_mismatch, _no_room, _unreachable, _not_found):
        failure = explain(lock, text, redact(extra_index))
        if failure:
            failure.details["pip"] = tail
            return failure
    errors = [line for line in tail if line.startswith("ERROR:")] or tail or ["pip said nothing"]
    return HostError(DOING, f"pip failed: {' '.join(errors)[:400]}", code="DG507", details={"pip": tail})


def _hash_mismatch(lock: Lock, text: str, _extra_index: str) -> Optional[DraftgateError]:
    found = re.search(r"^ {4}(\S+).*\n\s+Expected sha256 (\w+)(?:.|\n)*?Got\s+(\w+)", text, re.MULTILINE)
    if "DO NOT MATCH THE HASHES" not in text or not found:
        return None
    return HostError(
        DOING,
        f"the file offered for {found[1]} has sha256 {found[3]}",
        f"{found[2]}, as the lock pins it",
        "Its source does not serve the published file: repair that mirror or wheel directory, or take it "
        "out of pip's configuration.",
        code="DG504",
    )


def _no_room(lock: Lock, text: str, _extra_index: str) -> Optional[DraftgateError]:
    if "No space left on device" not in text:
        return None
    return HostError(
        DOING, "the disk filled up", mib(disk_needed(lock)), "Free some room and run it again.", code="DG155"
    )


# A connection error while reading an index is said only as the warning before the last try.
_GAVE_UP = re.compile(r"\S.*(?:Retry\(total=0\b|Max retries exceeded|Could not fetch URL|Read timed out).*")


# urllib3's words around the two that matter: object addresses, retry counters.
_REASON = re.compile(r"(?:\[Errno -?\d+\] |: )([A-Z][\w ,.-]+?)'?\)+'?: (/\S+)")


def _connection(line: str) -> str:
    """``Name or service not known (/whl/cpu/torch/)`` of pip's retry line, or the line itself."""
    found = _REASON.search(line)
    return f"{found[1]} ({found[2]})" if found else line[:300]


def _unreachable(_lock: Lock, text: str, _extra_index: str) -> Optional[DraftgateError]:
    found = _GAVE_UP.search(text)
    if not found:
        return None
    return HostError(
        DOING,
        f"a package index does not answer: {_connection(found[0])}",
        "every configured index answers",
        "Check the network, the proxy and pip's configuration (pip config list), or set "
        "vllm_runtime_extra_index to a mirror or vllm_runtime_find_links to a directory with the wheels. "
        "What was fetched is kept.",
        code="DG506",
    )


def _not_found(lock: Lock, text: str, extra_index: str) -> Optional[DraftgateError]:
    found = re.search(r"No matching distribution found for ([^=\s]+)==(\S+)", text)
    if not found:
        return None
    name = normalized_name(found[1])
    if name in lock.extra_index_packages and not extra_index:
        index = f"Set the extra index ({lock.extra_index})"
    else:
        index = "Add an index that has it to pip's configuration"
    step = f"{index}, or put the wheel into a directory of find-links."
    where = f", {extra_index} included" if extra_index else ""
    return HostError(
        DOING, f"no index has {name} {found[2]} for this Python and platform{where}", "", step, code="DG505"
    )
