"""The engine's HTTP interface, against a fake that answers as vLLM does and against broken servers."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from draftgate.engine_client import EngineClient, validate_api_key
from draftgate.errors import InputError, MeasureError

from tests.unit.fake_engine import FakeEngine, running

KEY = "sk-very-secret-4711"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with running(FakeEngine()) as started:
        yield started


def client_of(engine: FakeEngine, **more: Any) -> EngineClient:
    return EngineClient("127.0.0.1", engine.port, **more)


@contextmanager
def raw_server(answer: bytes, hold: bool = False) -> Iterator[int]:
    """A port that sends these bytes to whoever connects; with ``hold`` it then says nothing more."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                if hold:
                    done.wait(10)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            done.set()
            thread.join()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def test_what_a_healthy_engine_tells(engine: FakeEngine) -> None:
    client = client_of(engine)
    assert client.health()
    assert client.version() == "0.32.0"
    assert client.models() == ["tiny"]
    assert "vllm:spec_decode_num_drafts_total" in client.metrics_text()


def test_chat_sends_what_makes_it_greedy_and_reads_the_answer(engine: FakeEngine) -> None:
    result = client_of(engine).chat(
        "tiny", HELLO, max_tokens=7, temperature=0.0, seed=0, chat_template_kwargs={"enable_thinking": False}
    )
    assert engine.requests == [
        {
            "model": "tiny",
            "messages": HELLO,
            "max_tokens": 7,
            "temperature": 0.0,
            "seed": 0,
            "chat_template_kwargs": {"enable_thinking": False},
        }
    ]
    assert (result.text, result.finish_reason, result.prompt_tokens) == ("right answer", "stop", 30)
    assert result.completion_tokens == 1 + 1 + 2 + 2 * 3 + 4 * 4
    assert result.metrics is not None and result.metrics["speculative_decoding"]["num_spec_steps"] == 8
    assert result.seconds > 0


def test_what_was_not_asked_for_is_not_sent(engine: FakeEngine) -> None:
    client_of(engine).chat("tiny", HELLO, max_tokens=1, temperature=0, chat_template_kwargs={})
    assert set(engine.requests[0]) == {"model", "messages", "max_tokens", "temperature"}


def test_an_answer_without_text_is_empty_text(engine: FakeEngine) -> None:
    engine.text = None  # type: ignore[assignment]  # what a reasoning parser leaves of a cut answer
    assert client_of(engine).chat("tiny", HELLO, max_tokens=1, temperature=0).text == ""


def test_the_api_key_is_sent_and_never_shown() -> None:
    with running(FakeEngine(api_key=KEY)) as engine:
        assert client_of(engine, api_key=KEY).models() == ["tiny"]
        with pytest.raises(MeasureError) as caught:
            client_of(engine, api_key=KEY + "x").models()
    assert "HTTP 401" in str(caught.value) and "API key" in str(caught.value)
    assert KEY not in str(caught.value) and KEY not in str(caught.value.as_dict())


@pytest.mark.parametrize("key", [KEY + "\n", f"{KEY}\r\nX-Evil: 1", KEY + "ü", KEY + " ", "\t" + KEY])
def test_a_key_that_no_header_carries_is_refused_without_showing_it(key: str) -> None:
    for refuse in (validate_api_key, lambda given: EngineClient("127.0.0.1", 1, api_key=given)):
        with pytest.raises(InputError) as caught:
            refuse(key)
        assert KEY not in str(caught.value)


@pytest.mark.parametrize("key", [KEY, "", "two words", "~!@#$%^&*()"])
def test_what_a_header_carries_is_a_key(key: str) -> None:
    validate_api_key(key)


def test_an_error_of_the_engine_is_one_message(engine: FakeEngine) -> None:
    engine.fail_at = 1
    with pytest.raises(MeasureError) as caught:
        client_of(engine).chat("tiny", HELLO, max_tokens=1, temperature=0)
    assert "HTTP 500" in caught.value.observed and "EngineCore encountered" in caught.value.observed
    assert caught.value.details["status"] == 500


def test_nobody_listens() -> None:
    client = EngineClient("127.0.0.1", closed_port())
    assert not client.health()
    with pytest.raises(MeasureError, match="refused") as caught:
        client.version()
    assert caught.value.details["unreachable"]


def test_silence_is_bounded() -> None:
    with raw_server(b"", hold=True) as port:
        client = EngineClient("127.0.0.1", port, timeout=0.2)
        with pytest.raises(MeasureError, match=r"no answer within 0\.2 s"):
            client.metrics_text()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff{",
        b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"version": 1}',
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_what_is_no_engine_is_one_error(answer: bytes) -> None:
    with raw_server(answer) as port, pytest.raises(MeasureError, match="asking for its version"):
        EngineClient("127.0.0.1", port, timeout=5).version()


@pytest.mark.parametrize(
    "body",
    [
        '{"choices": []}',
        '{"choices": [{"message": null}], "usage": {}}',
        '{"usage": {"completion_tokens": 1}}',
    ],
)
def test_an_answer_that_is_no_completion(body: str) -> None:
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    with raw_server(answer) as port, pytest.raises(MeasureError, match="no text or no token counts"):
        EngineClient("127.0.0.1", port).chat("tiny", HELLO, max_tokens=1, temperature=0)


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "127.0.0.1:8000"),
        ("http://h", "h:80"),
        ("https://h/qwen/v1", "h:443/qwen"),
        ("http://[::1]:8000", "::1:8000"),
    ],
)
def test_endpoints(endpoint: str, shown: str) -> None:
    assert str(EngineClient.at(endpoint)) == shown


@pytest.mark.parametrize(
    "endpoint", ["", "127.0.0.1:8000", "ftp://h", "http://", "http://h:99999", "http://[", "http://h?x=1"]
)
def test_what_is_no_endpoint(endpoint: str) -> None:
    with pytest.raises(InputError, match="reading the endpoint"):
        EngineClient.at(endpoint)


def test_a_password_in_the_endpoint_is_refused_without_showing_it() -> None:
    with pytest.raises(InputError) as caught:
        EngineClient.at(f"http://user:{KEY}@h:1")
    assert KEY not in str(caught.value)


def test_a_base_path_comes_before_every_path() -> None:
    paths: list[str] = []

    class Connection(http.client.HTTPConnection):
        def request(self, method: str, url: str, *_: Any, **__: Any) -> None:
            paths.append(url)
            raise OSError("enough")

    client = EngineClient("h", 1, opener=lambda host, port, timeout: Connection(host, port), base="/qwen")
    assert not client.health()
    assert paths == ["/qwen/health"]
