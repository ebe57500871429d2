"""The front's variables, nginx's file, and what is compared and refused before nginx is asked."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from draftgate import front, gateway
from draftgate.errors import HostError, InputError
from draftgate.files import write_atomic, write_json
from draftgate.gateway import Gateway
from draftgate.gateway_server import Nginx, server_file
from draftgate.gateway_variables import READERS, check, settings_of
from draftgate.layout import Home

from tests.conftest import CallModule, import_module_file

REPO = Path(__file__).resolve().parents[2]
DEFAULTS: dict[str, Any] = yaml.safe_load((REPO / "roles/gateway/defaults/main.yml").read_text("utf-8"))


def given(**changes: Any) -> dict[str, Any]:
    return {**DEFAULTS, "gateway_enabled": True, **changes}


def text_of(**changes: Any) -> str:
    return home_text("/h", **changes)


def home_text(home: str, **changes: Any) -> str:
    return server_file(Home(home), settings_of(given(**changes)), Nginx())[0]


def test_role_and_module_say_the_same_defaults() -> None:
    spec = import_module_file("gateway").argument_spec()
    module = {f"gateway_{name}": option.get("default") for name, option in spec.items()}
    role = {
        name: value for name, value in DEFAULTS.items() if name not in ("draftgate_home", "gateway_enabled")
    }
    assert set(role) == set(READERS)
    assert {name: module[name] for name in role} == role


@pytest.mark.parametrize(
    ("name", "said", "meant"),
    [
        ("gateway_host", "::", "::"),
        ("gateway_host", " 10.0.0.5 ", "10.0.0.5"),
        ("gateway_port", "443", 443),
        ("gateway_drain_seconds", 0, 0),
        ("gateway_read_timeout", "10 m", 600),
        ("gateway_read_timeout", 90, 90),
        ("gateway_read_timeout", "0.5", 1),
        ("gateway_client_max_body_size", "1G", "1g"),
        ("gateway_client_max_body_size", 0, "0"),
        ("gateway_paths", "/v1/, /health", ["/health", "/v1/"]),
        ("gateway_paths", ["/health", "/v1/", "/health"], ["/health", "/v1/"]),
        ("gateway_tls_certificate", None, ""),
        ("gateway_remove_default_site", "false", False),
    ],
)
def test_text_from_the_command_line_means_what_it_says(name: str, said: Any, meant: Any) -> None:
    assert settings_of(given(**{name: said}))[name] == meant


WRONG: dict[str, list[Any]] = {
    "gateway_host": ["localhost", "", "*", "10.0.0.5:80", None, "fe80::1%eth0", "fe80::1%" + 70 * "x"],
    "gateway_port": [0, 65536, "http", True, None, "8080;", "9" * 5000],
    "gateway_drain_seconds": [-1, "1 m", "9" * 5000],
    "gateway_retry_after": [0, "soon"],
    "gateway_read_timeout": [0, "long", None, "9" * 400, "9" * 5000, "3651 d"],
    "gateway_client_max_body_size": ["1 g", "large", "1m;", None, True, "9" * 400, "9" * 20 + "g"],
    "gateway_paths": [[], "v1/", "/a b", "/v1//x", "/../x", "/x;", None, {"/": 1}],
    "gateway_tls_key": ["key.pem", "/a b", "/$x", "/a;", "/é"],
    "gateway_remove_default_site": ["maybe"],
}


@pytest.mark.parametrize(("name", "said"), [(name, said) for name in WRONG for said in WRONG[name]])
def test_what_has_no_meaning_is_named(name: str, said: Any) -> None:
    with pytest.raises(InputError, match=name) as caught:
        settings_of(given(**{name: said}))
    assert len(str(caught.value)) < 220, "one sentence"


def test_tls_is_both_or_none() -> None:
    with pytest.raises(InputError, match="both or none"):
        settings_of(given(gateway_tls_certificate="/x"))


@pytest.mark.parametrize(
    ("changes", "engine", "told"),
    [
        ({}, ("127.0.0.1", 8000, 8001), ""),
        ({"gateway_enabled": "false", "gateway_port": 8000}, ("0.0.0.0", 8000, 8000), ""),
        ({"gateway_enabled": False, "gateway_port": "x"}, ("0.0.0.0", 8000, 0), ""),
        ({}, ("0.0.0.0", 8000, 8001), "vllm_host.*get past the front"),
        ({}, ("::1", 8000, 8001), "vllm_host"),
        ({}, ("127.0.0.1", 8080, 8001), "gateway_port.*vllm_port"),
        ({}, ("127.0.0.1", 8000, 8080), "gateway_port.*vllm_candidate_port"),
        ({}, ("127.0.0.1", 8000, 8000), "vllm_port.*vllm_candidate_port"),
        ({"gateway_port": "8000"}, ("127.0.0.1", 8000, 8001), "gateway_port.*vllm_port"),
        ({"gateway_port": "x"}, ("127.0.0.1", 8000, 8001), "gateway_port"),
    ],
)
def test_a_front_that_cannot_be_is_refused_at_once(
    changes: dict[str, Any], engine: tuple[str, int, int], told: str
) -> None:
    if not told:
        check(given(**changes), *engine)
        return
    with pytest.raises(InputError, match=told):
        check(given(**changes), *engine)


# The server file


def test_each_variable_is_in_the_file_or_needs_no_reload() -> None:
    other: dict[str, Any] = {
        "gateway_host": "10.0.0.5",
        "gateway_port": 81,
        "gateway_paths": ["/"],
        "gateway_read_timeout": "2 h",
        "gateway_client_max_body_size": "1g",
        "gateway_retry_after": 7,
        "gateway_tls_certificate": "/c",
        "gateway_tls_key": "/k",
        "gateway_drain_seconds": 9,
        "gateway_remove_default_site": False,
    }
    assert set(other) == set(READERS)
    tls = {"gateway_tls_certificate": "/c", "gateway_tls_key": "/other"}
    same = {name for name in other if text_of(**{**tls, name: other[name]}) == text_of(**tls)}
    assert same == {"gateway_drain_seconds", "gateway_remove_default_site", "gateway_tls_certificate"}
    assert text_of(**tls) != text_of()


def test_the_digest_says_which_file_it_is() -> None:
    one, other = (
        server_file(Home("/h"), settings_of(given(gateway_retry_after=each)), Nginx()) for each in (1, 2)
    )
    assert one[1] != other[1] and one[1] in one[0] and other[1] in other[0]


@pytest.mark.parametrize(
    ("changes", "listen"),
    [
        ({}, "listen 0.0.0.0:8080 so_keepalive"),
        ({"gateway_host": "::"}, "listen [::]:8080 ipv6only=off"),
        ({"gateway_host": "::1"}, "listen [::1]:8080 so_keepalive"),
        ({"gateway_tls_certificate": "/c", "gateway_tls_key": "/k"}, "listen 0.0.0.0:8080 ssl "),
    ],
)
def test_it_listens_where_it_is_wished(changes: dict[str, Any], listen: str) -> None:
    assert listen in text_of(**changes)


def test_a_home_cannot_write_configuration() -> None:
    assert "evil" not in [line.strip() for line in home_text("/h\nevil\n").splitlines()]
    with pytest.raises(InputError, match="without blanks"):
        Nginx(state="/x; evil")


def test_two_homes_share_no_name() -> None:
    names = [set(re.findall(r"\bdraftgate[_-][0-9a-f]{12}\w*", home_text(home))) for home in ("/one", "/two")]
    assert names[0] and names[1] and not names[0] & names[1]


# Compared


def recorded(home: Home, nginx: Nginx, **changes: Any) -> None:
    settings = settings_of(given(**changes))
    stored = {"command": list(nginx.command), "configuration": nginx.configuration}
    stored |= {"state": nginx.state, "logs": nginx.logs}
    write_json(home.front, {"identity": "x", "settings": settings, "nginx": stored})


def test_what_differs_is_named(tmp_path: Path) -> None:
    home, nginx = Home(str(tmp_path / "home")), Nginx(configuration=str(tmp_path))
    off = given(gateway_enabled=False)
    assert gateway.differs(home, off) == []
    assert gateway.differs(home, given()) == [{"field": "gateway_enabled", "before": False, "after": True}]
    recorded(home, nginx)
    assert gateway.differs(home, off) == [{"field": "gateway_enabled", "before": True, "after": False}]
    wished = given(gateway_port="81", gateway_drain_seconds=5)
    assert gateway.differs(home, wished) == [
        {"field": "gateway_port", "before": 8080, "after": 81},
        {"field": "gateway_drain_seconds", "before": 60, "after": 5},
    ]
    (row,) = gateway.differs(home, given())
    assert row["field"] == "gateway" and "is another" in row["before"]


@pytest.mark.parametrize(
    ("seen", "differs"), [((True, None), True), ((False, None), True), ((True, "mine"), False)]
)
def test_a_front_that_does_not_answer_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: tuple[bool, str | None], differs: bool
) -> None:
    home, nginx = Home(str(tmp_path / "home")), Nginx(configuration=str(tmp_path))
    recorded(home, nginx)
    one = Gateway(home, nginx)
    text, digest = server_file(home, settings_of(given()), nginx)
    write_atomic(one.path, text.encode())
    look = front.Look(seen[0], one.identity, digest, 0) if seen[1] else front.Look(seen[0])
    monkeypatch.setattr(front, "look", lambda *_: look)
    assert bool(gateway.differs(home, given())) == differs


# The host


class Ran:
    """Commands that were run; every one ends well."""

    def __init__(self, out: str = "") -> None:
        self.commands: list[list[str]] = []
        self.out = out

    def __call__(self, argv: Sequence[str], _seconds: float) -> tuple[int, str, str]:
        self.commands.append(list(argv))
        return 0, self.out, ""


def answering(one: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """The public address says what lies in the file."""

    def look(*_: Any) -> front.Look:
        found = re.search(r"draftgate \w+ (\w+) port", one.file_text())
        return front.Look(True, one.identity, found.group(1), 0) if found else front.Look()

    monkeypatch.setattr(front, "look", look)
    monkeypatch.setattr(gateway, "port_holder", lambda *_: None)
    monkeypatch.setattr(shutil, "which", lambda name: name)


def on_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Ran) -> Gateway:
    monkeypatch.setattr(front, "root_under_systemd", lambda: True)
    (tmp_path / "conf.d").mkdir(exist_ok=True)
    nginx = Nginx(configuration=str(tmp_path / "conf.d"), state=str(tmp_path / "state"))
    one = Gateway(Home(str(tmp_path / "home")), nginx, run)
    answering(one, monkeypatch)
    return one


def test_systemd_is_asked_where_it_runs_nginx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Ran()
    one = on_systemd(tmp_path, monkeypatch, run)
    test = ["/usr/sbin/nginx", "-t"]
    assert one.present(settings_of(given()), check=False)["changed"]
    assert run.commands == [test, ["systemctl", "reload-or-restart", "nginx"]]
    assert front.led(one.directory) == "closed"
    run.commands.clear()
    assert not one.present(settings_of(given()), check=False)["changed"]
    assert one.present(settings_of(given(gateway_drain_seconds=5)), check=False)["changed"]
    assert run.commands == [], "nothing to reload for"
    assert one.absent(check=False)["changed"]
    assert run.commands == [test, ["systemctl", "try-reload-or-restart", "nginx"]]


def test_a_change_is_in_force_when_no_old_worker_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nginx's new workers answer already while its old ones still do."""
    one = on_systemd(tmp_path, monkeypatch, Ran())
    seen = [[1, 2, 3], [1, 2, 3, 4, 5], [1, 3, 4, 5], [1, 4, 5]]
    monkeypatch.setattr(gateway, "listeners", lambda *_: seen.pop(0))
    monkeypatch.setattr(
        gateway, "command", lambda pid: f"nginx: {'master' if pid == 1 else 'worker'} process"
    )
    one.present(settings_of(given()), check=False)
    assert seen == []


def test_a_front_goes_on_leading_where_it_led(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = on_systemd(tmp_path, monkeypatch, Ran())
    one.present(settings_of(given()), check=False)
    front.lead(one.directory, "8001")
    one.present(settings_of(given(gateway_retry_after=5)), check=False)
    assert front.led(one.directory) == "8001"


def test_rights_are_asked_for_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = on_systemd(tmp_path, monkeypatch, Ran())
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(HostError, match="ansible_become"):
        one.present(settings_of(given()), check=False)
    assert os.listdir(tmp_path) == ["conf.d"] and not os.listdir(tmp_path / "conf.d")


def test_who_holds_the_address_is_named_without_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = on_systemd(tmp_path, monkeypatch, Ran())
    holder = {"pid": 7, "command": "vllm serve m --api-key s3cret"}
    monkeypatch.setattr(gateway, "port_holder", lambda *_: holder)
    with pytest.raises(HostError, match="DG171.*pid 7 .vllm serve m") as caught:
        one.present(settings_of(given()), check=False)
    assert "s3cret" not in str(caught.value.as_dict())


PAGE = b"Welcome to nginx!"
MD5 = "1458d310b36adfc5065324858e0691d6"


def default_site(root: Path) -> Path:
    write_atomic(str(root / "sites-available" / "default"), PAGE)
    (root / "sites-enabled").mkdir()
    link = root / "sites-enabled" / "default"
    link.symlink_to(root / "sites-available" / "default")
    return link


def changed_page(link: Path) -> None:
    link.resolve().write_bytes(b"my own")


def own_file(link: Path) -> None:
    link.unlink()
    link.write_bytes(PAGE)


def own_link(link: Path) -> None:
    link.unlink()
    (link.parent / "mine").write_bytes(PAGE)
    link.symlink_to("mine")


def unchanged(link: Path) -> None: ...


@pytest.mark.parametrize(
    ("edit", "wished", "removed"),
    [
        (unchanged, True, True),
        (unchanged, False, False),
        (changed_page, True, False),
        (own_file, True, False),
        (own_link, True, False),
    ],
)
def test_only_the_untouched_welcome_page_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: Any, wished: bool, removed: bool
) -> None:
    link = default_site(tmp_path)
    edit(link)
    run = Ran(f"\n {tmp_path}/sites-available/default {MD5}\n")
    one = on_systemd(tmp_path, monkeypatch, run)
    one.present(settings_of(given(gateway_remove_default_site=wished)), check=True)
    assert os.path.lexists(link), "check mode"
    one.present(settings_of(given(gateway_remove_default_site=wished)), check=False)
    assert os.path.lexists(link) != removed


def test_the_welcome_page_comes_back_with_what_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = default_site(tmp_path)
    one = on_systemd(tmp_path, monkeypatch, Ran(f"\n {tmp_path}/sites-available/default {MD5}\n"))

    def refuse(argv: Sequence[str], _seconds: float) -> tuple[int, str, str]:
        return (1, "", "[emerg] no") if argv[-1] == "-t" else (0, one.run(argv, 1)[1], "")

    with pytest.raises(HostError, match="DG170.*no"):
        Gateway(one.home, one.nginx, refuse).present(settings_of(given()), check=False)
    assert link.is_symlink() and not os.listdir(tmp_path / "conf.d") and not os.path.exists(one.home.front)


def test_check_mode_shows_the_file_on_a_bare_host(tmp_path: Path, call_module: CallModule) -> None:
    wish = {"home": str(tmp_path / "home"), "nginx": ["/none/nginx"], "port": 8123}
    wish |= {"configuration_directory": str(tmp_path / "conf.d"), "state_directory": str(tmp_path / "state")}
    checked = call_module("gateway", wish, check_mode=True, diff=True)
    assert checked["changed"] and checked["missing"] and checked["diff"]["before"] == ""
    assert "listen 0.0.0.0:8123" in checked["diff"]["after"] and not os.listdir(tmp_path)
    for check_mode in (True, False):
        gone = call_module("gateway", {**wish, "state": "absent"}, check_mode=check_mode)
        assert not gone["changed"] and not gone["missing"]
    refused = call_module("gateway", {**wish, "port": 0})
    assert refused["failed"] and "gateway_port" in refused["msg"]
