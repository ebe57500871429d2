"""Files that hold anything, or are anything: a reader says what is wrong, in bounded time and memory."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from draftgate import safetensors, untrusted
from draftgate.config_fields import Fields
from draftgate.errors import InputError
from draftgate.untrusted import CONFIG, INDEX, Limits, parse_json, read_json
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import REPO
from tests.fuzz.readers import READERS, known, mutated

FAST = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))

# Anything that Python's json module writes or reads, its NaN and halves of surrogate pairs included.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=8,
)
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F4", "BF16", "F12"]) | JSON,
        "shape": st.lists(st.integers(-1, 1 << 65) | st.booleans(), max_size=4) | JSON,
        "data_offsets": st.tuples(st.integers(-1, 40), st.integers(0, 40)) | JSON,
    }
)


@pytest.fixture(autouse=True)
def four_gib() -> Iterator[None]:
    """A reader that asks for more fails, and does not take the machine down."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@FAST
@given(name=st.sampled_from(sorted(READERS)), file=st.binary(max_size=400))
def test_bytes(name: str, file: bytes) -> None:
    READERS[name].feed(file)


@FAST
@given(
    name=st.sampled_from(sorted(READERS)),
    number=st.integers(0, 2),
    seeds=st.lists(st.integers(0), max_size=4),
)
def test_a_good_file_with_some_values_changed(name: str, number: int, seeds: list[int]) -> None:
    seeded = READERS[name].seeds()
    file = seeded[number % len(seeded)]
    for seed in seeds:
        file = mutated(name, file, seed)
    READERS[name].feed(file)


@FAST
@given(
    entries=st.dictionaries(st.text(st.characters(), max_size=5), ENTRY, max_size=4), size=st.integers(0, 40)
)
def test_headers_of_any_entries(entries: dict[str, Any], size: int) -> None:
    raw = json.dumps(entries).encode()
    READERS["header"].feed(len(raw).to_bytes(8, "little") + raw + bytes(size))


@FAST
@given(config=st.dictionaries(st.sampled_from(["a", "b"]) | st.text(), JSON))
def test_fields_of_any_type(config: dict[str, Any]) -> None:
    fields = Fields("drafter", config)
    for path in ("a", "a.a", "a.b.a", "b"):
        for read in (fields.integer, fields.number, fields.integers, fields.strings, fields.raw):
            read(path)
        assert fields.is_wrong(path) in (True, False)
    assert all(finding.code == "DG204" for finding in fields.wrong)


@pytest.mark.parametrize("name", READERS)
def test_what_broke_a_reader_once(name: str) -> None:
    for path in known(name):
        READERS[name].feed(path.read_bytes())


# JSON that is none, or that only Python takes for JSON


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "Expecting value"),
        (b"\xff{}", "byte 0"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": -Infinity}', "-Infinity is no number"),
        (b'{"a": 1e999}', "1e999… has no finite value"),
        (b'{"a": 1' + b"0" * 100_000 + b".0}", "has no finite value"),
        (b'{"a": 1' + b"0" * 100_000 + b"}", "an integer of 100001 digits"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair"),
        (b'{"\\uDFFF": 1}', "half of a surrogate pair"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nested deeper than 64"),
        (b"[" * 100_000, "nested deeper than 64"),
        (b"[0" + b",0" * 200_000 + b"]", "about 200001 values, more than 200000"),
    ],
)
def test_what_is_no_json_of_a_model(text: bytes, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_json(text, CONFIG.values)
    assert said in str(caught.value) or isinstance(caught.value, UnicodeDecodeError)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a": 1, "a": 2}', {"a": 2}),  # as Python's and the engine's own reader
        (b'{"a": 18446744073709551615}', {"a": 2**64 - 1}),
        (b'{"a": [1.5e-06, -0.0]}', {"a": [1.5e-06, -0.0]}),
        (b'["\\ud83d\\ude00", "\\\\ud800"]', ["\U0001f600", "\\ud800"]),
        (b'{"a":' * 64 + b"1" + b"}" * 64, None),
    ],
)
def test_what_is_json(text: bytes, value: Any) -> None:
    read = parse_json(text, CONFIG.values)
    assert value is None or read == value


# Files that are none


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def circle(path: Path) -> None:
    path.symlink_to(path)


def without_a_size(path: Path) -> None:
    """The kernel's files have more in them than they say, as one that grows."""
    path.symlink_to("/proc/self/smaps")


ODD_FILES = [
    (fifo, "It is no regular file"),
    (endless, "It is no regular file"),
    (Path.mkdir, "Is a directory"),
    (dangling, "No such file"),
    (circle, "symbolic links"),
]


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("make", "said"),
    [*ODD_FILES, (sparse, "it is too large, with more than 16777216 bytes"), (without_a_size, "is not JSON")],
)
def test_a_config_that_is_no_file(tmp_path: Path, make: Callable[[Path], None], said: str) -> None:
    make(tmp_path / "config.json")
    with pytest.raises(InputError) as caught:
        read_json(str(tmp_path / "config.json"), "reading a config")
    assert said in str(caught.value)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("make", "said"),
    [*ODD_FILES, (sparse, "its header is not JSON"), (without_a_size, "make a header of")],
)
def test_weights_that_are_no_file(tmp_path: Path, make: Callable[[Path], None], said: str) -> None:
    make(tmp_path / "model.safetensors")
    with pytest.raises(InputError) as caught:
        safetensors.read_weights(str(tmp_path))
    assert said in str(caught.value) and caught.value.code == "DG231"


def test_a_name_that_no_file_can_have() -> None:
    with pytest.raises(InputError, match="null byte"):
        read_json("/tmp/a\0b", "reading a config")


def test_a_message_shows_the_beginning_of_what_is_wrong() -> None:
    assert untrusted.shown([1, "a"]) == "[1, 'a']"
    assert len(untrusted.shown(["x" * 1000] * 1000)) < 250


# Memory: the most that a file within the limits can cost, in a process that may not have more than 1 GiB


def dicts_in_dicts(limits: Limits) -> bytes:
    each = b'{"":' * 50 + b"0" + b"}" * 50 + b","
    return b'{"a":[' + each * ((limits.values - 10) // 51) + b"0]}"


def one_wide_text(limits: Limits) -> bytes:
    """A single character makes Python keep four bytes for each of them."""
    return '{"a":"\U0001f600'.encode() + b"x" * (limits.bytes - 100) + b'"}'


READ = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from draftgate import contract_facts, safetensors
from draftgate.errors import InputError
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    contract_facts.read_own_config(sys.argv[2])
    safetensors.read_weights(sys.argv[2])
except InputError as exc:
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    print(exc.code, status["VmHWM"].split()[0])  # getrusage counts what the parent had before the exec
"""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", one_wide_text(CONFIG)),
        ("config.json", dicts_in_dicts(CONFIG)),
        ("model.safetensors.index.json", one_wide_text(INDEX)),
        ("model.safetensors", dicts_in_dicts(safetensors._HEADER)),
    ],
    ids=["config, text", "config, dicts", "index, text", "header, dicts"],
)
def test_memory_is_bounded(tmp_path: Path, name: str, content: bytes) -> None:
    is_header = name == "model.safetensors"
    (tmp_path / name).write_bytes(len(content).to_bytes(8, "little") + content if is_header else content)
    argv = [sys.executable, "-c", READ, str(REPO / "module_utils"), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    code, peak = done.stdout.split()
    assert code == ("DG233" if name == "config.json" else "DG231")
    assert int(peak) < 640 * 1024, "KiB"
