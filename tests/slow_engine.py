"""A stand-in for the engine behind a front: it speaks the protocol and takes the time that it is told to.

A process of its own, so that it can be killed as an engine can. It answers chat completions, streamed (one
event a token) or whole, and counts what runs, what has ended and whose client went away. A request may set
``pace`` (seconds a token), ``silent`` (seconds before the first one) and ``status`` (of a refusal) beside the
fields of the interface.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import requests

REFUSAL = b'{\n   "error": {"message": "refused",   "code": "as the engine writes it"}}'
"""The body of an answer with the ``status`` that a request has asked for."""


@dataclass
class Seen:
    """What it has seen so far; ``GET /seen`` tells."""

    running: int = 0
    finished: int = 0
    aborted: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body_bytes: int = 0


class _Gone(Exception):
    """The client has closed its connection."""


@dataclass
class _Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class _Server:
    def __init__(self, pace: float) -> None:
        self.pace, self.seen = pace, Seen()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while request := await _read(reader):
                await self._answer(request, reader, writer)
                if request.headers.get("connection") == "close":
                    break
        writer.close()

    async def _answer(
        self, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if request.path != "/v1/chat/completions":
            await self._page(request.path, writer)
            return
        wish = json.loads(request.body)
        self.seen.headers, self.seen.body_bytes = request.headers, len(request.body)
        if "status" in wish:
            await _whole(writer, wish["status"], REFUSAL, "x-engine: refused\r\nretry-after: 7\r\n")
            return
        self.seen.running += 1
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await (self._stream if wish.get("stream") else self._at_once)(wish, writer, gone)
            self.seen.finished += 1
        except (_Gone, ConnectionError):
            self.seen.aborted += 1
            raise ConnectionError from None
        finally:
            self.seen.running -= 1
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def _page(self, path: str, writer: asyncio.StreamWriter) -> None:
        pages = {
            "/health": b"",
            "/seen": json.dumps(asdict(self.seen)).encode(),
            "/metrics": f"vllm:num_requests_running {self.seen.running}.0\n".encode(),
            "/server_info": b"{}",
        }
        page = pages.get(path)
        await _whole(writer, 404 if page is None else 200, page or b"")

    async def _stream(
        self, wish: dict[str, Any], writer: asyncio.StreamWriter, gone: asyncio.Future[bytes]
    ) -> None:
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        writer.write((head + "transfer-encoding: chunked\r\n\r\n").encode())
        await _pause(wish.get("silent", 0), gone)
        for number in range(wish["max_tokens"]):
            last = number + 1 == wish["max_tokens"]
            delta = {"delta": {"content": f"{number} "}, "finish_reason": "length" if last else None}
            await _chunk(writer, f"data: {json.dumps({'choices': [delta]})}\n\n")
            await _pause(wish.get("pace", self.pace), gone)
        await _chunk(writer, "data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _at_once(
        self, wish: dict[str, Any], writer: asyncio.StreamWriter, gone: asyncio.Future[bytes]
    ) -> None:
        await _pause(wish.get("silent", 0) + wish["max_tokens"] * wish.get("pace", self.pace), gone)
        choice = {"message": {"content": "x" * wish["max_tokens"]}, "finish_reason": "length"}
        await _whole(writer, 200, json.dumps({"choices": [choice]}).encode())


async def _read(reader: asyncio.StreamReader) -> _Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, target, _version = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return _Request(method, target.partition("?")[0], headers, await _body(reader, headers))


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return body


async def _pause(seconds: float, gone: asyncio.Future[bytes]) -> None:
    """Wait as an engine computes, and notice that nobody waits any more."""
    done, _ = await asyncio.wait([gone], timeout=seconds)
    if done:
        raise _Gone


async def _chunk(writer: asyncio.StreamWriter, text: str) -> None:
    writer.write(f"{len(text):x}\r\n{text}\r\n".encode())
    await writer.drain()


async def _whole(writer: asyncio.StreamWriter, status: int, body: bytes, more: str = "") -> None:
    head = f"HTTP/1.1 {status} {'OK' if status == 200 else 'No'}\r\ncontent-type: application/json\r\n{more}"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()


async def _main(port: int, pace: float) -> None:
    server = await asyncio.start_server(_Server(pace).serve, "127.0.0.1", port, reuse_address=True)
    async with server:
        await server.serve_forever()


# The other side


@dataclass
class SlowEngine:
    """One that runs."""

    port: int
    process: subprocess.Popen[bytes]

    def seen(self) -> Seen:
        return Seen(**requests.get(f"http://127.0.0.1:{self.port}/seen", timeout=5).json())

    def kill(self) -> None:
        """As the kernel's OOM killer does it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def wait_for(self, **counts: int) -> Seen:
        """Until the counts are these."""
        end = time.monotonic() + 10
        while True:
            seen = self.seen()
            if all(getattr(seen, name) == count for name, count in counts.items()):
                return seen
            assert time.monotonic() < end, f"{seen} instead of {counts}"
            time.sleep(0.02)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def slow_engine(port: int = 0, pace: float = 0.02) -> Iterator[SlowEngine]:
    """An engine on ``port`` (0 = any), until the block ends."""
    port = port or free_port()
    argv = [sys.executable, __file__, "--port", str(port), "--pace", str(pace)]
    engine = SlowEngine(port, subprocess.Popen(argv))
    try:
        end = time.monotonic() + 20
        while True:
            with contextlib.suppress(requests.ConnectionError):
                engine.seen()
                break
            assert time.monotonic() < end and engine.process.poll() is None, "the slow engine did not start"
            time.sleep(0.05)
        yield engine
    finally:
        engine.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pace", type=float, required=True)
    given = parser.parse_args()
    asyncio.run(_main(given.port, given.pace))
