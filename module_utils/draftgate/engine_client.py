"""The engine's HTTP interface, as far as a gate needs it: health, version, models, chat, metrics.

One connection a call, so a client may be shared by threads. No proxy is consulted: the engine that is
measured is the one at this address.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .errors import InputError, MeasureError
from .layout import Home

Opener = Callable[[str, int, float], http.client.HTTPConnection]

_BODY_SHOWN = 300  # characters of an error's body that help a person


@dataclass(frozen=True)
class ChatResult:
    """One answer.

    :param text: what the model wrote; reasoning that a parser split off comes first.
    :param completion_tokens: tokens generated, as the engine counts them.
    :param finish_reason: ``stop``, ``length``, ...
    :param metrics: the response's ``metrics`` object, where the engine has one (vLLM >= 0.32).
    :param seconds: wall time of the request.
    :param prompt_tokens: length of the rendered prompt.
    """

    text: str
    completion_tokens: int
    finish_reason: str
    metrics: Optional[Dict[str, Any]]
    seconds: float
    prompt_tokens: int = 0


def _plain(host: str, port: int, timeout: float) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(host, port, timeout=timeout)


def _encrypted(host: str, port: int, timeout: float) -> http.client.HTTPConnection:
    return http.client.HTTPSConnection(host, port, timeout=timeout)


def validate_api_key(key: str) -> None:
    """Refuse a key that no request can carry; http.client would put it into its ``ValueError``.

    :raises InputError: without the key.
    """
    # A server takes a header's value without the spaces around it: such a key would never be right.
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise InputError(
            "reading the engine's API key",
            "it has a line break, a space at an end or a character that no header can carry",
            "printable ASCII",
            "Set vllm_api_key, or write the key's file, without them.",
        )


class EngineClient:
    """A vLLM server.

    :param timeout: seconds to wait for a byte, for everything but ``chat``.
    :param opener: makes the connection; a test hands in its own.
    :param base: path in front of ``/health`` and ``/v1``, where a gateway adds one.
    :raises InputError: the API key cannot be sent as a header.
    """

    def __init__(
        self,
        host: str,
        port: int,
        api_key: Optional[str] = None,
        timeout: float = 10.0,
        opener: Opener = _plain,
        base: str = "",
    ) -> None:
        validate_api_key(api_key or "")
        self.host, self.port = host, port
        self._key, self._timeout, self._open, self._base = api_key or "", timeout, opener, base

    @classmethod
    def at(cls, endpoint: str, api_key: Optional[str] = None, timeout: float = 10.0) -> EngineClient:
        """The client for ``http(s)://host[:port][/base]``; a trailing ``/v1`` is dropped.

        :raises InputError: not such a URL, or one with a user and a password in it.
        """
        expected = "http://host:port or https://host:port"
        try:
            parts = urllib.parse.urlsplit(endpoint)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise InputError("reading the endpoint", "it is no URL", expected) from None
        if parts.username or parts.password:
            raise InputError(
                "reading the endpoint", "it holds a user or a password", f"{expected}, and api_key"
            )
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise InputError("reading the endpoint", f"it is {endpoint!r}", expected)
        base = parts.path.rstrip("/")
        base = base[: -len("/v1")] if base.endswith("/v1") else base
        secure = parts.scheme == "https"
        opener = _encrypted if secure else _plain
        return cls(host, port or (443 if secure else 80), api_key, timeout, opener, base)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}{self._base}"

    def health(self) -> bool:
        """Whether ``/health`` answers 200. It proves nothing about drafting."""
        try:
            return self._request("asking for its health", "GET", "/health")[0] == 200
        except MeasureError:
            return False

    def version(self) -> str:
        doing = "asking for its version"
        value = self._json(doing, "GET", "/version").get("version")
        if not isinstance(value, str):
            raise self._error(doing, "the answer has no version", '{"version": "0.32.0"}')
        return value

    def models(self) -> List[str]:
        """The served model names."""
        doing = "asking for its models"
        listed = self._json(doing, "GET", "/v1/models").get("data")
        names = (
            [model.get("id") for model in listed if isinstance(model, dict)]
            if isinstance(listed, list)
            else []
        )
        if not names or not all(isinstance(name, str) for name in names):
            raise self._error(doing, "the answer names no model", "a list of models with their ids")
        return [str(name) for name in names]

    def metrics_text(self) -> str:
        """``/metrics``, in the Prometheus text format."""
        doing = "reading its counters"
        status, body = self._request(doing, "GET", "/metrics")
        if status != 200:
            raise self._refused(doing, status, body)
        return body.decode("utf-8", "replace")

    def chat(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        temperature: float,
        seed: Optional[int] = None,
        chat_template_kwargs: Optional[Mapping[str, Any]] = None,
        timeout: float = 300.0,
    ) -> ChatResult:
        """One chat completion.

        ``temperature`` is always sent: without it the engine takes the model's generation_config, or 1.0.

        :raises MeasureError: no answer, not 200, or an answer without text and token counts.
        """
        doing = "asking for a chat completion"
        wish: Dict[str, Any] = {
            "model": model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": temperature,
        }
        if seed is not None:
            wish["seed"] = seed
        if chat_template_kwargs:
            wish["chat_template_kwargs"] = dict(chat_template_kwargs)
        started = time.monotonic()
        answer = self._json(doing, "POST", "/v1/chat/completions", wish, timeout)
        seconds = time.monotonic() - started
        try:
            choice, usage = answer["choices"][0], answer["usage"]
            message = choice["message"]
            reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
            metrics = answer.get("metrics")
            return ChatResult(
                text=reasoning + (message.get("content") or ""),
                completion_tokens=int(usage["completion_tokens"]),
                finish_reason=str(choice.get("finish_reason")),
                metrics=metrics if isinstance(metrics, dict) else None,
                seconds=seconds,
                prompt_tokens=int(usage.get("prompt_tokens") or 0),
            )
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            raise self._error(
                doing, "the answer has no text or no token counts", "an OpenAI chat completion"
            ) from None

    def _json(
        self,
        doing: str,
        method: str,
        path: str,
        wish: Optional[Mapping[str, Any]] = None,
        timeout: float = 0.0,
    ) -> Dict[str, Any]:
        status, body = self._request(doing, method, path, wish, timeout)
        if status != 200:
            raise self._refused(doing, status, body)
        try:
            value = json.loads(body.decode("utf-8"))
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self._error(doing, f"{path} answered {self._shown(body)!r}", "a JSON object")
        return value

    def _request(
        self,
        doing: str,
        method: str,
        path: str,
        wish: Optional[Mapping[str, Any]] = None,
        timeout: float = 0.0,
    ) -> Tuple[int, bytes]:
        headers = {"Accept": "*/*"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        body = None if wish is None else json.dumps(wish).encode("utf-8")
        if body is not None:
            headers["Content-Type"] = "application/json"
        seconds = timeout or self._timeout
        connection = self._open(self.host, self.port, seconds)
        try:
            connection.request(method, self._base + path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except socket.timeout as exc:  # TimeoutError only from Python 3.10
            late = f"no answer within {seconds:g} s"
            raise self._error(doing, late, unreachable=True, timed_out=True) from exc
        except (
            OSError,
            UnicodeError,
            http.client.HTTPException,
        ) as exc:  # UnicodeError: a host that IDNA refuses
            what = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
            raise self._error(doing, f"the connection failed: {what}", unreachable=True) from exc
        finally:
            connection.close()

    def _refused(self, doing: str, status: int, body: bytes) -> MeasureError:
        step = "Give the engine's API key." if status in (401, 403) else "The engine's log says why."
        return self._error(doing, f"HTTP {status}: {self._shown(body)}", "HTTP 200", step, status=status)

    def _shown(self, body: bytes) -> str:
        text = " ".join(body.decode("utf-8", "replace").split())
        return (text.replace(self._key, "(API key)") if self._key else text)[:_BODY_SHOWN]

    def _error(
        self, doing: str, observed: str, expected: str = "", step: str = "", **details: Any
    ) -> MeasureError:
        return MeasureError(
            f"{doing} ({self})", observed, expected, step or "The engine's log says why.", details=details
        )


def client_for(home: Home, deployed: Mapping[str, Any], timeout: float = 10.0) -> EngineClient:
    """A client for the engine of a deployment, with the key it asks for, from the key's file."""
    place = deployed["place"]
    salted = place["secrets"].get("VLLM_API_KEY")
    key = None
    if salted:
        with open(home.secret("VLLM_API_KEY", salted), encoding="utf-8") as handle:
            key = handle.read().rstrip("\r\n")
    return EngineClient(place["host"], place["port"], api_key=key, timeout=timeout)
