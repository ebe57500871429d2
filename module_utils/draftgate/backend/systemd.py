"""systemd: engines as units, jobs as transient units, the journal as the log.

Engine units are written but never enabled: at boot only the home's boot unit runs, which starts what
``active.json`` names. An enabled engine would come back by itself after a reboot in the middle of a
switch, whatever the journal says.

All homes of a host share systemd's one room for names, so each unit's name begins with its home's digest.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from ..errors import HostError, InputError
from ..files import make_directory, write_changed
from ..layout import Home
from ..processes import home_digest, mark, owned, start_ticks
from ..reaper import MARK, sweep
from . import base, hardening, users
from .base import Job, JobState, Runner, Service, ServiceState

UNIT_DIRECTORY = "/etc/systemd/system"
BOOT = "boot"

_CALL_SECONDS = 30.0
_REMOVE_SECONDS = 60.0
_BOOT_TRIES = 3
_SHOWN = (
    "LoadState",
    "Job",
    "ActiveState",
    "SubState",
    "MainPID",
    "ExecMainCode",
    "ExecMainStatus",
    "ExecMainStartTimestampMonotonic",
    "ExecMainExitTimestampMonotonic",
)
_EXITED = "1"  # CLD_EXITED of waitid(2); CLD_KILLED is 2, CLD_DUMPED 3
_NVIDIA_MODPROBE = "/usr/bin/nvidia-modprobe"


class SystemdBackend:
    """Engines run as their own user, jobs as root: they manage units.

    :param run: how commands are run.
    :param unit_directory: where units are written.
    """

    name = "systemd"

    def __init__(
        self,
        home: Home,
        *,
        run: Runner = base.run_command,
        unit_directory: str = UNIT_DIRECTORY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.home = home
        self._run = run
        self._units = unit_directory
        self._prefix = f"draftgate-{home_digest(home.root)}-"
        self._clock = clock

    def ensure(self) -> bool:
        """systemd is up where we are; what may be missing is the unit that recovers after a boot."""
        unit = self._unit(BOOT)
        changed = write_changed(self._unit_path(BOOT), boot_unit_text(self.home))
        if changed or not os.path.lexists(os.path.join(self._units, "multi-user.target.wants", unit)):
            self._systemctl("daemon-reload")
            self._systemctl("enable", "--quiet", unit)
            changed = True
        return changed

    # Services

    def define(self, service: Service) -> bool:
        if service.cache:
            give(service.cache, service.user)
        changed = self._write_secrets(service)
        text = unit_text(
            service,
            service_mark=mark(service.name, self.home.root),
            environment_file=self._secrets_of(service.name) if service.secret_files else None,
            groups=users.gpu_groups() if service.user and hardening.GPU in service.traits else (),
            before=device_nodes() if hardening.GPU in service.traits else (),
        )
        if write_changed(self._unit_path(service.name), text):
            self._systemctl("daemon-reload")
            changed = True
        return changed

    def start(self, name: str) -> None:
        """:raises HostError: it was never defined, or could not be executed; it is stopped then, because
        ``Restart=always`` would go on trying."""
        if not os.path.exists(self._unit_path(name)):
            raise HostError(f"starting {name}", "it was never defined", "a defined service")
        if self.state(name).status == "running":
            return
        self._reset_failed(name)
        self._refuse_left(name, sweep(mark(name, self.home.root)))
        try:
            self._systemctl("start", self._unit(name))
        except HostError as exc:
            told = self.log_tail(name, 4)
            self.stop(name, _CALL_SECONDS)
            raise HostError(exc.doing, " / ".join([exc.observed, *told]), next_step=exc.next_step) from exc

    def stop(self, name: str, deadline_seconds: float) -> None:
        """Also ends the automatic restarts of a bad start, and clears its failures: the next start must
        not meet its start limit."""
        self._run(["systemctl", "stop", self._unit(name)], deadline_seconds)
        self._run(["systemctl", "kill", "--signal=SIGKILL", self._unit(name)], _CALL_SECONDS)
        self._refuse_left(name, sweep(mark(name, self.home.root)))
        self._reset_failed(name)

    def state(self, name: str) -> ServiceState:
        shown = self._show(name)
        if shown["LoadState"] in ("not-found", ""):
            return ServiceState("absent")
        pid = int(shown["MainPID"] or 0) or None
        return ServiceState(
            status=_service_status(shown),
            pid=pid,
            start_ticks=start_ticks(pid) if pid else None,
            exit_code=None if pid else _exit_code(shown),
            since=self._since(shown),
        )

    def remove(self, name: str) -> None:
        path = self._unit_path(name)
        if os.path.exists(path) or self.state(name).status != "absent":
            self.stop(name, _REMOVE_SECONDS)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            self._systemctl("daemon-reload")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._secrets_of(name))

    def services(self) -> List[str]:
        paths = glob.glob(os.path.join(self._units, f"{self._prefix}{base.ENGINE_PREFIX}*.service"))
        return sorted(self._name(os.path.basename(path)) for path in paths)

    # Jobs

    def start_job(self, job: Job) -> None:
        state = self.job_state(job.name)
        if state.status == "running":
            raise base.held(job.name, state.pid)
        if state.status == "finished":
            self.remove_job(job.name)
        command = job_command(job, self._unit(job.name), mark(job.name, self.home.root))
        code, _out, err = self._run(command, _CALL_SECONDS)
        if code == 0:
            return
        # systemd refuses a name in use: somebody was faster between the look and the start.
        state = self.job_state(job.name)
        if state.status == "running":
            raise base.held(job.name, state.pid)
        raise HostError(f"starting the job {job.name!r}", f"systemd-run ended with {code}: {err.strip()}")

    def job_state(self, name: str) -> JobState:
        shown = self._show(name)
        # A unit that was collected reads like one that succeeded: only LoadState tells.
        if shown["LoadState"] in ("not-found", ""):
            return JobState("absent")
        pid = int(shown["MainPID"] or 0) or None
        queued = shown["Job"] not in ("", "0")
        if pid or queued or shown["ActiveState"] in ("activating", "deactivating"):
            return JobState("running", pid=pid, since=self._since(shown))
        return JobState("finished", exit_code=_exit_code(shown), since=self._since(shown))

    def remove_job(self, name: str) -> None:
        self.stop(name, _REMOVE_SECONDS)

    # Logs

    def log_path(self, name: str) -> str:
        return f"journalctl --unit {self._unit(name)}"

    def log_offset(self, name: str) -> int:
        """Microseconds since the epoch, for journalctl's ``--since``."""
        return int(self._clock() * 1_000_000)

    def log_tail(self, name: str, lines: int, since_offset: Optional[int] = None) -> List[str]:
        argv = ["journalctl", "--unit", self._unit(name), "--output", "cat", "--no-pager", "--quiet"]
        argv += ["--lines", str(lines)]
        if since_offset is not None:
            argv += ["--since", f"@{since_offset // 1_000_000}.{since_offset % 1_000_000:06d}"]
        code, out, _err = self._run(argv, _CALL_SECONDS)
        return out.splitlines() if code == 0 else []

    def shutdown(self) -> None:
        for name in self.services():
            self.remove(name)
        for name in self._loaded():
            self.stop(name, _REMOVE_SECONDS)
        if os.path.exists(self._unit_path(BOOT)):
            self._systemctl("disable", "--quiet", "--now", self._unit(BOOT))
            os.unlink(self._unit_path(BOOT))
        self._systemctl("daemon-reload")

    # Below: one step each

    def _loaded(self) -> List[str]:
        """This home's units that systemd knows, jobs among them; the boot unit may be what is calling us."""
        argv = ["systemctl", "list-units", "--all", "--plain", "--no-legend", "--no-pager"]
        _code, out, _err = self._run([*argv, f"{self._prefix}*.service"], _CALL_SECONDS)
        names = [self._name(line.split()[0]) for line in out.splitlines() if line.strip()]
        return [name for name in names if name != BOOT]

    def _unit(self, name: str) -> str:
        """:raises InputError: a name that systemd would read as something else."""
        base.require_name(name)
        return f"{self._prefix}{name}.service"

    def _name(self, unit: str) -> str:
        return unit[len(self._prefix) : -len(".service")]

    def _unit_path(self, name: str) -> str:
        return os.path.join(self._units, self._unit(name))

    def _secrets_of(self, name: str) -> str:
        return os.path.join(self.home.secrets, f"{name}.env")

    def _write_secrets(self, service: Service) -> bool:
        """The environment file PID 1 reads. Written anew at each define, so that a rotated secret arrives."""
        if not service.secret_files:
            return False
        values = {}
        for name, path in service.secret_files.items():
            with open(path, encoding="utf-8") as handle:
                values[name] = handle.read().rstrip("\r\n")
        return write_changed(self._secrets_of(service.name), environment_file_text(values), 0o600)

    def _reset_failed(self, name: str) -> None:
        # refused when it has not failed
        self._run(["systemctl", "reset-failed", self._unit(name)], _CALL_SECONDS)

    def _refuse_left(self, name: str, left: Sequence[int]) -> None:
        left = left and owned(name, self.home.root)
        if left:
            raise base.left_over(name, left)

    def _systemctl(self, *words: str) -> None:
        code, out, err = self._run(["systemctl", *words], _CALL_SECONDS)
        if code != 0:
            raise HostError(
                f"running systemctl {' '.join(words)}",
                f"it ended with {code}: {(err or out).strip()}",
                next_step="The journal says more: journalctl --unit, or --boot for systemd itself.",
            )

    def _show(self, name: str) -> Dict[str, str]:
        argv = ["systemctl", "show", self._unit(name), f"--property={','.join(_SHOWN)}"]
        code, out, err = self._run(argv, _CALL_SECONDS)
        if code != 0:
            raise HostError(f"asking systemd about {name}", f"systemctl ended with {code}: {err.strip()}")
        found = dict(line.partition("=")[::2] for line in out.splitlines() if "=" in line)
        return {key: found.get(key, "") for key in _SHOWN}

    def _since(self, shown: Mapping[str, str]) -> Optional[float]:
        which = "Start" if int(shown["MainPID"] or 0) else "Exit"
        microseconds = int(shown[f"ExecMain{which}TimestampMonotonic"] or 0)
        if not microseconds:
            return None
        return self._clock() - (time.clock_gettime(time.CLOCK_MONOTONIC) - microseconds / 1_000_000)


def _service_status(shown: Mapping[str, str]) -> str:
    active, sub = shown["ActiveState"], shown["SubState"]
    if sub.startswith("auto-restart") or (active == "activating" and not int(shown["MainPID"] or 0)):
        return "starting"
    if active in ("active", "reloading", "deactivating", "activating"):
        return "running"
    return "failed" if active == "failed" else "stopped"


def _exit_code(shown: Mapping[str, str]) -> Optional[int]:
    """As a shell would show it; None when nothing has ended yet."""
    if shown["ExecMainCode"] in ("", "0"):
        return None
    status = int(shown["ExecMainStatus"] or 0)
    return status if shown["ExecMainCode"] == _EXITED else 128 + status


def give(directory: str, user: str) -> None:
    """Make ``directory`` and let it, with all that lies in it, belong to ``user`` (to us when empty).

    The directory itself last: what a kill interrupts is begun again. No link is followed: what is in there
    was chosen by the engine.

    :raises HostError: there is no such user.
    """
    owner = users.required_entry(user) if user else None
    uid, gid = (owner.pw_uid, owner.pw_gid) if owner else (os.geteuid(), os.getegid())
    make_directory(directory, 0o700)
    if os.stat(directory).st_uid == uid:
        return
    for _path, folders, names, descriptor in os.fwalk(directory, follow_symlinks=False):
        for name in [*folders, *names]:
            os.chown(name, uid, gid, dir_fd=descriptor, follow_symlinks=False)
    os.chown(directory, uid, gid)


def device_nodes() -> List[str]:
    """The command that loads NVIDIA's modules and makes their nodes; empty where it is not installed.

    CUDA itself calls it, a setuid program, which NoNewPrivileges makes useless.
    """
    if not os.path.exists(_NVIDIA_MODPROBE):
        return []
    cards = len(glob.glob("/proc/driver/nvidia/gpus/*"))
    return [_NVIDIA_MODPROBE, "-u", *(f"-c={number}" for number in range(max(cards, 1)))]


def unit_text(
    service: Service,
    *,
    service_mark: str = "",
    environment_file: Optional[str] = None,
    groups: Sequence[str] = (),
    before: Sequence[str] = (),
) -> str:
    """The unit of one engine.

    - ``Restart=always``: vLLM's API server exits 0 when a worker dies, so ``on-failure`` leaves it dead.
    - ``KillMode=mixed``: TERM for the API server alone, which stops its workers; SIGKILL for what is left
      when it has gone (vllm#55510). ``control-group`` takes 7-10 s for what this does in 0.5 s.
    - the start limit counts as the other backend does: five deaths, each within ten minutes of its start.
    - secrets by ``EnvironmentFile``: PID 1 reads it as root, so the service's user need not be able to,
      and ``systemctl show`` does not print it. ``LoadCredential`` would hand over files, and vLLM reads
      VLLM_API_KEY and HF_TOKEN from the environment only.
    - no rate limit on the log: a traceback of five processes at once is what it would drop.
    - what it may do: the table ``hardening``.

    :param groups: supplementary ones, which the host must have.
    :param before: a command that root runs first; it may fail.
    """
    environment = {**base.base_environment(), **service.environment}
    if service.user and "HOME" not in service.environment:
        del environment["HOME"]  # systemd sets it from the user
    if service_mark:
        environment[MARK] = service_mark
    environment["SPT_NOENV"] = "1"  # setproctitle must leave /proc/<pid>/environ, and the mark in it, alone
    limit = base.QUICK_DEATH_SECONDS * base.QUICK_DEATHS
    lines = [
        "# Written by Draftgate; not enabled on purpose: the home's boot unit starts what is activated.",
        "# Changes of your own: docs/hardening.md.",
        "[Unit]",
        f"Description=Draftgate {specifiers(service.name)}",
        f"After={_AFTER}",
        f"StartLimitIntervalSec={limit}",
        f"StartLimitBurst={base.QUICK_DEATHS}",
        "",
        "[Service]",
        "Type=exec",
        *([f"User={specifiers(service.user)}"] if service.user else []),
        *([f"SupplementaryGroups={' '.join(groups)}"] if groups else []),
        f"WorkingDirectory={specifiers(service.working_directory)}",
        *(f"Environment={quoted(f'{name}={text}')}" for name, text in sorted(environment.items())),
        *([f"EnvironmentFile={specifiers(environment_file)}"] if environment_file else []),
        *([f"ExecStartPre=+-{exec_line(before)}"] if before else []),
        f"ExecStart={exec_line(service.argv)}",
        "Restart=always",
        "RestartSec=2",
        "KillMode=mixed",
        f"TimeoutStopSec={service.stop_seconds}",
        "LogRateLimitIntervalSec=0",
        "LimitNOFILE=65536",
        "",
        *([f"ReadWritePaths={quoted(service.cache)}"] if service.cache else []),
        *hardening.lines(service.traits),
        "",
    ]
    return "\n".join(lines)


_AFTER = "network.target nvidia-persistenced.service nvidia-fabricmanager.service"
"""Only an order, where these are started at all: CUDA must not begin before a fabric manager is up. Without
network-online.target: an activated release comes back on a host whose network does not."""


def boot_unit_text(home: Home) -> str:
    """Runs ``draftgate recover`` once per boot: finish an interrupted switch, start what is activated.

    Not ``Type=oneshot``: the boot would not count as finished for as long as a large model loads. It is tried
    again, because what an engine needs (a card, an address) may come later than it.
    """
    return "\n".join(
        [
            "# Written by Draftgate.",
            "[Unit]",
            f"Description=Draftgate: start what is activated in {specifiers(home.root)}",
            f"After={_AFTER}",
            f"RequiresMountsFor={quoted(home.root)}",
            f"ConditionPathExists={specifiers(home.active)}",
            "StartLimitIntervalSec=1d",
            f"StartLimitBurst={_BOOT_TRIES}",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={exec_line([home.command, 'recover'])}",
            "RemainAfterExit=yes",
            "Restart=on-failure",
            "RestartSec=30",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def job_command(job: Job, unit: str, job_mark: str) -> List[str]:
    """``systemd-run`` for a job: a transient unit that stays loaded after its end, for its exit code.

    A verdict counts as success whatever its number, so that ``Restart=on-failure`` means interruptions
    only; the start limit ends a job that fails by itself. ``Type=oneshot``: to any other type a SIGTERM from
    anywhere is a success.
    """
    properties = [
        "Type=oneshot",
        "RemainAfterExit=yes",
        f"SuccessExitStatus={' '.join(str(code) for code in sorted(job.verdict_exit_codes)) or '0'}",
        "Restart=on-failure",
        "RestartSec=2",
        f"StartLimitIntervalSec={base.QUICK_DEATH_SECONDS}",
        f"StartLimitBurst={base.QUICK_DEATHS}",
        "KillMode=mixed",
        "LogRateLimitIntervalSec=0",
    ]
    environment = {**base.base_environment(), **job.environment, MARK: job_mark}
    return [
        "systemd-run",
        "--quiet",
        "--no-block",
        f"--unit={unit}",
        f"--description=Draftgate {job.name}",
        f"--working-directory={job.working_directory}",
        *(f"--property={entry}" for entry in properties),
        *(f"--setenv={name}={text}" for name, text in sorted(environment.items())),
        "--",
        # systemd expands $NAME in a command's arguments, ours are meant as they are
        *(word.replace("$", "$$") for word in job.argv),
    ]


def specifiers(text: str) -> str:
    """``text`` where systemd expands %-specifiers and nothing else.

    :raises InputError: a line end, which would begin another setting.
    """
    if re.search(r"[\r\n\0]", text):
        raise InputError("writing a systemd unit", f"{text!r}", "text on one line")
    return text.replace("%", "%%")


def quoted(text: str) -> str:
    """One word in quotes (systemd.syntax(7)): escapes, control characters and specifiers."""
    quote = "'" if '"' in text and "'" not in text else '"'
    escaped = text.replace("\\", "\\\\").replace(quote, f"\\{quote}").replace("%", "%%")
    escaped = re.sub(r"[\x01-\x1f\x7f]", lambda found: f"\\x{ord(found.group()):02x}", escaped)
    return f"{quote}{escaped}{quote}"


_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")


def exec_line(argv: Sequence[str]) -> str:
    """A command for ``ExecStart=``, one argument a line, so that ``systemctl cat`` and a diff can be read.

    A word that is more than letters, digits and a few signs is quoted, ``$`` is doubled so that no variable
    is expanded.
    """
    line = ""
    for number, word in enumerate(argv):
        text = word.replace("$", "$$") if number else word
        line += (" \\\n    " if word.startswith("-") else " ") if number else ""
        line += text if _PLAIN.fullmatch(text) else quoted(text)
    return line


def environment_file_text(values: Mapping[str, str]) -> str:
    """An ``EnvironmentFile=``: in double quotes only backslash, quote, dollar and backtick need an escape.

    :raises InputError: a secret with a line end or a NUL byte.
    """
    lines = []
    for name, text in sorted(values.items()):
        if re.search(r"[\r\n\0]", text):
            raise InputError("writing the engine's secrets", f"{name} has several lines", "one line")
        escaped = re.sub(r'([\\"$`])', r"\\\1", text)
        lines.append(f'{name}="{escaped}"')
    return "\n".join([*lines, ""])
