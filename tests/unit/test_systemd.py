"""The systemd backend: units as text, and a recorded systemctl."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import pytest
from draftgate.backend import hardening, systemd
from draftgate.backend.base import Job, Service
from draftgate.backend.systemd import SystemdBackend
from draftgate.errors import HostError, InputError
from draftgate.layout import Home
from draftgate.processes import home_digest

AWKWARD = "a b %n ${HOME} $X \\ \"q\" 'p' ; # é \t\n"


def service(**changes: Any) -> Service:
    given: Dict[str, Any] = {
        "name": "engine-0123456789ab",
        "argv": ("/opt/r/bin/vllm", "serve", "/t", "--speculative-config", '{"a":"$x","b":5}'),
        "environment": {"LD_PRELOAD": "/opt/r/lib/x.so"},
        "secret_files": {},
        "working_directory": "/",
        **changes,
    }
    return Service(**given)


def settings(text: str) -> Dict[str, List[str]]:
    found: Dict[str, List[str]] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_the_unit_restarts_always_and_leaves_nothing_but_is_not_enabled() -> None:
    unit = settings(systemd.unit_text(service()))
    expected = {
        "Type": "exec", "Restart": "always", "KillMode": "mixed", "TimeoutStopSec": "30",
        "StartLimitIntervalSec": "3000", "StartLimitBurst": "5", "LogRateLimitIntervalSec": "0",
    }  # fmt: skip
    assert {name: unit[name] for name in expected} == {name: [value] for name, value in expected.items()}
    assert "WantedBy" not in unit and "network-online" not in unit["After"][0]
    assert not {"PrivateDevices", "MemoryDenyWriteExecute", "DevicePolicy", "User"} & set(unit)


def test_a_user_brings_their_own_home_unless_it_is_set() -> None:
    def homes(**changes: Any) -> List[str]:
        unit = settings(systemd.unit_text(service(user="vllm", **changes)))
        assert unit["User"] == ["vllm"]
        return [entry for entry in unit["Environment"] if entry.startswith('"HOME=')]

    assert homes() == []
    assert homes(environment={"HOME": "/x"}) == ['"HOME=/x"']


def test_a_unit_names_what_the_host_has(tmp_path: Path) -> None:
    text = systemd.unit_text(
        service(user="vllm", cache="/h/cache/vllm"),
        groups=["render", "video"],
        before=["/usr/bin/nvidia-modprobe", "-u"],
    )
    unit = settings(text)
    assert unit["SupplementaryGroups"] == ["render video"]
    assert unit["ReadWritePaths"] == ['"/h/cache/vllm"']
    assert "ExecStartPre=+-/usr/bin/nvidia-modprobe \\\n    -u\n" in text
    assert not {"SupplementaryGroups", "ExecStartPre", "User"} & set(settings(systemd.unit_text(service())))


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("plain", '"plain"'),
        ("50%", '"50%%"'),
        ("$HOME", '"$HOME"'),
        ('say "x"', "'say \"x\"'"),
        ("it's", '"it\'s"'),
        ('it\'s "x"', '"it\'s \\"x\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("two\nlines\t", '"two\\x0alines\\x09"'),
        (";", '";"'),
        ("", '""'),
    ],
)
def test_words_are_quoted_for_systemd(word: str, quoted: str) -> None:
    assert systemd.quoted(word) == quoted


def test_a_command_expands_no_variable_and_no_specifier_and_has_an_argument_a_line() -> None:
    given = ["/a b/$x", "serve", "--port", "$HOME", "%h", "-a=b", ";", "#", "", '{"k":7}']
    lines = systemd.exec_line(given).split(" \\\n    ")
    assert lines == ['"/a b/$x" serve', '--port "$$HOME" "%%h"', '-a=b ";" "#" "" \'{"k":7}\'']


@pytest.mark.parametrize(
    "broken", [{"working_directory": "/a\nExecStartPre=/bin/x"}, {"name": "engine-a\nb"}]
)
def test_no_line_end_gets_into_a_unit(broken: Dict[str, Any]) -> None:
    with pytest.raises(InputError):
        systemd.unit_text(service(**broken))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_itself_reads_both_units(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "a home %h"))
    command = tmp_path / "bin" / "draftgate"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    wish = service(
        argv=(str(command), AWKWARD, ";", "#", "plain"),
        environment={"A": AWKWARD},
        working_directory=str(tmp_path),
        user="root",
        cache=str(tmp_path / "a cache"),
        traits=(hardening.CPU, hardening.LOOPBACK),
    )
    environment_file = str(tmp_path / "e.env")
    Path(environment_file).write_text("")
    boot = systemd.boot_unit_text(home).replace(systemd.quoted(home.command), str(command))
    units = {
        "draftgate-engine-x.service": systemd.unit_text(wish, environment_file=environment_file),
        "draftgate-boot.service": boot,
    }
    for name, text in units.items():
        (tmp_path / name).write_text(text)
    argv = ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in units)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "draftgate" in line]
    assert complaints == []


def test_secrets_are_escaped_in_their_file() -> None:
    assert (
        systemd.environment_file_text({"B": 'a"$`\\b', "A": "plain # ;"})
        == 'A="plain # ;"\nB="a\\"\\$\\`\\\\b"\n'
    )
    with pytest.raises(InputError) as caught:
        systemd.environment_file_text({"KEY": "s3cret\nX=1"})
    assert "s3cret" not in str(caught.value)


def test_a_job_keeps_its_verdict_and_is_run_again_only_when_interrupted() -> None:
    job = Job("switch", ("/usr/bin/python3", "-c", "$x %h"), {"A": "b c"}, "/tmp", (4, 0, 3))
    command = systemd.job_command(job, "draftgate-0af1-switch.service", "switch@0")
    assert command[:4] == ["systemd-run", "--quiet", "--no-block", "--unit=draftgate-0af1-switch.service"]
    properties = [word[len("--property=") :] for word in command if word.startswith("--property=")]
    expected = {"Type=oneshot", "RemainAfterExit=yes", "SuccessExitStatus=0 3 4", "Restart=on-failure"}
    assert expected <= set(properties)
    assert "--setenv=A=b c" in command and "--setenv=DRAFTGATE_SERVICE=switch@0" in command
    assert command[command.index("--") + 1 :] == ["/usr/bin/python3", "-c", "$$x %h"]


class Systemctl:
    """Answers by the first words of the command; remembers what it was asked."""

    def __init__(self, **shown: str) -> None:
        self.shown = {"LoadState": "loaded", "MainPID": "0", "ExecMainCode": "0", **shown}
        self.asked: List[List[str]] = []
        self.answers: Dict[Tuple[str, ...], Tuple[int, str, str]] = {}

    def __call__(self, argv: Sequence[str], timeout: float) -> Tuple[int, str, str]:
        self.asked.append(list(argv))
        for words, answer in self.answers.items():
            if tuple(argv[: len(words)]) == words:
                return answer
        if list(argv[:2]) == ["systemctl", "show"]:
            return 0, "".join(f"{name}={value}\n" for name, value in self.shown.items()), ""
        return 0, "", ""

    def words(self) -> List[str]:
        return [" ".join(argv[:2]) for argv in self.asked if argv[1] != "show"]


@pytest.fixture
def place(tmp_path: Path) -> Tuple[Home, Path]:
    units = tmp_path / "units"
    units.mkdir()
    return Home(str(tmp_path / "home")), units


def backend(place: Tuple[Home, Path], run: Systemctl) -> SystemdBackend:
    return SystemdBackend(place[0], run=run, unit_directory=str(place[1]))


def unit(home: Home, name: str) -> str:
    return f"draftgate-{home_digest(home.root)}-{name}.service"


@pytest.mark.parametrize("name", ["engine-*", "Engine", "a/b", "", "engine-a.service\n"])
def test_a_name_that_means_something_else_is_refused(place: Tuple[Home, Path], name: str) -> None:
    run = Systemctl()
    for call in (backend(place, run).state, backend(place, run).job_state, backend(place, run).log_path):
        with pytest.raises(InputError, match="naming a service"):
            call(name)
    assert run.asked == []


def test_two_homes_on_one_host_leave_each_other_alone(place: Tuple[Home, Path], tmp_path: Path) -> None:
    one_run = Systemctl()
    one = backend(place, one_run)
    other = backend((Home(str(tmp_path / "other")), place[1]), Systemctl())
    for each in (one, other):
        each.ensure()
        each.define(service())
        each.start_job(Job("switch", ("/bin/true",)))
    others = {unit(other.home, "boot"), unit(other.home, service().name)}
    assert len(list(place[1].iterdir())) == 4
    one.shutdown()
    assert one.services() == [] and other.services() == [service().name]
    assert {path.name for path in place[1].iterdir()} == others
    words = [word.removeprefix("--unit=") for argv in one_run.asked for word in argv]
    named = {word for word in words if word.endswith(".service")}
    assert named and all(word.startswith(f"draftgate-{home_digest(one.home.root)}-") for word in named)


@pytest.mark.parametrize(
    ("shown", "status", "exit_code"),
    [
        ({"LoadState": "not-found", "ActiveState": "inactive"}, "absent", None),
        ({"ActiveState": "active", "SubState": "running", "MainPID": "1"}, "running", None),
        ({"ActiveState": "deactivating", "SubState": "stop-sigterm", "MainPID": "1"}, "running", None),
        ({"ActiveState": "activating", "SubState": "auto-restart", "ExecMainCode": "1"}, "starting", 0),
        ({"ActiveState": "inactive", "SubState": "dead"}, "stopped", None),
        (
            {"ActiveState": "failed", "SubState": "failed", "ExecMainCode": "2", "ExecMainStatus": "9"},
            "failed",
            137,
        ),
    ],
)
def test_what_systemd_shows_becomes_a_state(
    place: Tuple[Home, Path], shown: Dict[str, str], status: str, exit_code: int | None
) -> None:
    state = backend(place, Systemctl(**shown)).state("engine-x")
    assert (state.status, state.exit_code) == (status, exit_code)
    assert (state.start_ticks is not None) == (status == "running")


@pytest.mark.parametrize(
    ("shown", "status", "exit_code"),
    [
        # a collected unit reads like a success: Result=success, ExecMainStatus=0
        ({"LoadState": "not-found", "ExecMainCode": "0", "ExecMainStatus": "0"}, "absent", None),
        ({"ActiveState": "active", "SubState": "running", "MainPID": "1"}, "running", None),
        ({"ActiveState": "activating", "SubState": "auto-restart", "ExecMainCode": "2"}, "running", None),
        ({"ActiveState": "activating", "SubState": "start", "MainPID": "1"}, "running", None),
        # between systemd-run --no-block and its start
        ({"ActiveState": "inactive", "SubState": "dead", "Job": "817"}, "running", None),
        (
            {"ActiveState": "active", "SubState": "exited", "ExecMainCode": "1", "ExecMainStatus": "3"},
            "finished",
            3,
        ),
        ({"ActiveState": "failed", "ExecMainCode": "1", "ExecMainStatus": "1"}, "finished", 1),
    ],
)
def test_what_systemd_shows_becomes_a_jobs_state(
    place: Tuple[Home, Path], shown: Dict[str, str], status: str, exit_code: int | None
) -> None:
    state = backend(place, Systemctl(**shown)).job_state("switch")
    assert (state.status, state.exit_code) == (status, exit_code)


def test_since_is_in_epoch_seconds(place: Tuple[Home, Path]) -> None:
    five_seconds_ago = str(int((time.clock_gettime(time.CLOCK_MONOTONIC) - 5) * 1_000_000))
    shown = {"ActiveState": "active", "MainPID": "1", "ExecMainStartTimestampMonotonic": five_seconds_ago}
    since = backend(place, Systemctl(**shown)).state("engine-x").since
    assert since == pytest.approx(time.time() - 5, abs=1)


def test_define_writes_unit_and_secrets_once(place: Tuple[Home, Path], tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret\n")
    run = Systemctl()
    one = backend(place, run)
    wish = service(secret_files={"VLLM_API_KEY": str(key)})
    assert one.define(wish) is True
    assert one.define(wish) is False
    assert run.words() == ["systemctl daemon-reload"]
    assert one.services() == [wish.name]
    text = (place[1] / unit(place[0], wish.name)).read_text()
    secrets = Path(place[0].secrets) / f"{wish.name}.env"
    assert f"EnvironmentFile={secrets}" in text and "s3cret" not in text
    assert secrets.read_text() == 'VLLM_API_KEY="s3cret"\n'
    assert secrets.stat().st_mode & 0o777 == 0o600
    key.write_text("rotated\n")
    assert one.define(wish) is True
    one.remove(wish.name)
    assert one.services() == [] and not secrets.exists()


def test_start_clears_the_start_limit_first_and_leaves_a_running_one_alone(place: Tuple[Home, Path]) -> None:
    run = Systemctl(ActiveState="failed", SubState="failed")
    one = backend(place, run)
    with pytest.raises(HostError):
        one.start("engine-0123456789ab")
    one.define(service())
    run.asked.clear()
    one.start("engine-0123456789ab")
    assert run.words() == ["systemctl reset-failed", "systemctl start"]
    run.asked.clear()
    run.shown.update(ActiveState="active", SubState="running", MainPID="1")
    one.start("engine-0123456789ab")
    assert run.words() == []


def test_stop_ends_a_restart_loop_too(place: Tuple[Home, Path]) -> None:
    run = Systemctl(ActiveState="activating", SubState="auto-restart")
    backend(place, run).stop("engine-x", 5)
    assert run.words() == ["systemctl stop", "systemctl kill", "systemctl reset-failed"]


def test_a_refusal_says_what_was_asked(place: Tuple[Home, Path]) -> None:
    run = Systemctl()
    run.answers[("systemctl", "daemon-reload")] = (1, "", "Failed to connect to bus")
    with pytest.raises(HostError, match="daemon-reload.*Failed to connect to bus"):
        backend(place, run).define(service())


def test_a_running_jobs_name_is_a_lock(place: Tuple[Home, Path]) -> None:
    run = Systemctl(ActiveState="active", SubState="running", MainPID="77")
    with pytest.raises(HostError) as caught:
        backend(place, run).start_job(Job("switch", ("/bin/true",)))
    assert caught.value.details["held"] is True
    assert run.words() == []


def test_losing_the_race_for_a_name_is_a_held_lock_as_well(place: Tuple[Home, Path]) -> None:
    run = Systemctl(LoadState="not-found")

    def ask(argv: Sequence[str], timeout: float) -> Tuple[int, str, str]:
        if argv[0] == "systemd-run":
            run.shown.update(LoadState="loaded", ActiveState="active", SubState="running", MainPID="77")
            return 1, "", "Unit draftgate-0af1-switch.service already exists."
        return run(argv, timeout)

    one = SystemdBackend(place[0], run=ask, unit_directory=str(place[1]))
    with pytest.raises(HostError) as caught:
        one.start_job(Job("switch", ("/bin/true",)))
    assert caught.value.details["held"] is True


def test_a_finished_job_is_replaced(place: Tuple[Home, Path]) -> None:
    run = Systemctl(ActiveState="active", SubState="exited", ExecMainCode="1", ExecMainStatus="3")
    backend(place, run).start_job(Job("switch", ("/bin/true",)))
    assert run.words()[0] == "systemctl stop"
    assert run.words()[-1] == "systemd-run --quiet"


def test_ensure_enables_the_boot_unit_once(place: Tuple[Home, Path]) -> None:
    run = Systemctl()
    one = backend(place, run)
    boot = unit(place[0], "boot")
    enabling = [["systemctl", "daemon-reload"], ["systemctl", "enable", "--quiet", boot]]
    assert one.ensure() is True and run.asked == enabling
    assert one.ensure() is True, "killed before it was enabled"
    wants = place[1] / "multi-user.target.wants"
    wants.mkdir()
    (wants / boot).symlink_to(place[1] / boot)
    run.asked.clear()
    assert one.ensure() is False and run.asked == []
    text = (place[1] / boot).read_text()
    assert settings(text)["ExecStart"] == [f"{place[0].command} recover"]
    assert "network-online" not in text, "it starts without a network too"


def test_the_log_is_the_journal_from_a_moment_on(place: Tuple[Home, Path]) -> None:
    run = Systemctl()
    run.answers[("journalctl",)] = (0, "one\ntwo\n", "")
    one = SystemdBackend(place[0], run=run, unit_directory=str(place[1]), clock=lambda: 12.5)
    assert one.log_tail("engine-x", 9, one.log_offset("engine-x")) == ["one", "two"]
    assert run.asked[-1][-4:] == ["--lines", "9", "--since", "@12.500000"]


def test_shutdown_removes_engines_jobs_and_the_boot_unit(place: Tuple[Home, Path]) -> None:
    run = Systemctl()
    one = backend(place, run)
    one.ensure()
    one.define(service())
    names = [unit(place[0], name) for name in ("engine-0123456789ab", "switch", "boot")]
    listed = "".join(f"{name} loaded active exited x\n" for name in names[1:])
    run.answers[("systemctl", "list-units")] = (0, listed, "")
    run.asked.clear()
    one.shutdown()
    assert list(place[1].iterdir()) == []
    stopped = [argv[2] for argv in run.asked if argv[:2] == ["systemctl", "stop"]]
    assert stopped == names[:2]
    assert ["systemctl", "disable", "--quiet", "--now", names[2]] in run.asked
