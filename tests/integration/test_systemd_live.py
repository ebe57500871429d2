"""The systemd backend on a real host: engines that die as badly as vLLM's processes do, jobs, a reboot."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from draftgate import spec
from draftgate.launch import current_run
from draftgate.layout import SYSTEM_ROOT as HOME
from draftgate.processes import home_digest

from tests.cache import REPO, RUNTIMES
from tests.e2e.installation import until
from tests.hosts import Host, Hosts, NoHosts
from tests.specs import SPEC

NAME = "systemd"
USER = "draftgate"
PYTHON = "/usr/bin/python3"
VLLM = f"{HOME}/runtimes/{SPEC['serve']['runtime']['lock'][:12]}/bin/vllm"
PREFIX = f"draftgate-{home_digest(HOME)}-"
SECRET = "s3cret-$x`%n\"'"
AWKWARD = "a b %n ${HOME} $X \\ \"q\" 'p' ; # é \t"
SCORE_CPU, SCORE_GPU = 1.3, 2.3
"""systemd's own measure of what a unit may do: 0 is nothing, 10 everything; an ordinary service has 9.6."""

# As vLLM's: core and worker are not in the API server's session, and it exits 0 when one of them dies.
# /try evaluates, so that a test sees what the engine may do.
ENGINE = f"""#!{PYTHON}
import http.server, json, os, subprocess, sys, threading, time, urllib.parse
given = sys.argv[1:]
if "--die" in given:
    print("it dies", flush=True)
    sys.exit(int(given[given.index("--die") + 1]))
role = given[0] if given[0] in ("core", "worker") else "api"
below = {{"api": "core", "core": "worker"}}.get(role)
child = below and subprocess.Popen([sys.executable, sys.argv[0], below], start_new_session=True)
if role != "api":
    while not child or child.poll() is None:
        time.sleep(0.05)
    sys.exit(0)
port = int(given[given.index("--port") + 1])
pages = {{"/health": "", "/version": '{{"version": "0.32.0"}}'}}
pages["/v1/models"] = '{{"data": [{{"id": "tiny"}}]}}'
answer = {{"choices": [{{"message": {{"content": "Hello"}}, "finish_reason": "stop"}}],
          "usage": {{"prompt_tokens": 1, "completion_tokens": 1}}}}
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass
    def say(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        path, _, query = self.path.partition("?")
        if path != "/try":
            return self.say(pages[path].encode())
        try:
            value = repr(eval(urllib.parse.unquote(query)))
        except Exception as exc:
            value = type(exc).__name__ + ": " + str(exc)
        self.say(value.encode())
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.say(json.dumps(answer).encode())
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("it listens on", port, flush=True)
while child.poll() is None:
    time.sleep(0.05)
"""

# Root's one process on the host for all calls: a call is a line, its answer is one.
ROOT = f"""
import dataclasses, json, os, subprocess, sys
sys.path.insert(0, os.path.realpath("{HOME}/agent/current"))
from draftgate.backend.base import Job, Service
from draftgate.backend.systemd import SystemdBackend
from draftgate.errors import DraftgateError
from draftgate.layout import Home
manager, kinds = SystemdBackend(Home("{HOME}")), {{"service": Service, "job": Job}}
def run(command, given):
    how = {{"input": given, "capture_output": True, "text": True, "errors": "replace"}}
    done = subprocess.run(["sh", "-c", command], **how)
    return [done.returncode, done.stdout, done.stderr]
for line in sys.stdin:
    name, given = json.loads(line)
    args = [kinds[arg["kind"]](**arg["fields"]) if isinstance(arg, dict) else arg for arg in given]
    try:
        value = run(*args) if name == "run" else getattr(manager, name)(*args)
        answer = {{"value": dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value}}
    except DraftgateError as exc:
        answer = {{"error": exc.as_dict()}}
    print(json.dumps(answer), flush=True)
"""


class Refused(Exception):
    """A DraftgateError of the host."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error)
        self.error = error


class Root:
    """Root on the host: ``root("start", name)`` calls the backend there, ``root.run`` a shell."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.connect()

    def connect(self) -> None:
        command = f"exec sudo {PYTHON} -c {shlex.quote(ROOT)}"
        argv = ["ssh", *self.host.ssh_options, f"deploy@{self.host.address}", command]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def __call__(self, name: str, *given: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps([name, given]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["value"]

    def run(self, command: str, given: str = "") -> str:
        """Its stdout, whatever it ends with."""
        _code, out, _err = self("run", command, given)
        return str(out)

    def write(self, path: str, text: str, mode: str = "644") -> None:
        self.run(f"mkdir -p $(dirname {path}) && cat > {path} && chmod {mode} {path}", text)

    def status(self, name: str) -> str:
        return str(self("state", name)["status"])

    def job(self, name: str) -> dict[str, Any]:
        state: dict[str, Any] = self("job_state", name)
        return state

    def ended(self, name: str) -> int | None:
        """The job's exit code, once it has one."""
        until(lambda: self.job(name)["status"] == "finished", 30, f"the end of {name}")
        code: int | None = self.job(name)["exit_code"]
        return code


def service(name: str, *options: str, **changes: Any) -> dict[str, Any]:
    fields = {
        "name": name,
        "argv": [VLLM, "serve", *options],
        "environment": {"HOME": f"{HOME}/cache/{USER}", "AWKWARD": AWKWARD},
        "secret_files": {},
        "working_directory": HOME,
        "stop_seconds": 5,
        "user": USER,
        "cache": f"{HOME}/cache/{USER}",
        "traits": ["cpu", "loopback"],
        **changes,
    }
    return {"kind": "service", "fields": fields}


def job(name: str, script: str) -> dict[str, Any]:
    fields = {"name": name, "argv": [PYTHON, "-c", script], "verdict_exit_codes": [0, 3]}
    return {"kind": "job", "fields": fields}


def unit(name: str) -> str:
    return f"{PREFIX}{name}.service"


class Engine:
    """A defined stand-in, and what is asked of it through the host."""

    def __init__(self, root: Root, name: str, port: int, **changes: Any) -> None:
        self.root, self.name, self.port = root, name, port
        root("define", service(name, "--port", str(port), **changes))

    def start(self) -> None:
        self.root("start", self.name)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.root("state", self.name)
        return state

    def processes(self) -> list[int]:
        """Of its control group, and of its mark wherever they are."""
        found = self.root.run(
            f"cat /sys/fs/cgroup/*/system.slice/{unit(self.name)}/cgroup.procs"
            f" /sys/fs/cgroup/system.slice/{unit(self.name)}/cgroup.procs 2>/dev/null;"
            f" grep -lsz '^DRAFTGATE_SERVICE={self.name}@' /proc/[0-9]*/environ | cut -d/ -f3"
        )
        return sorted(set(map(int, found.split())))

    def whole(self) -> list[int]:
        """Its three processes, once they are there and it answers."""
        until(lambda: len(self.processes()) == 3 and self.tries("1") == "1", 30, f"{self.name} answers")
        return self.processes()

    def tries(self, expression: str) -> str:
        url = f"http://127.0.0.1:{self.port}/try?{urllib.parse.quote(expression)}"
        return self.root.run(f"curl -s --max-time 5 {shlex.quote(url)}")


# The host, and the role that prepares it


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Root's umask there is 077, as hardened hosts have it."""
    try:
        made = Hosts.up(NAME, 1)
    except NoHosts as exc:
        pytest.skip(str(exc))
    try:
        strict = "Defaults umask=0077\\nDefaults umask_override\\n"
        made[0].sudo(f"printf '{strict}' > /etc/sudoers.d/umask; chmod 440 /etc/sudoers.d/umask")
        yield made
    finally:
        Hosts.down(NAME)


class Play:
    """Runs the role, or another playbook, on the host; its exit code, and what Ansible said."""

    def __init__(self, hosts: Hosts, directory: Path) -> None:
        self.directory = directory
        (directory / "hosts.yml").write_text(hosts.inventory(), "utf-8")
        role = [{"ansible.builtin.import_role": {"name": "host_agent"}, "name": "Prepare"}]
        play = [{"hosts": "draftgate", "gather_facts": False, "name": "Prepare", "tasks": role}]
        (directory / "play.yml").write_text(json.dumps(play), "utf-8")

    def __call__(self, *options: str, playbook: str = "") -> tuple[int, str]:
        chosen = playbook or str(self.directory / "play.yml")
        argv = [str(Path(sys.executable).with_name("ansible-playbook")), chosen]
        argv += ["-i", str(self.directory / "hosts.yml"), *options]
        done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def play(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Play:
    return Play(hosts, tmp_path_factory.mktemp("play"))


@pytest.fixture(scope="module")
def root(hosts: Hosts, play: Play) -> Iterator[Root]:
    """With the agent, the user, and the stand-in in the place of a runtime."""
    code, said = play()
    assert code == 0, said
    one = Root(hosts[0])
    one.write(VLLM, ENGINE, "755")
    one.run(f"chmod -R o+rX {HOME}/runtimes; mkdir -p {VLLM}/../../lib/python3.11/site-packages")
    yield one
    one.close()


def test_the_role_in_check_mode_does_nothing_on_a_bare_host(hosts: Hosts, play: Play) -> None:
    code, said = play("--check")
    assert code == 0 and "changed=2" in said, said
    assert (
        hosts[0].sudo(f"id {USER} 2>&1 | grep -c 'no such user'; ls /var/lib | grep -c draftgate; true")
        == "1\n0\n"
    )


def test_a_home_that_the_engine_cannot_reach_is_refused_before_anything(hosts: Hosts, play: Play) -> None:
    code, said = play("-e", "draftgate_home=/root/.draftgate")
    assert code != 0 and "DG160" in said and "the unit hides /root" in " ".join(said.split())
    assert hosts[0].sudo(f"ls -A /root | grep draftgate; id {USER} 2>&1 | grep -c 'no such user'") == "1\n"


def test_the_role_makes_the_user_once(root: Root, play: Play) -> None:
    entry = root.run(f"getent passwd {USER}").strip().split(":")
    assert int(entry[2]) < 1000 and entry[5:] == ["/nonexistent", "/usr/sbin/nologin"]
    assert root.run(f"systemctl is-enabled {unit('boot')}").strip() == "enabled"
    code, said = play()
    assert code == 0 and "changed=0" in said, said


# Engines

DYING = "engine-dying"


@pytest.fixture(scope="module")
def dying(root: Root) -> int:
    """Begun first, because five deaths take a while. Where its log begins."""
    begin: int = root("log_offset", DYING)
    root("define", service(DYING, "--die", "7"))
    root("start", DYING)
    return begin


@pytest.fixture(scope="module")
def engine(root: Root, dying: int) -> Engine:
    root.run(f"install -d -m 700 {HOME}/secrets")
    root.write(f"{HOME}/secrets/key1", SECRET, "600")
    one = Engine(root, "engine-one", 8101, secret_files={"VLLM_API_KEY": f"{HOME}/secrets/key1"})
    one.start()
    return one


def test_an_engine_is_what_was_defined(engine: Engine, root: Root) -> None:
    processes, state = engine.whole(), engine.state()
    assert state["status"] == "running" and state["pid"] in processes and state["start_ticks"]
    assert abs(state["since"] - float(root.run("date +%s.%N"))) < 30
    assert engine.name in root("services")
    engine.start()
    assert engine.state()["pid"] == state["pid"], "a running one is left alone"
    assert engine.tries("__import__('os').environ['AWKWARD']") == repr(AWKWARD)


def test_a_killed_api_server_leaves_nobody_and_comes_back(engine: Engine, root: Root) -> None:
    before = engine.whole()
    root.run(f"kill -KILL {engine.state()['pid']}")
    until(lambda: not set(before) & set(engine.processes()), 3, "its core and worker end")
    assert not set(before) & set(engine.whole())
    assert engine.state()["status"] == "running"


def test_a_dead_worker_ends_the_engine_with_0_and_it_comes_back(engine: Engine, root: Root) -> None:
    before, begin = engine.whole(), root("log_offset", engine.name)
    root.run("pkill -KILL -f 'vllm worker'")
    until(lambda: not set(before) & set(engine.processes()), 5, "it ends")
    engine.whole()
    told = "\n".join(root("log_tail", engine.name, 50, begin))
    assert "Deactivated successfully" in told and "Scheduled restart job" in told


def test_stop_leaves_nothing_and_start_brings_it_back(engine: Engine, root: Root) -> None:
    engine.whole()
    root("stop", engine.name, 10)
    assert engine.state()["status"] == "stopped" and engine.processes() == []
    engine.start()
    engine.whole()


def test_five_deaths_are_failed_and_the_next_start_does_not_meet_the_limit(root: Root, dying: int) -> None:
    until(lambda: root.status(DYING) == "failed", 30, "the manager gives up")
    assert root("state", DYING)["exit_code"] == 7
    # a daemon-reload meanwhile, as every new engine has one, begins the count anew
    assert 5 <= root("log_tail", DYING, 100, dying).count("it dies") <= 8
    root("start", DYING)
    until(lambda: root.status(DYING) == "starting", 30, "it waits for its restart")
    root("stop", DYING, 10)
    assert root.status(DYING) == "stopped"
    time.sleep(2.5)  # RestartSec is 2
    assert root.status(DYING) == "stopped"


def test_what_cannot_be_executed_is_told_and_not_tried_for_ever(root: Root) -> None:
    name = "engine-missing"
    root("define", service(name, argv=["/nowhere/bin/vllm", "serve"]))
    with pytest.raises(Refused) as caught:
        root("start", name)
    assert re.search(r"/nowhere/bin/vllm.*No such file", caught.value.error["observed"])
    assert root.status(name) == "stopped"
    root("remove", name)
    assert root.status(name) == "absent" and name not in root("services")


def test_a_unit_that_systemd_was_not_told_of_is_read_at_the_start(engine: Engine, root: Root) -> None:
    """Killed between writing it and the daemon-reload."""
    engine.whole()
    root("stop", engine.name, 10)
    path = f"/etc/systemd/system/{unit(engine.name)}"
    root.run(f"sed -i 's/^RestartSec=2$/RestartSec=2\\nNice=5/' {path}; touch -d '+2 seconds' {path}")
    engine.start()
    engine.whole()
    assert root.run(f"ps -o ni= -p {engine.state()['pid']}").strip() == "5"


# What an engine may do


def test_a_secret_reaches_the_engine_and_nothing_else(engine: Engine, root: Root) -> None:
    engine.whole()
    assert engine.tries("__import__('os').environ['VLLM_API_KEY']") == repr(SECRET)
    for command in (
        f"systemctl show {unit(engine.name)}",
        f"systemctl cat {unit(engine.name)}",
        "ps -ef",
        "journalctl -b --no-pager -o export",
    ):
        shown = root.run(command)
        assert shown and SECRET[:6] not in shown, command
    path = f"{HOME}/secrets/{engine.name}.env"
    assert root.run(f"stat -c '%a %U' {path}").split() == ["600", "root"]
    for tried in (path, f"{HOME}/secrets/key1", f"{HOME}/secrets"):
        assert engine.tries(f"open({tried!r}).read()").startswith("PermissionError")


CACHE = f"{HOME}/cache/{USER}"
SANDBOX = {
    "__import__('getpass').getuser()": repr(USER),
    "__import__('os').environ['HOME']": repr(CACHE),
    "__import__('os').getcwd()": repr(HOME),
    # what it may read
    f"len(open({VLLM!r}).read()) > 0": "True",
    f"__import__('os').access({HOME + '/agent/current/draftgate/__init__.py'!r}, 4)": "True",
    # where it may write
    f"open({CACHE + '/x'!r}, 'w').write('x')": "1",
    "open('/tmp/x', 'w').write('x')": "1",
    "open('/dev/shm/x', 'w').write('x')": "1",
    f"open({HOME + '/x'!r}, 'w')": "OSError: [Errno 30]",
    f"open({HOME + '/cache/x'!r}, 'w')": "OSError: [Errno 30]",
    f"open({HOME + '/agent/current/draftgate/__init__.py'!r}, 'a')": "PermissionError",
    "open('/etc/x', 'w')": "OSError: [Errno 30]",
    # what is not there for it
    "__import__('os').listdir('/root')": "PermissionError",
    "__import__('os').path.exists('/home/deploy')": "False",
    "__import__('os').path.exists('/tmp/everybodys')": "False",
    "__import__('os').path.exists('/dev/net/tun')": "False",
    "open('/proc/1/status').read()": "FileNotFoundError",
    "__import__('socket').socket(17, 3)": "OSError: [Errno 97]",
    "__import__('ctypes').CDLL(None).unshare(0x10000000)": "-1",
    # what it needs
    "__import__('os').sched_setaffinity(0, __import__('os').sched_getaffinity(0))": "None",
    "'model name' in open('/proc/cpuinfo').read()": "True",
    "len(__import__('socket').if_nameindex()) > 0": "True",
}


def test_what_it_may_and_may_not(engine: Engine, root: Root) -> None:
    engine.whole()
    root.run("touch /tmp/everybodys")
    seen = {expression: engine.tries(expression) for expression in SANDBOX}
    wrong = {
        expression: seen[expression] for expression in SANDBOX if SANDBOX[expression] not in seen[expression]
    }
    assert wrong == {}


def test_nothing_that_root_runs_belongs_to_the_engine(engine: Engine, root: Root) -> None:
    """The switch job runs the agent as root: who may write there is root."""
    theirs = f"\\( -user {USER} -o -group {USER} -o -perm /022 \\)"
    assert root.run(f"find {HOME} {theirs} ! -type l ! -path '{CACHE}*'") == ""
    writable = root.run(f"su -s /bin/sh {USER} -c 'find {HOME} -writable ! -type l' 2>/dev/null").split()
    assert writable and all(path.startswith(CACHE) for path in writable)


def test_it_is_called_from_this_host_alone(engine: Engine) -> None:
    engine.whole()
    address = engine.root.host.address
    outside = engine.tries(f"__import__('socket').create_connection(({address!r}, 22), 1)")
    if outside.startswith("<socket"):
        pytest.skip("IPAddressDeny is not enforced on this host")
    assert "timed out" in outside or "PermissionError" in outside
    assert engine.tries("1") == "1"


def test_the_score_of_both_profiles(engine: Engine, root: Root) -> None:
    root("define", service("engine-gpu", traits=["gpu"]))
    scores = {}
    for name in (engine.name, "engine-gpu"):
        told = root.run(f"systemd-analyze security --no-pager {unit(name)}")
        found = re.search(r"exposure level for \S+: ([\d.]+)", told)
        assert found, told
        scores[name] = float(found.group(1))
    root("remove", "engine-gpu")
    assert scores[engine.name] <= SCORE_CPU and scores["engine-gpu"] <= SCORE_GPU, scores


def test_systemd_has_nothing_to_say_about_the_units(engine: Engine, root: Root) -> None:
    """An unknown setting is a warning in its log, and no setting."""
    told = root.run(f"systemd-analyze verify --man=no {unit(engine.name)} {unit('boot')} 2>&1")
    told += root.run("journalctl -b --no-pager -q -t systemd -p warning")
    assert [line for line in told.splitlines() if f"/etc/systemd/system/{PREFIX}" in line] == []


def test_the_log_is_told_from_a_moment_on(engine: Engine, root: Root) -> None:
    engine.whole()
    begin = root("log_offset", engine.name)
    assert root("log_tail", engine.name, 50, begin) == []
    root("stop", engine.name, 10)
    engine.start()
    engine.whole()
    up = f"it listens on {engine.port}"
    assert root("log_tail", engine.name, 50, begin).count(up) == 1
    run = current_run(root("log_tail", engine.name, 50))
    assert run[0].startswith("Starting ") and run.count(up) == 1


def test_an_operators_own_settings_stay(engine: Engine, root: Root) -> None:
    """For all engines of the home, and for one as systemctl edit writes them."""
    every, one = f"{PREFIX}engine-.service.d", f"{unit(engine.name)}.d"
    root.write(f"/etc/systemd/system/{every}/mine.conf", "[Service]\nNice=7\n")
    root.write(f"/etc/systemd/system/{one}/override.conf", "[Service]\nIOWeight=77\n")
    try:
        assert root("define", service(engine.name, "--port", str(engine.port), "--new")) is True
        root("stop", engine.name, 10)
        engine.start()
        engine.whole()
        assert root.run(f"systemctl show -p IOWeight --value {unit(engine.name)}").strip() == "77"
        assert root.run(f"ps -o ni= -p {engine.state()['pid']}").strip() == "7"
    finally:
        root.run(f"rm -r /etc/systemd/system/{every} /etc/systemd/system/{one}; systemctl daemon-reload")


# Jobs


def test_a_job_ends_with_its_verdict_and_its_name_is_a_lock(root: Root) -> None:
    assert root.job("ask")["status"] == "absent"
    root("start_job", job("ask", "import time; time.sleep(1); raise SystemExit(3)"))
    assert root.job("ask")["status"] == "running"
    with pytest.raises(Refused) as caught:
        root("start_job", job("ask", "pass"))
    assert caught.value.error["details"]["held"] is True
    assert root.ended("ask") == 3
    root("start_job", job("ask", "pass"))
    assert root.ended("ask") == 0, "a finished one is replaced"
    root("remove_job", "ask")
    assert root.job("ask")["status"] == "absent"


COUNTING = """
import os, sys, time
with open({path!r}, "a") as runs:
    runs.write("x")
{then}
"""


@pytest.mark.parametrize("number", ["KILL", "TERM"])
def test_a_job_that_is_killed_goes_on(root: Root, number: str) -> None:
    name, path = f"killed-{number.lower()}", f"/run/test-{number}"
    script = COUNTING.format(path=path, then=f"time.sleep(60 if os.path.getsize({path!r}) == 1 else 0)")
    root("start_job", job(name, script))
    until(lambda: root.run(f"cat {path} 2>/dev/null") == "x", 30, "its first run")
    root.run(f"kill -{number} {root.job(name)['pid']}")
    assert root.job(name)["status"] == "running"
    assert root.ended(name) == 0
    assert root.run(f"cat {path}") == "xx"
    root("remove_job", name)


def test_a_job_that_crashes_by_itself_ends(root: Root) -> None:
    root("start_job", job("crash", COUNTING.format(path="/run/test-crash", then="sys.exit(9)")))
    assert root.ended("crash") == 9
    assert len(root.run("cat /run/test-crash")) == 5
    root("remove_job", "crash")


def test_a_job_survives_the_link_that_started_it(root: Root) -> None:
    link = Root(root.host)
    link("start_job", job("linked", "import time; time.sleep(2); raise SystemExit(3)"))
    link.close()
    assert root.job("linked")["status"] == "running"
    assert root.ended("linked") == 3
    root("remove_job", "linked")


def test_a_job_that_is_removed_is_not_run_again(root: Root) -> None:
    root("start_job", job("removed", "import time; time.sleep(60)"))
    pid = until(lambda: root.job("removed")["pid"], 30, "its process")
    root("remove_job", "removed")
    assert root.job("removed")["status"] == "absent"
    assert root.run(f"ls -d /proc/{pid} 2>/dev/null") == ""


# The whole host


def activate(root: Root, port: int) -> str:
    """What a green gate leaves: a deployment of the stand-in, and the one pointer to it. Its service."""
    place = {**SPEC["place"], "port": port, "home": HOME, "runtimes": f"{HOME}/runtimes"}
    place |= {"backend": "systemd", "user": USER, "secrets": {"VLLM_API_KEY": "b" * 64}}
    deployed = spec.deployment({**SPEC, "place": place})
    record = {"deployment": deployed, "activated": time.time(), "evidence": None, "switch": "x"}
    root.write(f"{HOME}/secrets/VLLM_API_KEY.{'b' * 12}", "s3cret", "600")
    root.write(f"{HOME}/state/active.json", json.dumps(record))
    return f"engine-{deployed['id']}"


def test_a_reboot_brings_back_what_is_activated_and_nothing_else(engine: Engine, root: Root) -> None:
    name = activate(root, 8102)
    engine.whole()
    root("start_job", job("lost", "import time; time.sleep(60)"))
    root.close()
    root.host.reboot()
    root.connect()
    status = f"{HOME}/bin/draftgate --home {HOME} status --json"
    until(lambda: json.loads(root.run(status))["serving"], 30, "the activated release serves")
    assert root.status(engine.name) == "stopped", "it ran, and is not what is activated"
    assert root.job("lost")["status"] == "absent"
    assert root.run("systemctl is-system-running").strip() == "running"
    assert root.run(f"ps -o user= -p {root('state', name)['pid']}").strip() == USER


def test_a_teardown_leaves_no_unit_and_no_process(engine: Engine, root: Root) -> None:
    root("start_job", job("left", "import time; time.sleep(60)"))
    engine.start()
    engine.whole()
    root("shutdown")
    assert root.run(f"ls -R /etc/systemd/system | grep {PREFIX}") == ""
    assert root.run(f"systemctl list-units --all --no-legend --plain '{PREFIX}*'") == ""
    assert root.run(f"pgrep -u {USER}") == ""
    assert root.run(f"ls {HOME}/secrets | grep env") == ""


# The real engine, once


@pytest.mark.real
@pytest.mark.timeout(900)
def test_the_real_engine_is_deployed_restarted_and_removed(hosts: Hosts, root: Root, play: Play) -> None:
    """Its own user, the whole CPU profile and a key; killed, it comes back by systemd alone."""
    if not list(RUNTIMES.glob("*/.complete.json")):
        pytest.skip(f"there is no runtime in {RUNTIMES} yet; tests/e2e installs it")
    key = "k3y-that-nobody-shows"
    (play.directory / "secret.yml").write_text(f"vllm_api_key: {key}\n", "utf-8")
    options = ["-e", f"@{play.directory / 'secret.yml'}", "-e", f"draftgate_reports_dir={play.directory}"]
    code, said = play(*options, playbook="deploy.yml")
    assert code == 0, said
    root("run", f"rm -rf {VLLM}/../..", "")  # the stand-in
    (name,) = [name for name in root("services") if name not in (DYING, "engine-one")]
    main = root("state", name)["pid"]
    processes = set(root.run(f"pgrep -u {USER}").split())
    assert len(processes) >= 3 and str(main) in processes
    assert set(root.run(f"ps -o user= -p {','.join(processes)}").split()) == {USER}
    score = root.run(f"systemd-analyze security --no-pager {unit(name)}")
    assert float(re.findall(r"level for \S+: ([\d.]+)", score)[0]) <= SCORE_CPU
    for command in (f"systemctl show {unit(name)}", "ps -ef", "journalctl -b --no-pager -o export"):
        assert key not in root.run(command), command
    assert key not in said

    root.run(f"kill -KILL {main}")
    until(lambda: not processes & set(root.run(f"pgrep -u {USER}").split()), 5, "its workers end")
    healthy = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8000/v1/models"
    until(lambda: root.run(healthy) == "401", 300, "it is back, and asks for its key")
    authorized = f"{healthy} -H 'Authorization: Bearer {key}'"
    assert root.run(authorized) == "200"

    code, said = play(playbook="playbooks/teardown.yml")
    assert code == 0, said
    assert root.run(f"pgrep -u {USER}") == ""
    assert root.run(f"systemctl list-units --all --no-legend --plain '{PREFIX}*'") == ""
    assert set(root.run(f"ls {HOME}").split()) <= {"cache", "models", "runtimes"}
