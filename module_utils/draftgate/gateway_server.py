"""The front as nginx's configuration: one file with one server."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
from dataclasses import dataclass
from typing import Any, List, Mapping, Sequence, Tuple

from . import front
from .errors import InputError
from .gateway_variables import PLAIN_PATH
from .layout import Home
from .processes import home_digest

ADMIN = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
"""Below /v1/ and yet no inference: public only where they are named themselves."""


@dataclass(frozen=True)
class Nginx:
    """Where this host's nginx is.

    :param command: how it is called.
    :param configuration: a directory whose ``*.conf`` it includes on the level ``http``.
    :param state: below it lies where each front leads; nginx's workers must be able to enter it.
    """

    command: Tuple[str, ...] = ("/usr/sbin/nginx",)
    configuration: str = "/etc/nginx/conf.d"
    state: str = "/var/lib/draftgate-front"
    logs: str = "/var/log/nginx"

    def __post_init__(self) -> None:
        for path in (self.configuration, self.state, self.logs):
            if not PLAIN_PATH.fullmatch(path):
                raise InputError("reading nginx's directories", repr(path), "an absolute path without blanks")

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Nginx:
        return cls(**{**stored, "command": tuple(stored["command"])})


def config_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]


def server_file(home: Home, settings: Mapping[str, Any], nginx: Nginx) -> Tuple[str, str]:
    """``(text, digest)``: what nginx reads, and the digest by which it says that it has read it."""
    unsigned = _server_text(home, settings, nginx, "-")
    digest = config_digest(unsigned)
    return _server_text(home, settings, nginx, digest), digest


def _server_text(home: Home, settings: Mapping[str, Any], nginx: Nginx, digest: str) -> str:
    identity = home_digest(home.root)
    return _SERVER % {
        "home": re.sub(r"[^ -~]", "?", home.root),
        "state": os.path.join(nginx.state, identity),
        "logs": nginx.logs,
        "v": f"draftgate_{identity}",
        "id": identity,
        "own": _own_address(settings["gateway_host"]),
        "asked": front.ASKED_PATH,
        "answer": front.answer_text(identity, digest, f"$draftgate_{identity}_port"),
        "listen": _listen(settings),
        "tls": _tls(settings),
        "body": settings["gateway_client_max_body_size"],
        "read": settings["gateway_read_timeout"],
        "retry": settings["gateway_retry_after"],
        "closed": _error(503, "The model is being replaced. Please try again in a moment."),
        "dead": _error(503, "The model does not answer at the moment. Please try again."),
        "large": _error(413, f"The request is larger than {settings['gateway_client_max_body_size']}."),
        "private": _NOT_PUBLIC,
        "locations": "\n".join(_locations(settings["gateway_paths"], f"draftgate_{identity}_port")),
    }


def _error(status: int, message: str) -> str:
    """An error as the engine writes its own, for clients of the OpenAI interface."""
    kinds = {404: "NotFoundError", 413: "RequestTooLargeError", 503: "ServiceUnavailableError"}
    body = {"error": {"message": message, "type": kinds[status], "param": None, "code": status}}
    return f"return {status} '{json.dumps(body)}';"


_NOT_PUBLIC = _error(404, "This path is not public here.")


def _listen(settings: Mapping[str, Any]) -> str:
    host, port = settings["gateway_host"], settings["gateway_port"]
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    words = [where, *(["ssl"] if settings["gateway_tls_certificate"] else [])]
    words += ["ipv6only=off"] if host == "::" else []
    # a client that has vanished is noticed while the engine is silent, and so the engine is told
    return " ".join([*words, "so_keepalive=60s:10s:6"])


def _own_address(host: str) -> str:
    """Where a request of this host to its own public address comes from."""
    address = ipaddress.ip_address(host)
    return "" if address.is_loopback or address.is_unspecified else f"    {host} 1;\n"


def _tls(settings: Mapping[str, Any]) -> str:
    if not settings["gateway_tls_certificate"]:
        return ""
    return (
        f"    ssl_certificate {settings['gateway_tls_certificate']};\n"
        f"    ssl_certificate_key {settings['gateway_tls_key']};\n"
        "    ssl_protocols TLSv1.2 TLSv1.3;\n"
    )


def _locations(paths: Sequence[str], port: str) -> List[str]:
    """nginx takes the longest that fits, whatever their order."""
    refuse, lead = f"{{ {_NOT_PUBLIC} }}", f"{{ proxy_pass http://{front.ENGINE_HOST}:${port}; }}"
    lines = [f"location ^~ {path} {refuse}" for path in ADMIN if path not in paths]
    for path in paths:
        lines.append(f"location {'^~' if path.endswith('/') else '='} {path} {lead}")
        if path.endswith("/") and path != "/" and path[:-1] not in paths:
            lines.append(f"location = {path[:-1]} {refuse}")  # nginx would answer with a redirect
    if "/" not in paths:
        lines.append(f"location / {refuse}")
    return [f"    {line}" for line in lines]


_SERVER = """\
# Written by Draftgate for %(home)s from the variables gateway_*; the next deploy overwrites changes.

# The engine's port is the name of what %(state)s/route
# leads to. It is looked at for each request: another port is one rename and no reload.
map $realpath_root $%(v)s_port {
    default "";
    "~/(?<%(v)s_target>[0-9]+)$" $%(v)s_target;
}

# What nginx would tidy before it looks for a location, and yet hand on as it came.
map $request_uri $%(v)s_untidy {
    default 0;
    "~*^[^?]*(/|%%2f)(\\.|%%2e|/|%%2f)" 1;
}

# This host alone may ask where the front leads, and that is not logged.
geo $%(v)s_here {
    default 0;
    127.0.0.0/8 1;
    ::1 1;
%(own)s}
map "$%(v)s_here$uri" $%(v)s_logged {
    default 1;
    "1%(asked)s" 0;
}

# No body, no header but the client's name for itself, no query: prompts and keys stay out.
log_format %(v)s escape=json
    '{"time":"$time_iso8601","client":"$remote_addr","method":"$request_method","path":"$uri",'
    '"status":$status,"bytes":$bytes_sent,"seconds":$request_time,"completed":"$request_completion",'
    '"engine":"$upstream_addr","engine_status":"$upstream_status","connect":"$upstream_connect_time",'
    '"first_byte":"$upstream_header_time","agent":"$http_user_agent"}';

server {
    listen %(listen)s;
%(tls)s    root %(state)s/route;
    default_type application/json;
    access_log %(logs)s/draftgate-%(id)s.log %(v)s if=$%(v)s_logged;

    # Longer than clients keep an idle connection (Go: 90 s), so that it is they who close it.
    keepalive_timeout 120s;
    client_max_body_size %(body)s;
    gzip off;

    proxy_http_version 1.1;
    proxy_buffering off;
    proxy_request_buffering off;
    proxy_cache off;
    proxy_redirect off;
    proxy_intercept_errors off;
    proxy_ignore_client_abort off;
    proxy_next_upstream off;
    proxy_connect_timeout 5s;
    # Between two reads: a long prefill, or an answer that is not streamed, is silent for that long.
    proxy_read_timeout %(read)ss;
    # Without "keepalive" there is one connection a request: what is open is what runs.
    proxy_set_header Host $host:$server_port;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    proxy_set_header X-Forwarded-Proto $scheme;

    if ($%(v)s_logged = 0) { return 200 "%(answer)s\\n"; }
    if ($%(v)s_port = "") { return 503; }
    if ($%(v)s_untidy) { %(private)s }

    # Of nginx itself alone: what the engine answers passes as it is.
    error_page 413 = @%(v)s_large;
    error_page 500 502 504 = @%(v)s_dead;
    error_page 503 = @%(v)s_closed;
    location @%(v)s_large { %(large)s }
    location @%(v)s_dead { add_header Retry-After %(retry)s always; %(dead)s }
    location @%(v)s_closed { add_header Retry-After %(retry)s always; %(closed)s }

%(locations)s
}
"""
