"""What the front costs, and what a flip costs those who are being served; with stand-ins for engines."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.load import OK, Load
from tests.private_nginx import PrivateNginx, private_nginx
from tests.results import Figure
from tests.slow_engine import SlowEngine, slow_engine

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

TURNS = 400
FLIPS = 60


@pytest.fixture
def engine() -> Iterator[SlowEngine]:
    with slow_engine() as one:
        yield one


@pytest.fixture
def nginx(tmp_path: Path, engine: SlowEngine) -> Iterator[PrivateNginx]:
    with private_nginx(tmp_path) as made:
        made.install()
        made.front.open(engine.port)
        yield made


def first_token(session: requests.Session, url: str) -> float:
    """Milliseconds from the request to the first event of its stream."""
    wish = {"stream": True, "max_tokens": 2, "silent": 0.005, "pace": 0.001, "model": "m"}
    began = time.perf_counter()
    with session.post(f"{url}/v1/chat/completions", json=wish, stream=True, timeout=10) as answer:
        pieces = answer.iter_content(None)  # one, because dropping it would close the connection
        first = next(pieces)
        seconds = time.perf_counter() - began
        assert b"".join([first, *pieces]).endswith(b"data: [DONE]\n\n")
    return 1000 * seconds


def test_first_token(nginx: PrivateNginx, engine: SlowEngine, figure: Figure) -> None:
    """By turns in one run, each over a connection that the client keeps."""
    urls = (f"http://127.0.0.1:{engine.port}", nginx.url)
    with requests.Session() as session:
        turns = [[first_token(session, url) for url in urls] for _ in range(TURNS)][TURNS // 10 :]
    direct, through = (statistics.median(side) for side in zip(*turns, strict=True))
    figure("front_first_token_added_ms", through - direct)
    assert through - direct <= 5


def test_flips(nginx: PrivateNginx, engine: SlowEngine, figure: Figure) -> None:
    """Under a constant load of plain and streaming clients, half of whom keep their connection."""
    with slow_engine() as other, Load(nginx.url, "m", plain=2, streaming=2, kept=2, pause=0.01) as tally:
        for flip in range(FLIPS):
            nginx.front.open((other, engine)[flip % 2].port)
            time.sleep(0.5)
    figure("front_flip_requests", len(tally.answers))
    figure("front_flip_failed_requests", len(tally.answers) - tally.count(OK))
    assert len(tally.answers) == tally.count(OK), tally.failures
