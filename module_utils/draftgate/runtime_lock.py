"""A runtime lock: a header that says what pip cannot know, and one hashed wheel for each package.

The file's bytes are the runtime: their SHA-256 names its directory on every host.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Tuple
from urllib.parse import unquote

from .canonical import short
from .errors import InputError

_FORMAT = "1"
_READING = "reading a runtime lock"


@dataclass(frozen=True)
class Package:
    """One pinned wheel: ``name`` as indexes compare it, sizes in bytes (0 = not recorded)."""

    name: str
    version: str
    hashes: Tuple[str, ...]
    download_bytes: int = 0
    installed_bytes: int = 0

    @property
    def requirement(self) -> str:
        """Its line for pip, without the sizes."""
        return " ".join(
            [f"{self.name}=={self.version}", *(f"--hash=sha256:{value}" for value in self.hashes)]
        )


@dataclass(frozen=True)
class Lock:
    """A parsed lock; the fields are the header's keys (locks/README.md explains each).

    :param digest: SHA-256 of the file's bytes, 64 hex digits.
    :param also_installs_as: a second name and version under which the distribution must be found, if any.
    """

    digest: str
    engine: str
    engine_version: str
    distribution: str
    also_installs_as: Optional[Tuple[str, str]]
    device: str
    python: str
    platform: str
    cpu_features: Tuple[str, ...]
    glibc: str
    libraries: Tuple[str, ...]
    shared_memory_bytes: int
    imports: Tuple[str, ...]
    extra_index: str
    extra_index_packages: Tuple[str, ...]
    excluded: Tuple[str, ...]
    packages: Tuple[Package, ...]

    @property
    def runtime_id(self) -> str:
        """The runtime's directory name."""
        return short(self.digest)

    @property
    def download_bytes(self) -> int:
        return sum(package.download_bytes for package in self.packages)

    @property
    def installed_bytes(self) -> int:
        """Unpacked wheels; compiled bytecode comes on top."""
        return sum(package.installed_bytes for package in self.packages)


_PIN = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;]+)"
    r"(?P<hashes>(?:\s+--hash=sha256:[0-9a-f]{64})+)"
    r"(?:\s+#\s*bytes=(?P<download>\d+)/(?P<installed>\d+))?\s*"
)


def normalized_name(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_wheel_name(filename: str) -> Tuple[str, str]:
    """``(name, version)`` from a wheel's file name, percent-encoded or not.

    :raises ValueError: not a wheel's file name.
    """
    parts = unquote(filename).split("-")
    if not filename.endswith(".whl") or len(parts) not in (5, 6):
        raise ValueError(f"{filename!r} is not a wheel's file name")
    return normalized_name(parts[0]), parts[1]


def read_lock(path: str) -> Lock:
    """:func:`parse_lock` of a file's exact bytes.

    :raises InputError: it cannot be read, or as in :func:`parse_lock`.
    """
    try:
        with open(path, "rb") as handle:
            return parse_lock(handle.read().decode("utf-8"))
    except OSError as exc:
        raise InputError(_READING, f"{path!r} cannot be read: {exc.strerror}", "a file of locks/") from exc
    except UnicodeDecodeError as exc:
        raise InputError(_READING, f"{path!r} is not UTF-8 (byte {exc.start})", "a file of locks/") from exc


def parse_lock(text: str) -> Lock:
    """Header (``# key: value``) and pins (``name==version --hash=sha256:…  # bytes=download/installed``).

    :raises InputError: another format, a missing key, a line that is no hashed pin, a package pinned twice,
        or fewer pins than the header counts (a truncated file).
    """
    header, packages = _parse_lines(text)
    if header.get("draftgate-lock") != _FORMAT:
        raise InputError(
            _READING,
            f"it says draftgate-lock: {header.get('draftgate-lock')!r}",
            f"{_FORMAT!r} in its header",
        )
    _check_pins(header, packages)
    return Lock(
        digest=hashlib.sha256(text.encode("utf-8")).hexdigest(),
        engine=_key(header, "engine"),
        engine_version=_key(header, "engine-version"),
        distribution=normalized_name(_key(header, "distribution")),
        also_installs_as=_second_name(header.get("also-installs-as", "")),
        device=_key(header, "device"),
        python=_key(header, "python"),
        platform=_key(header, "platform"),
        cpu_features=tuple(header.get("cpu-features", "").split()),
        glibc=_key(header, "glibc"),
        libraries=tuple(header.get("libraries", "").split()),
        shared_memory_bytes=_number(header, "shared-memory-bytes"),
        imports=tuple(_key(header, "imports").split()),
        extra_index=header.get("extra-index", ""),
        extra_index_packages=tuple(map(normalized_name, header.get("extra-index-packages", "").split())),
        excluded=tuple(map(normalized_name, header.get("excluded", "").split())),
        packages=tuple(packages),
    )


def _parse_lines(text: str) -> Tuple[Dict[str, str], List[Package]]:
    header: Dict[str, str] = {}
    packages: List[Package] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            key, colon, value = line[1:].partition(":")
            if colon:
                header[key.strip()] = value.strip()
        elif line.strip():
            packages.append(_parse_pin(number, line))
    return header, packages


def _parse_pin(number: int, line: str) -> Package:
    found = _PIN.fullmatch(line)
    if not found:
        raise InputError(
            _READING,
            f"line {number} is {line[:80]!r}",
            "name==version --hash=sha256:… in one line",
            code="DG500",
        )
    return Package(
        name=normalized_name(found["name"]),
        version=found["version"],
        hashes=tuple(re.findall(r"sha256:([0-9a-f]{64})", found["hashes"])),
        download_bytes=int(found["download"] or 0),
        installed_bytes=int(found["installed"] or 0),
    )


def _check_pins(header: Mapping[str, str], packages: Sequence[Package]) -> None:
    names = [package.name for package in packages]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            _READING, f"{', '.join(twice)} is pinned twice", "one pin for each package", code="DG500"
        )
    if len(names) != _number(header, "packages"):
        raise InputError(
            _READING,
            f"it has {len(names)} pins and its header says packages: {header.get('packages')}",
            "as many as the header says",
            "Restore the file, or resolve it anew with locks/regenerate.py.",
            code="DG500",
        )


def _second_name(value: str) -> Optional[Tuple[str, str]]:
    if not value:
        return None
    name, equal, version = value.partition("==")
    if not (name and equal and version):
        raise InputError(
            _READING, f"its header says also-installs-as: {value!r}", "name==version", code="DG500"
        )
    return name, version


def _key(header: Mapping[str, str], key: str) -> str:
    if not header.get(key):
        raise InputError(_READING, f"its header has no {key!r}", f"a line '# {key}: …'", code="DG500")
    return header[key]


def _number(header: Mapping[str, str], key: str) -> int:
    value = header.get(key, "0")
    if not value.isdigit():
        raise InputError(_READING, f"its header says {key}: {value!r}", "a whole number", code="DG500")
    return int(value)
