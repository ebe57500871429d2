"""The variables ``gateway_*``: what they mean, and which front cannot be."""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Callable, Dict, List, Mapping

from .errors import InputError
from .front import ENGINE_HOST
from .options import seconds_of, shown, yes_or_no

ENABLED = "gateway_enabled"
PLAIN_PATH = re.compile(r"/[\w./@+-]*", re.ASCII)
"""A path that nginx's configuration takes as it is."""

_DIGITS = 9  # Python reads no number of more than 4300


def _address(name: str, value: Any) -> str:
    text = str(value).strip()
    try:
        if "%" not in text:  # a zone, as in fe80::1%eth0: nginx takes none
            return str(ipaddress.ip_address(text))
    except ValueError:
        pass
    expected = "an address, as 0.0.0.0 (every IPv4 one), :: (IPv6 and IPv4) or 10.0.0.5"
    raise InputError(f"reading {name}", shown(value), expected)


def _whole(least: int, most: int) -> Callable[[str, Any], int]:
    def read(name: str, value: Any) -> int:
        text = str(value).strip()
        digits = text.isdecimal() and len(text) <= _DIGITS and not isinstance(value, bool)
        if not digits or not least <= int(text) <= most:
            raise InputError(f"reading {name}", shown(value), f"a whole number from {least} to {most}")
        return int(text)

    return read


def _size(name: str, value: Any) -> str:
    text = str(value).strip().lower()
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,15}|[0-9]{1,6}[kmg]", text):
        raise InputError(f"reading {name}", shown(value), "a size as in 256m or 1g; 0 = no limit")
    return text


def _file(name: str, value: Any) -> str:
    text = str(value or "").strip()
    if text and not PLAIN_PATH.fullmatch(text):
        raise InputError(f"reading {name}", repr(value), "an absolute path on the host without blanks")
    return text


def _paths(name: str, value: Any) -> List[str]:
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)):
        raise InputError(f"reading {name}", repr(value), "a list of paths")
    paths = sorted({str(path).strip() for path in given} - {""})
    wrong = [path for path in paths if not PLAIN_PATH.fullmatch(path) or re.search(r"/(\.|/)", path)]
    if wrong or not paths:
        expected = "paths as /health, or as /v1/ for all that is below it"
        raise InputError(f"reading {name}", ", ".join(wrong) or "there is none", expected)
    return paths


READERS: Dict[str, Callable[[str, Any], Any]] = {
    "gateway_host": _address,
    "gateway_port": _whole(1, 65535),
    "gateway_drain_seconds": _whole(0, 86400),
    "gateway_retry_after": _whole(1, 86400),
    "gateway_read_timeout": lambda name, value: int(seconds_of(name, value)) or 1,
    "gateway_client_max_body_size": _size,
    "gateway_tls_certificate": _file,
    "gateway_tls_key": _file,
    "gateway_paths": _paths,
    "gateway_remove_default_site": yes_or_no,
}


def settings_of(variables: Mapping[str, Any]) -> Dict[str, Any]:
    """The variables ``gateway_*`` with their meaning checked: times in seconds, ``-e`` text as what it says.

    :raises InputError: by the variable's name.
    """
    settings = {name: read(name, variables[name]) for name, read in READERS.items()}
    if bool(settings["gateway_tls_certificate"]) != bool(settings["gateway_tls_key"]):
        raise InputError(
            "reading gateway_tls_certificate and gateway_tls_key", "only one of them is set", "both or none"
        )
    return settings


def is_enabled(variables: Mapping[str, Any]) -> bool:
    return yes_or_no(ENABLED, variables[ENABLED])


def check(wished: Mapping[str, Any], vllm_host: str, vllm_port: int, candidate_port: int) -> None:
    """Refuse a front that could not be, before anything is touched. Nothing is asked without one.

    :param wished: the variables ``gateway_*``.
    :raises InputError: a value without meaning, an engine that is public too, or one port for two.
    """
    if not is_enabled(wished):
        return
    settings = settings_of(wished)
    if vllm_host != ENGINE_HOST:
        raise InputError(
            "reading vllm_host",
            f"{vllm_host} with {ENABLED}",
            f"{ENGINE_HOST}: clients must not get past the front",
        )
    ports = {"gateway_port": settings["gateway_port"], "vllm_port": vllm_port}
    ports["vllm_candidate_port"] = candidate_port
    for name, port in ports.items():
        same = [other for other, number in ports.items() if number == port and other != name]
        if same:
            raise InputError(f"reading {name}", f"{port}, which is {same[0]} too", "three different ports")
