"""Constant load on a server: every request is kept, with when it began, when it ended and how.

Two kinds of clients as they are out there: one that waits for the whole answer, and one that reads a stream.
Each opens a connection per request, or keeps one (a client library's session).
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import requests

OK, REFUSED, FAILED = "ok", "refused", "failed"
TIMEOUT = 120.0  # seconds without a byte


@dataclass(frozen=True)
class Answer:
    """One request: ``began`` and ``ended`` are seconds of the monotonic clock."""

    kind: str
    began: float
    ended: float
    outcome: str
    detail: str = ""


@dataclass
class Tally:
    """All requests of a load, in the order in which they ended."""

    answers: list[Answer] = field(default_factory=list)

    def count(self, outcome: str) -> int:
        return sum(answer.outcome == outcome for answer in self.answers)

    @property
    def failures(self) -> list[str]:
        """What was neither an answer nor a clean refusal, each with how often."""
        details = Counter(f"{a.kind}: {a.detail}" for a in self.answers if a.outcome == FAILED)
        return [f"{detail} (× {count})" for detail, count in details.items()]

    def downtime(self) -> float:
        """Seconds from the first refusal to the first request that began after it and was answered.

        0 where nobody was refused.
        """
        refused = [answer.began for answer in self.answers if answer.outcome == REFUSED]
        if not refused:
            return 0.0
        back = [a.began for a in self.answers if a.outcome == OK and a.began > max(refused)]
        assert back, "nothing was answered after the last refusal"
        return min(back) - min(refused)

    def __str__(self) -> str:
        return f"{self.count(OK)} ok, {self.count(REFUSED)} refused, {self.count(FAILED)} failed"


class Load:
    """Clients that ask ``url`` (``http://host:port``) again and again until they are told to stop.

    :param pause: seconds between a client's answer and its next request.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        plain: int = 1,
        streaming: int = 1,
        kept: int = 0,
        pause: float = 0.2,
        max_tokens: int = 24,
    ) -> None:
        self.tally = Tally()
        self._url = f"{url}/v1/chat/completions"
        self._pause = pause
        self._body = {
            "model": model,
            "messages": [{"role": "user", "content": "How do I restart queue on harbor?"}],
            "temperature": 0,
            "max_tokens": max_tokens,
        }
        self._stopping = threading.Event()
        kinds = [("plain", False)] * plain + [("streaming", False)] * streaming
        kinds += [("plain, kept connection", True), ("streaming, kept connection", True)] * kept
        self._threads = [threading.Thread(target=self._client, args=kind) for kind in kinds]

    def __enter__(self) -> Tally:
        for thread in self._threads:
            thread.start()
        return self.tally

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _client(self, kind: str, kept: bool) -> None:
        session = requests.Session() if kept else None
        while not self._stopping.wait(self._pause):
            began = time.monotonic()
            try:
                outcome, detail = self._ask(kind.startswith("streaming"), session)
            except requests.RequestException as exc:
                outcome, detail = FAILED, type(exc).__name__
            self.tally.answers.append(Answer(kind, began, time.monotonic(), outcome, detail))

    def _ask(self, stream: bool, session: requests.Session | None) -> tuple[str, str]:
        with _session(session) as asking:
            answer = asking.post(
                self._url, json={**self._body, "stream": stream}, stream=stream, timeout=TIMEOUT
            )
            if answer.status_code != 200:
                return _refusal(answer)
            if not stream:
                return _whole(answer.json())
            *events, last = [line for line in answer.iter_lines() if line.startswith(b"data: ")] or [b""]
            if last != b"data: [DONE]":
                return FAILED, "a stream that was cut off"
            return _whole(json.loads(events[-1][len("data: ") :]))


@contextmanager
def _session(kept: requests.Session | None) -> Iterator[requests.Session]:
    """The client's own session, or one that ends with the request."""
    if kept is not None:
        yield kept
        return
    with requests.Session() as session:
        session.headers["Connection"] = "close"
        yield session


def _whole(body: dict[str, Any]) -> tuple[str, str]:
    reason = body["choices"][0].get("finish_reason")
    return (OK, "") if reason in ("stop", "length") else (FAILED, f"finish_reason {reason!r}")


def _refusal(answer: requests.Response) -> tuple[str, str]:
    """A clean one says when to come back, as JSON in the shape of the API's errors."""
    try:
        told = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return FAILED, f"{answer.status_code} without an error object"
    if answer.status_code != 503 or not answer.headers.get("Retry-After", "").isdigit():
        return FAILED, f"{answer.status_code}, Retry-After {answer.headers.get('Retry-After')!r}: {told}"
    return REFUSED, told
