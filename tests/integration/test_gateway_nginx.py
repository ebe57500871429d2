"""The front on the real nginx, before engines that take their time: what clients see of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import requests
from draftgate import gateway, processes
from draftgate.backend.base import run_command
from draftgate.errors import HostError
from draftgate.front import front_of
from draftgate.gateway_variables import settings_of
from draftgate.layout import Home
from draftgate.progress import silent

from tests.conftest import RunModule
from tests.load import FAILED, OK, REFUSED, Load
from tests.private_nginx import PrivateNginx, private_nginx
from tests.slow_engine import REFUSAL, SlowEngine, free_port, slow_engine

CHAT = "/v1/chat/completions"


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[PrivateNginx]:
    with private_nginx(tmp_path) as made:
        made.install()
        yield made


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[PrivateNginx]:
    with private_nginx(tmp_path) as made:
        yield made


@pytest.fixture
def engine(nginx: PrivateNginx) -> Iterator[SlowEngine]:
    """The one that the front leads to."""
    with slow_engine() as one:
        nginx.front.open(one.port)
        yield one


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateNginx]:
    """An open front for tests that change nothing."""
    with private_nginx(tmp_path_factory.mktemp("shared")) as made, slow_engine() as one:
        made.install()
        made.front.open(one.port)
        yield made


class Asked(threading.Thread):
    """One request beside the test; its answer, or why there is none."""

    def __init__(self, url: str, **wish: Any) -> None:
        super().__init__()
        self.url, self.wish = url, {"max_tokens": 5, **wish}
        self.status, self.text, self.failed = 0, "", ""
        self.begun = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with requests.post(f"{self.url}{CHAT}", json=self.wish, stream=True, timeout=700) as answer:
                self.status = answer.status_code
                for piece in answer.iter_content(None):
                    self.text += piece.decode()
                    self.begun.set()
        except requests.RequestException as exc:
            self.failed = type(exc).__name__
        self.begun.set()

    @property
    def is_whole(self) -> bool:
        return not self.failed and self.text.endswith("data: [DONE]\n\n")


def is_clean_503(answer: requests.Response) -> bool:
    return (
        answer.status_code == 503
        and answer.headers["Retry-After"] == "30"
        and answer.headers["Content-Type"] == "application/json"
        and set(answer.json()["error"]) == {"message", "type", "param", "code"}
    )


# Led elsewhere


def test_flips_under_load_cost_no_request(nginx: PrivateNginx, engine: SlowEngine) -> None:
    with slow_engine() as other, Load(nginx.url, "m", plain=2, streaming=2, kept=2, pause=0.01) as tally:
        for flip in range(20):
            nginx.front.open((other, engine)[flip % 2].port)
            time.sleep(0.2)
        assert engine.seen().finished > 5 and other.seen().finished > 5
    assert not tally.failures and tally.count(REFUSED) == 0 and tally.count(OK) > 20, tally


def test_a_kept_connection_is_led_too(nginx: PrivateNginx, engine: SlowEngine) -> None:
    with slow_engine() as other, requests.Session() as session:
        for one in (engine, other, engine):
            nginx.front.open(one.port)
            before = one.seen().finished
            assert session.post(f"{nginx.url}{CHAT}", json={"max_tokens": 1}, timeout=5).ok
            assert one.seen().finished == before + 1


def test_an_idle_connection_is_kept(shared: PrivateNginx) -> None:
    """Longer than by what the operator has set, and long enough for clients to be the ones who close it."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", shared.port, timeout=5)) as kept:
        for pause in (1.5, 0):
            kept.request("GET", "/health")
            assert kept.getresponse().read() == b""
            time.sleep(pause)


def test_closing_and_opening_under_load_refuses_cleanly(nginx: PrivateNginx, engine: SlowEngine) -> None:
    with Load(nginx.url, "m", plain=2, streaming=2, kept=2, pause=0.01) as tally:
        for _ in range(4):
            time.sleep(0.3)
            nginx.front.close()
            assert nginx.front.drain(None, silent).left == 0
            assert engine.seen().running == 0
            time.sleep(0.3)
            nginx.front.open(engine.port)
        time.sleep(0.3)
    assert not tally.failures and tally.count(REFUSED) > 4 and tally.count(OK) > 4, tally


def test_a_closed_front_refuses_everything_alike(nginx: PrivateNginx) -> None:
    for path in ("/health", "/v1/models", "/metrics", "/", "/none", "/v1//x"):
        for method in ("GET", "POST", "HEAD"):
            answer = requests.request(method, f"{nginx.url}{path}", data="x" * 10000, timeout=5)
            assert method == "HEAD" or is_clean_503(answer), (method, path)
            assert answer.status_code == 503 and answer.headers["Retry-After"] == "30", (method, path)


@pytest.mark.parametrize("closing", [True, False])
def test_what_was_accepted_before_is_waited_for(
    nginx: PrivateNginx, engine: SlowEngine, closing: bool
) -> None:
    told: list[str] = []
    running = [
        Asked(nginx.url, stream=True, max_tokens=20, pace=0.15),
        Asked(nginx.url, stream=True, max_tokens=1, silent=3),  # not a byte of it yet
        Asked(nginx.url, max_tokens=20, pace=0.15),
    ]
    engine.wait_for(running=3)
    with slow_engine() as other:
        nginx.front.close() if closing else nginx.front.open(other.port)
        drained = nginx.front.drain(None, lambda *report: told.append(report[3]))
        assert drained.left == 0 and drained.seconds > 0.5
        assert engine.seen().finished == 3 and "3 request(s) still run" in told[0]
        assert other.seen().finished == 0
    for one in running:
        one.join()
    assert running[0].is_whole and running[1].is_whole and json.loads(running[2].text)["choices"]
    drained = nginx.front.drain(None, silent)
    assert drained.left == 0 and drained.seconds < 0.5


def test_a_drain_ends_at_its_limit_and_says_what_is_left(nginx: PrivateNginx, engine: SlowEngine) -> None:
    nginx.install(gateway_drain_seconds=1)
    running = Asked(nginx.url, stream=True, max_tokens=300, pace=0.1)
    assert running.begun.wait(5)
    nginx.front.close()
    drained = nginx.front.drain(None, silent)
    assert drained.left == 1 and 1.0 <= drained.seconds < 2.0
    engine.kill()  # what a switch does next
    running.join(5)
    assert running.failed == "ChunkedEncodingError" and not running.is_whole


def test_others_who_ask_the_engine_are_not_waited_for(nginx: PrivateNginx, engine: SlowEngine) -> None:
    """A scraper keeps its connection to /metrics for ever, and an idle client its own to the front."""
    with socket.create_connection(("127.0.0.1", engine.port)), requests.Session() as idle:
        assert idle.get(f"{nginx.url}/health", timeout=5).ok
        with socket.create_connection(("127.0.0.1", nginx.port)):
            nginx.front.close()
            assert nginx.front.drain(None, silent).seconds < 1.0


# What fails


def test_a_killed_engine_is_a_clean_refusal_until_it_is_back(nginx: PrivateNginx, engine: SlowEngine) -> None:
    with contextlib.ExitStack() as later, Load(nginx.url, "m", plain=2, streaming=2, kept=2) as tally:
        time.sleep(0.5)
        engine.kill()
        killed = time.monotonic()
        time.sleep(1.0)
        later.enter_context(slow_engine(engine.port))
        back = time.monotonic()
        time.sleep(1.5)
    after = [answer for answer in tally.answers if answer.began > killed]
    assert [answer for answer in after if answer.outcome == FAILED] == []
    assert sum(answer.outcome == REFUSED for answer in after) > 10
    assert sum(answer.outcome == OK for answer in after if answer.began > back) > 10


@pytest.mark.parametrize(
    "wish",
    [
        {"stream": True, "max_tokens": 1000},
        {"stream": True, "max_tokens": 1, "silent": 100},
        {"max_tokens": 1, "silent": 100},
    ],
)
def test_the_engine_hears_that_a_client_is_gone(
    nginx: PrivateNginx, engine: SlowEngine, wish: dict[str, Any]
) -> None:
    body = json.dumps(wish)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", nginx.port)) as client:
        client.sendall((head + body).encode())
        engine.wait_for(running=1)
    assert engine.wait_for(running=0).aborted == 1


@pytest.mark.parametrize("status", [400, 401, 404, 413, 429, 500, 502, 503, 504])
def test_what_the_engine_answers_passes_unchanged(shared: PrivateNginx, status: int) -> None:
    answer = requests.post(f"{shared.url}{CHAT}", json={"status": status}, timeout=5)
    assert (answer.status_code, answer.content) == (status, REFUSAL)
    assert (answer.headers["x-engine"], answer.headers["retry-after"]) == ("refused", "7")


# What passes


def test_tokens_come_as_they_are_made(nginx: PrivateNginx, engine: SlowEngine) -> None:
    """Neither kept back nor compressed, whatever the operator has set for other sites."""
    wish = {"stream": True, "max_tokens": 5, "pace": 0.2}
    came = []
    headers = {"Accept-Encoding": "gzip"}
    with requests.post(f"{nginx.url}{CHAT}", json=wish, headers=headers, stream=True, timeout=5) as answer:
        assert "Content-Encoding" not in answer.headers
        came = [time.monotonic() for line in answer.iter_lines() if line.startswith(b"data: {")]
    gaps = [later - earlier for earlier, later in zip(came, came[1:])]
    assert len(gaps) == 4 and all(0.1 < gap < 0.35 for gap in gaps), gaps


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_minutes_are_not_too_long(nginx: PrivateNginx, engine: SlowEngine) -> None:
    """A long answer, a prefill without a byte and an answer that is not streamed, while the front is flipped
    and nginx reloaded."""
    running = [
        Asked(nginx.url, stream=True, max_tokens=300, pace=2),
        Asked(nginx.url, stream=True, max_tokens=1, silent=600),
        Asked(nginx.url, max_tokens=1, silent=600),
    ]
    engine.wait_for(running=3)
    with slow_engine() as other:
        nginx.front.open(other.port)
        nginx.install(gateway_retry_after=5)
        drained = nginx.front.drain(700, silent)
    for one in running:
        one.join(10)
    assert drained.left == 0 and 590 < drained.seconds < 630
    assert running[0].is_whole and running[0].text.count("data: {") == 300
    assert running[1].is_whole and json.loads(running[2].text)["choices"]


def test_a_key_passes_and_nothing_secret_is_logged(nginx: PrivateNginx, engine: SlowEngine) -> None:
    def ask() -> requests.Response:
        return requests.post(
            f"{nginx.url}{CHAT}?api_key=hunter2",
            json={"max_tokens": 1, "messages": "hunter3"},
            headers={"Authorization": "Bearer hunter4", "X-Api-Key": "hunter5"},
            timeout=5,
        )

    assert ask().ok
    assert engine.seen().headers["authorization"] == "Bearer hunter4"
    engine.kill()
    assert is_clean_503(ask())
    answered, refused = nginx.logged(2)
    assert [answered[name] for name in ("path", "status")] == [CHAT, 200] and refused["status"] == 503
    assert answered["engine"] == refused["engine"] == f"127.0.0.1:{engine.port}"
    assert float(answered["first_byte"]) >= 0 and refused["engine_status"] == "502"
    assert "hunter" not in nginx.log()
    assert "refused" in nginx.error_log()
    assert not any(word in nginx.error_log() for word in ("hunter3", "hunter4", "hunter5"))


def test_a_body_may_be_as_large_as_wished(nginx: PrivateNginx, engine: SlowEngine) -> None:
    nginx.install(gateway_client_max_body_size="20m")
    large = requests.post(f"{nginx.url}{CHAT}", json={"max_tokens": 1, "m": "x" * 19_000_000}, timeout=20)
    assert large.ok and engine.seen().body_bytes > 19_000_000
    larger = requests.post(f"{nginx.url}{CHAT}", json={"max_tokens": 1, "m": "x" * 21_000_000}, timeout=20)
    assert larger.status_code == 413 and "larger than 20m" in larger.json()["error"]["message"]


def target(port: int, path: str) -> tuple[int, bytes]:
    """The request target byte for byte: libraries tidy it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection):
        connection.putrequest("GET", path, skip_accept_encoding=True)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.mark.parametrize(
    "path",
    [
        *("/metrics", "/server_info", "/", "/v1", "/healthx", "/health/", "/tokenize", "/docs"),
        *("//metrics", "/metrics/../v1/models", "/metrics/%2e%2e/v1/models", "/metrics%2f..%2fv1/models"),
        *("/v1/../metrics", "/v1/./models", "/v1//models", "/v1/%2E%2E/metrics", "/v1/..%2fmetrics"),
        *("/v1/load_lora_adapter", "/v1/%6coad_lora_adapter", "/v1/unload_lora_adapter?x=1"),
        *("http://x/metrics", "http://x/metrics/../v1/models"),
    ],
)
def test_what_is_not_named_is_not_public(shared: PrivateNginx, path: str) -> None:
    status, body = target(shared.port, path)
    assert status == 404 and b"not public here" in body


@pytest.mark.parametrize(
    "path", ["/health", "/health?a=/../b//c", "/v1/seen", "/v1/models/a%2Fb", "http://x/v1/models"]
)
def test_what_is_named_is(shared: PrivateNginx, path: str) -> None:
    """As an answer of the engine: an empty page, or its own 404."""
    assert target(shared.port, path) in ((200, b""), (404, b""))


def test_more_may_be_public(nginx: PrivateNginx, engine: SlowEngine) -> None:
    nginx.install(gateway_paths=["/metrics", "/v1/load_lora_adapter", "/v1/"])
    assert b"num_requests_running" in target(nginx.port, "/metrics")[1]
    assert b"not public" not in target(nginx.port, "/v1/load_lora_adapter")[1]
    assert b"not public" in target(nginx.port, "/v1/unload_lora_adapter")[1]
    assert b"not public" in target(nginx.port, "/health")[1]
    nginx.install(gateway_paths=["/"])
    assert target(nginx.port, "/server_info") == (200, b"{}")


# Other addresses


def test_tls(nginx: PrivateNginx, engine: SlowEngine, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    nginx.install(gateway_tls_certificate=str(certificate), gateway_tls_key=str(key))
    nginx.front.open(engine.port)
    url = f"https://127.0.0.1:{nginx.port}"
    answer = requests.post(f"{url}{CHAT}", json={"max_tokens": 1}, verify=str(certificate), timeout=5)
    assert answer.ok and engine.seen().headers["x-forwarded-proto"] == "https"
    assert gateway.differs(nginx.home, nginx.variables())[0]["field"] == "gateway_tls_certificate"


def self_signed(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "front.pem", folder / "front.key"
    argv = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=front"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*argv.split(), *names], check=True, capture_output=True)
    return certificate, key


def test_an_address_changes_on_the_same_port(nginx: PrivateNginx, engine: SlowEngine) -> None:
    """nginx cannot bind one while it holds the other, so that it is taken out in between."""
    for host, asked in (("0.0.0.0", "127.0.0.2"), ("::", "[::1]"), ("::", "127.0.0.1"), ("::1", "[::1]")):
        nginx.install(gateway_host=host)
        nginx.front.open(engine.port)
        assert requests.get(f"http://{asked}:{nginx.port}/health", timeout=5).ok
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://127.0.0.1:{nginx.port}/health", timeout=5)


def test_two_homes_share_an_nginx(nginx: PrivateNginx, engine: SlowEngine) -> None:
    second = gateway.Gateway(Home.at(str(nginx.root / "second")), nginx.nginx)
    port = free_port()
    second.present(settings_of(nginx.variables(gateway_port=port)), check=False)
    assert front_of(second.home).routed() == 0 and nginx.front.routed() == engine.port
    assert is_clean_503(requests.get(f"http://127.0.0.1:{port}/health", timeout=5))
    second.absent(check=False)
    assert requests.get(f"{nginx.url}/health", timeout=5).ok


# Installed, refused, interrupted


def test_installing_twice_changes_nothing(nginx: PrivateNginx, engine: SlowEngine) -> None:
    before = {path: path.stat().st_mtime_ns for path in nginx.root.rglob("*") if "logs" not in path.parts}
    assert gateway.differs(nginx.home, nginx.variables()) == []
    assert nginx.install()["changed"] is False
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert nginx.front.routed() == engine.port


def test_a_changed_variable_cuts_no_stream_and_leads_where_it_led(
    nginx: PrivateNginx, engine: SlowEngine
) -> None:
    running = Asked(nginx.url, stream=True, max_tokens=20, pace=0.05)
    assert running.begun.wait(5)
    (row,) = gateway.differs(nginx.home, nginx.variables(gateway_retry_after=5))
    assert row == {"field": "gateway_retry_after", "before": 30, "after": 5}
    assert nginx.install(gateway_retry_after=5)["changed"]
    assert requests.get(f"{nginx.url}/health", timeout=5).ok
    # nginx of before the reload has it still, and is waited for too
    nginx.front.close()
    assert nginx.front.drain(None, silent).left == 0
    running.join()
    assert running.is_whole
    assert requests.get(f"{nginx.url}/health", timeout=5).headers["Retry-After"] == "5"


def broken_certificate(nginx: PrivateNginx) -> dict[str, Any]:
    return {"gateway_tls_certificate": "/none.pem", "gateway_tls_key": "/none.key"}


def broken_site(nginx: PrivateNginx) -> dict[str, Any]:
    nginx.site("another", "server { listen 127.0.0.1:1; nonsense; }")
    return {"gateway_retry_after": 5}


def taken_port(nginx: PrivateNginx) -> dict[str, Any]:
    port = free_port()
    nginx.site("aaa", f"server {{ listen 127.0.0.1:{port}; return 200 'the operator'; }}")
    return {"gateway_port": port}


@pytest.mark.parametrize(
    ("wish", "code", "told"),
    [
        (broken_certificate, "DG170", "/none.pem"),
        (broken_site, "DG170", "nonsense"),
        (taken_port, "DG171", "something else answers"),
    ],
)
def test_what_nginx_does_not_bring_into_force_is_taken_back(
    nginx: PrivateNginx,
    engine: SlowEngine,
    monkeypatch: pytest.MonkeyPatch,
    wish: Callable[[PrivateNginx], dict[str, Any]],
    code: str,
    told: str,
) -> None:
    monkeypatch.setattr(gateway, "_IN_FORCE_SECONDS", 1.0)
    before = nginx.gateway.file_text()
    with pytest.raises(HostError, match=f"{code}.*{told}"):
        nginx.install(**wish(nginx))
    assert nginx.gateway.file_text() == before
    assert gateway.differs(nginx.home, nginx.variables()) == []
    assert requests.get(f"{nginx.url}/health", timeout=5).ok


def test_a_reload_that_fails_in_silence_is_noticed(
    nginx: PrivateNginx, engine: SlowEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "_IN_FORCE_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(HostError, match=f"DG171.*held by pid {os.getpid()}"):
            nginx.install(gateway_port=port)
        monkeypatch.setattr(gateway, "port_holder", lambda host, port: None)  # it came a moment later
        stranger.settimeout(0)
        with pytest.raises(HostError, match="DG171.*something else answers"):
            nginx.install(gateway_port=port)
    assert "bind()" in nginx.error_log()
    assert requests.get(f"{nginx.url}/health", timeout=5).ok and nginx.install()["changed"] is False


class Killed(BaseException):
    """Nothing below may tidy up after it, as after SIGKILL."""


@pytest.mark.parametrize("at", ["-t", "reload"])
def test_an_interrupted_change_is_finished_by_the_next(
    nginx: PrivateNginx, engine: SlowEngine, at: str
) -> None:
    def run(argv: Sequence[str], seconds: float) -> tuple[int, str, str]:
        if argv[-1] == at:
            raise Killed
        return run_command(argv, seconds)

    settings = settings_of(nginx.variables(gateway_retry_after=5))
    with pytest.raises(Killed):
        gateway.Gateway(nginx.home, nginx.nginx, run).present(settings, check=False)
    assert requests.get(f"{nginx.url}/health", timeout=5).ok
    assert gateway.differs(nginx.home, nginx.variables(gateway_retry_after=5)) != []
    assert nginx.install(gateway_retry_after=5)["changed"]
    nginx.front.close()
    assert requests.get(f"{nginx.url}/health", timeout=5).headers["Retry-After"] == "5"


def test_nginx_is_started_where_the_front_is_to_be_open(nginx: PrivateNginx, engine: SlowEngine) -> None:
    nginx.kill()
    assert gateway.differs(nginx.home, nginx.variables())[0]["before"].startswith("does not answer")
    nginx.front.close()  # nobody to refuse
    assert not nginx.pid()
    nginx.front.open(engine.port)
    assert requests.get(f"{nginx.url}/health", timeout=5).ok
    nginx.kill()
    assert nginx.install()["changed"] and requests.get(f"{nginx.url}/health", timeout=5).ok


def test_an_nginx_that_does_not_start_is_told(nginx: PrivateNginx) -> None:
    nginx.kill()
    nginx.site("another", "nonsense;")
    with pytest.raises(HostError, match="DG172.*nonsense"):
        nginx.front.open(1)


def test_removing_it_leaves_the_others(nginx: PrivateNginx, engine: SlowEngine) -> None:
    port = free_port()
    nginx.site("another", f"server {{ listen 127.0.0.1:{port}; return 200 'the operator'; }}")
    nginx.tell("-s", "reload")
    assert nginx.gateway.absent(check=True)["changed"] and requests.get(f"{nginx.url}/health", timeout=5).ok
    assert nginx.gateway.absent(check=False)["changed"]
    assert processes.port_free("127.0.0.1", nginx.port)
    assert requests.get(f"http://127.0.0.1:{port}", timeout=5).text == "the operator"
    assert os.listdir(nginx.root / "conf.d") == ["another.conf"] and not (nginx.root / "state").exists()
    assert nginx.front.routed() is None and nginx.gateway.absent(check=False)["changed"] is False


def test_the_module(bare: PrivateNginx, run_module: RunModule) -> None:
    nginx = bare.nginx
    places = {"configuration": nginx.configuration, "state": nginx.state, "log": nginx.logs}
    wish = {"home": bare.home.root, "host": "127.0.0.1", "port": bare.port}
    wish |= {f"{name}_directory": path for name, path in places.items()}
    missing = {**wish, "nginx": ["/none/nginx"]}
    looked = run_module("gateway", missing, "--check")
    assert looked["changed"] and looked["missing"]
    assert run_module("gateway", missing)["changed"] is False
    assert not os.listdir(nginx.configuration) and not os.path.exists(bare.home.front)
    wish["nginx"] = list(nginx.command)
    assert run_module("gateway", wish)["changed"] and not run_module("gateway", wish)["changed"]
    assert is_clean_503(requests.get(f"{bare.url}/health", timeout=5))
    refused = run_module("gateway", {**wish, "tls_key": "/x"})
    assert refused["failed"] and "gateway_tls_certificate" in refused["msg"]
    assert run_module("gateway", {**wish, "state": "absent"})["changed"]
    assert not os.listdir(nginx.configuration)
