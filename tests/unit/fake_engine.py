"""An HTTP server that answers as vLLM 0.32 does, with counters that follow what it answered."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAGES = {"/health": "", "/version": '{"version": "0.32.0"}', "/v1/models": '{"data": [{"id": "tiny"}]}'}


@dataclass
class FakeEngine:
    """What the fake does; tests change it while it runs.

    :param histogram: of each request: entry j = steps that accepted j draft tokens; k = its length - 1.
    :param lag: reads of /metrics that still show the counters of before the last request.
    :param foreign: histogram of somebody else's request, counted with each of ours.
    """

    histogram: list[int] = field(default_factory=lambda: [1, 1, 2, 4])
    own_metrics: bool = True
    speculative: bool = True
    lag: int = 0
    foreign: list[int] | None = None
    text: str = "right answer"
    finish_reason: str = "stop"
    fail_at: int | None = None  # the request (1, 2, ...) that gets a 500
    silent_at: int | None = None  # the request (1, 2, ...) whose answer takes two seconds
    wedged: bool = False  # while one is silent there is no health either
    restart_at: int | None = None  # the request after which the counters begin anew
    api_key: str | None = None
    port: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    active: int = 0
    most_active: int = 0

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.drafts = [0] * len(self.histogram)
        self.generated = 0
        self.shown: list[str] = [self.metrics_text()]

    @contextmanager
    def busy(self) -> Iterator[None]:
        with self.lock:
            self.active += 1
            self.most_active = max(self.most_active, self.active)
        yield
        with self.lock:
            self.active -= 1

    def tokens(self, histogram: list[int]) -> int:
        return 1 + sum((j + 1) * count for j, count in enumerate(histogram))

    def count(self, histogram: list[int]) -> None:
        self.drafts = [a + b for a, b in zip(self.drafts, histogram)]
        self.generated += self.tokens(histogram)

    def chat(self, wish: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if len(self.requests) + 1 == self.silent_at:
            time.sleep(2)
        with self.lock:
            self.requests.append(wish)
            number = len(self.requests)
            if self.fail_at is not None and number >= self.fail_at:
                return 500, {"error": {"message": "EngineCore encountered an issue"}}
            if number == self.restart_at:
                self.drafts, self.generated = [0] * len(self.histogram), 0
            # A warm-up is another request than those measured: one token, no draft.
            histogram = [0] * len(self.drafts) if wish["max_tokens"] == 16 else self.histogram
            self.count(histogram)
            if self.foreign:
                self.count(self.foreign)
            self.shown = [self.shown[-1]] * self.lag + [self.metrics_text()]
        return 200, {
            "choices": [{"message": {"content": self.text}, "finish_reason": self.finish_reason}],
            "usage": {"prompt_tokens": 30, "completion_tokens": self.tokens(histogram)},
            "metrics": {"speculative_decoding": self.own(histogram)} if self.own_metrics else None,
        }

    def own(self, histogram: list[int]) -> dict[str, Any]:
        steps = sum(histogram)
        return {
            "acceptance_histogram": histogram,
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": sum(j * count for j, count in enumerate(histogram)),
            "num_draft_tokens": steps * (len(histogram) - 1),
        }

    def metrics_text(self) -> str:
        steps, k = sum(self.drafts), len(self.drafts) - 1
        accepted = sum(j * count for j, count in enumerate(self.drafts))
        lines = [f"vllm:generation_tokens_total {self.generated}.0"]
        if self.speculative:
            lines += [
                f"vllm:spec_decode_num_drafts_total {steps}.0",
                f"vllm:spec_decode_num_draft_tokens_total {steps * k}.0",
                f"vllm:spec_decode_num_accepted_tokens_total {accepted}.0",
            ]
            for position in range(k):
                name = f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}}'
                lines.append(f"{name} {sum(self.drafts[position + 1 :])}.0")
        return "\n".join(lines) + "\n"

    def metrics(self) -> str:
        with self.lock:
            return self.shown.pop(0) if len(self.shown) > 1 else self.shown[0]


@contextmanager
def running(engine: FakeEngine) -> Iterator[FakeEngine]:
    """``engine`` at a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, body: str) -> None:
            data = body.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(BrokenPipeError):  # the client waited no longer
                self.wfile.write(data)

        def refused(self) -> bool:
            given = self.headers.get("Authorization", "")
            if engine.api_key and self.path.startswith("/v1") and given != f"Bearer {engine.api_key}":
                self.answer(401, json.dumps({"error": f"Unauthorized: {given}"}))
                return True
            return False

        def do_GET(self) -> None:
            if not self.refused():
                body = engine.metrics() if self.path == "/metrics" else PAGES.get(self.path)
                status = 200 if body is not None else 404
                self.answer(503 if engine.wedged and engine.active else status, body or "")

        def do_POST(self) -> None:
            wish = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self.refused():
                with engine.busy():
                    status, body = engine.chat(wish)
                self.answer(status, json.dumps(body))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    engine.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
