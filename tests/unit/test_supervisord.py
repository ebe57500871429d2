"""The supervisord backend's files and paths. What it does with them: tests/integration."""

from __future__ import annotations

import configparser
import os
import shlex
from pathlib import Path
from typing import Any, Dict, List

import pytest
from draftgate.backend import base, choose, supervisord
from draftgate.backend.base import Job, Service
from draftgate.errors import HostError, InputError
from draftgate.layout import Home

SERVICE = Service("engine-a", ("/r/bin/vllm", "serve"), {"A": "1"}, {"KEY": "/s/key"}, "/w", stop_seconds=25)
JOB = Job("switch", ("/bin/true",), {"B": "2"}, "/w", (4, 0, 3))


def section(text: str, name: str) -> Dict[str, str]:
    """As supervisord's own parser reads it (supervisor/options.py, UnhosedConfigParser)."""
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";", "#"), strict=False)
    parser.read_string(text)
    return {key: value % {} if "%" in value else value for key, value in parser.items(name)}


def test_an_engine_is_always_started_again_until_it_has_died_too_often_too_quickly() -> None:
    command = ["/h/a b/python", "/h/50%/reaper.py", "/h/service.json"]
    program = section(
        supervisord.engine_program(SERVICE, command, "engine-a@0", "/h/50%/log"), "program:engine-a"
    )
    assert shlex.split(program["command"]) == command
    assert program["stdout_logfile"] % {} == "/h/50%/log", "supervisord expands this one twice"
    assert (program["autostart"], program["autorestart"]) == ("false", "true")
    assert int(program["startsecs"]) == base.QUICK_DEATH_SECONDS
    assert int(program["startretries"]) + 1 == base.QUICK_DEATHS
    assert int(program["stopwaitsecs"]) > SERVICE.stop_seconds + 10, "the reaper's SIGKILL comes first"
    assert "stopasgroup" not in program, "workers would die under their API server"


def test_a_job_is_started_again_only_when_its_reaper_was_killed() -> None:
    program = section(supervisord.job_program(JOB, ["/p"], "switch@0", "/log"), "program:switch")
    assert (program["autorestart"], program["startsecs"]) == ("unexpected", "0")
    assert [int(code) for code in program["exitcodes"].split(",")] == list(range(256))


def test_the_environment_is_the_given_one_and_no_secret_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    description = supervisord.service_description(SERVICE, "/t")
    assert set(description["environment"]) == {"PATH", "HOME", "LANG", "A"}
    assert description["secret_files"] == {"KEY": "/s/key"}
    assert description["verdicts"] is None
    assert supervisord.job_description(JOB, "/t")["verdicts"] == [0, 3, 4]


@pytest.mark.parametrize("text", ["/a\nb", "/a ;b", "/a #b", "/a\r", "/a\0"])
def test_a_path_that_no_quoting_carries_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        supervisord.value(text)


def test_sockets_stay_within_what_a_unix_socket_path_can_be() -> None:
    near = supervisord.run_directory(Home("/home/someone/.draftgate"))
    far = supervisord.run_directory(Home("/srv/" + "long/" * 30))
    assert near == "/home/someone/.draftgate/supervisor/run"
    assert far.startswith("/tmp/draftgate-")
    assert far != supervisord.run_directory(Home("/srv/" + "long/" * 31))
    for directory in (near, far):
        engine_socket = os.path.join(directory, "engine-0123456789ab", "0" * 36)  # zeromq's name is a UUID
        assert len(engine_socket) <= 107


def test_the_answer_does_not_depend_on_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home("/srv/" + "long/" * 30)
    here = supervisord.run_directory(home)
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    assert supervisord.run_directory(home) == here


def test_a_socket_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    supervisord.private_directory(str(path))
    supervisord.private_directory(str(path))
    path.chmod(0o755)
    with pytest.raises(HostError, match="only we can enter"):
        supervisord.private_directory(str(path))
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(HostError):
        supervisord.private_directory(str(tmp_path / "link"))


@pytest.mark.parametrize(
    ("size", "offset", "lines", "expected"),
    [
        (5, 0, 2, ["line 3", "line 4"]),
        (5, len("line 0\n") * 3, 9, ["line 3", "line 4"]),
        (5, 10_000, 1, ["line 4"]),  # rotated since: the offset lies beyond the end
        (100_000, 0, 1, ["line 99999"]),
        (0, 0, 5, []),
        (5, 0, 0, []),
    ],
)
def test_the_tail_of_a_log(tmp_path: Path, size: int, offset: int, lines: int, expected: List[str]) -> None:
    home = Home(str(tmp_path))
    one = supervisord.SupervisordBackend(home, agent="/a", lock="")
    log = Path(one.log_path("engine-a"))
    assert one.log_tail("engine-a", 5) == [] and one.log_offset("engine-a") == 0
    log.parent.mkdir()
    log.write_text("".join(f"line {number}\n" for number in range(size)))
    assert one.log_tail("engine-a", lines, offset) == expected
    assert one.log_offset("engine-a") == log.stat().st_size


def test_reading_a_home_without_a_daemon_says_so_and_touches_nothing(tmp_path: Path) -> None:
    one = supervisord.SupervisordBackend(Home(str(tmp_path)), agent="/a", lock="")
    assert one.state("engine-a").status == "absent"
    assert one.job_state("switch").status == "absent"
    assert one.services() == []
    one.remove("engine-a")
    one.remove_job("switch")
    assert list(tmp_path.iterdir()) == []


def test_without_a_lock_and_an_earlier_one_there_is_no_daemon(tmp_path: Path) -> None:
    one = supervisord.SupervisordBackend(Home(str(tmp_path / "h")), agent="/a", lock="")
    with pytest.raises(HostError, match="no lock was given.*Deploy once"):
        one.ensure()


def test_a_failed_installation_is_said_and_tried_anew(tmp_path: Path) -> None:
    asked: List[List[str]] = []

    def run(argv: Any, timeout: float) -> Any:
        asked.append(list(argv))
        return (1, "", "No matching distribution") if "pip" in argv else (0, "", "")

    one = supervisord.SupervisordBackend(Home(str(tmp_path / "h")), agent="/a", lock="supervisor==0", run=run)
    for _ in range(2):
        with pytest.raises(HostError, match="No matching distribution"):
            one.ensure()
    assert len(asked) == 4
    assert "--require-hashes" in asked[1] and "--no-deps" in asked[1]


@pytest.mark.parametrize("name", ["Engine", "a:b", "a b", "", "a%b", "../a"])
def test_a_name_that_supervisord_would_read_otherwise_is_refused(tmp_path: Path, name: str) -> None:
    one = supervisord.SupervisordBackend(Home(str(tmp_path)), agent="/a", lock="")
    with pytest.raises(InputError):
        one.define(Service(name, ("/bin/true",), {}, {}, "/"))


def test_every_page_of_the_lock_is_hashed(repo: Path) -> None:
    pins = [line for line in (repo / "locks" / "supervisor.txt").read_text().splitlines() if "==" in line]
    assert len(pins) == 1 and pins[0].startswith("supervisor==4.3.0")


@pytest.mark.parametrize(
    ("wanted", "systemd", "chosen"),
    [
        ("auto", True, "systemd"),
        ("auto", False, "supervisord"),
        ("supervisord", True, "supervisord"),
        ("systemd", True, "systemd"),
    ],
)
def test_the_backend_is_chosen(
    monkeypatch: pytest.MonkeyPatch, wanted: str, systemd: bool, chosen: str
) -> None:
    monkeypatch.setattr("draftgate.backend.root_under_systemd", lambda: systemd)
    assert choose(Home("/h"), wanted, supervisor_lock="").name == chosen


@pytest.mark.parametrize("wanted", ["systemd", "runit"])
def test_a_backend_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    monkeypatch.setattr("draftgate.backend.root_under_systemd", lambda: False)
    with pytest.raises(InputError):
        choose(Home("/h"), wanted, supervisor_lock="")
