"""Whom an engine runs as, and what is refused because that user could not get at it."""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Dict

import pytest
from draftgate import launch, layout, spec
from draftgate.backend import engine_user, require_reachable, users
from draftgate.backend.systemd import give
from draftgate.errors import HostError, InputError
from draftgate.layout import Home

from tests.specs import SPEC

SHIPPED = "ansible.module_utils.draftgate"  # the name that modules import it by
ME = pwd.getpwuid(os.geteuid()).pw_name


def test_only_systemd_has_a_choice() -> None:
    assert engine_user("systemd", "draftgate") == "draftgate"
    assert engine_user("supervisord", "draftgate") == engine_user("supervisord", "root") == ""


@pytest.mark.parametrize("name", ["root", "", "Alice", "a b", "-x", "a\nb", "a" * 40])
def test_a_user_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="DG161.*draftgate_user"):
        engine_user("systemd", name)


def place(**changes: Any) -> Dict[str, Any]:
    return {"user": "draftgate", "home": "/var/lib/draftgate", "runtimes": "/opt/runtimes", **changes}


def test_an_ordinary_place_is_reachable() -> None:
    require_reachable(place())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"home": "/root/.draftgate"}, "draftgate_home /root/.draftgate: the unit hides /root"),
        ({"home": "/home/me/draftgate"}, "the unit hides /home"),
        ({"home": "/var/tmp/x"}, "the unit hides /var/tmp"),
        ({"home": "/tmp"}, "the unit hides /tmp"),
        ({"runtimes": "/root/.cache/r"}, "vllm_runtime_root /root/.cache/r: the unit hides /root"),
    ],
)
def test_a_place_that_the_unit_hides_is_refused(changes: Dict[str, str], told: str) -> None:
    with pytest.raises(HostError, match=f"DG160.*{told}"):
        require_reachable(place(**changes))
    require_reachable(place(**changes, user=""))


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that everybody can reach; pytest's own are closed."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        os.chmod(path, 0o755)
        yield Path(path)


def test_a_link_and_a_closed_parent_are_seen(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "HIDDEN", ("/home",))
    (public / "link").symlink_to("/home")
    closed = public / "closed"
    closed.mkdir(0o700)
    require_reachable(place(home=str(public / "new")))
    with pytest.raises(HostError, match="the unit hides /home"):
        require_reachable(place(home=str(public / "link" / "draftgate")))
    with pytest.raises(HostError, match=f"{closed} is closed to it"):
        require_reachable(place(home=str(closed / "new")))
    require_reachable(place(home=str(closed / "new"), user=ME))


def test_a_directory_is_given_with_what_lies_in_it(tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "x"
    give(str(cache), ME)
    assert cache.stat().st_mode & 0o777 == 0o700
    with pytest.raises(HostError, match="DG161.*no user 'nobody-here'"):
        give(str(cache), "nobody-here")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_the_engine_linked_to_is_not_given_away(tmp_path: Path) -> None:
    other = pwd.getpwnam("nobody")
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("x")
    (cache / "deep").mkdir(parents=True)
    (cache / "deep" / "file").write_text("x")
    (cache / "link").symlink_to(outside)
    (cache / "deep" / "link").symlink_to(outside / "secret")
    give(str(cache), "nobody")
    given = [cache, cache / "deep", cache / "deep" / "file", cache / "deep" / "link", cache / "link"]
    assert {os.lstat(path).st_uid for path in given} == {other.pw_uid}
    assert outside.stat().st_uid == (outside / "secret").stat().st_uid == 0


@pytest.mark.parametrize(("systemd", "root"), [(True, "/var/lib/draftgate"), (False, "~/.draftgate")])
def test_the_home_is_where_services_run_from(
    monkeypatch: pytest.MonkeyPatch, systemd: bool, root: str
) -> None:
    monkeypatch.setattr(layout, "root_under_systemd", lambda: systemd)
    assert Home.at("auto").root == os.path.expanduser(root)
    assert Home.at("./auto").root == os.path.abspath("auto")


def test_engines_of_two_users_share_no_cache() -> None:
    home = Home("/h")
    assert home.engine_cache("") == "/h/cache"
    assert home.engine_cache("a") == "/h/cache/a"


def served(**place: Any) -> Dict[str, Any]:
    serve = {**SPEC["serve"], "environment": {"VLLM_CACHE_ROOT": "{cache}/mine"}}
    return spec.deployment({**SPEC, "serve": serve, "place": {**SPEC["place"], **place}})


def test_an_engine_with_a_user_keeps_all_it_writes_in_its_cache() -> None:
    engine = launch.service_for(served(user="draftgate"), Home("/h"))
    assert (engine.user, engine.cache, engine.traits) == (
        "draftgate",
        "/h/cache/draftgate",
        ("cpu", "loopback"),
    )
    expected = {
        "HOME": "/h/cache/draftgate",
        "XDG_CACHE_HOME": "/h/cache/draftgate",
        "VLLM_CACHE_ROOT": "/h/cache/draftgate/mine",  # as wished
        "TRITON_CACHE_DIR": "/h/cache/draftgate/triton",
        "TORCHINDUCTOR_CACHE_DIR": "/h/cache/draftgate/inductor",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    assert {name: engine.environment[name] for name in expected} == expected


def test_an_engine_without_a_user_is_left_as_it_is() -> None:
    engine = launch.service_for(served(user=""), Home("/h"))
    assert (engine.user, engine.cache) == ("", "/h/cache")
    assert not {"HOME", "TRITON_CACHE_DIR"} & set(engine.environment)


@pytest.mark.parametrize(
    ("systemd", "home", "expected"),
    [
        (False, "{tmp}/home", {"backend": "supervisord", "user": "", "user_missing": False}),
        (
            True,
            "/var/lib/draftgate-test",
            {"backend": "systemd", "user": "nobody-here", "user_missing": True},
        ),
    ],
)
def test_the_module_says_whose_the_engines_are(
    call_module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, systemd: bool, home: str, expected: Any
) -> None:
    monkeypatch.setattr(f"{SHIPPED}.backend.root_under_systemd", lambda: systemd)
    given = {"home": home.format(tmp=tmp_path), "user": "nobody-here", "digest": "0" * 64}
    result = call_module("host_agent", given, check_mode=True)
    assert {name: result[name] for name in expected} == expected


def test_the_module_refuses_before_it_writes(
    call_module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(f"{SHIPPED}.backend.root_under_systemd", lambda: True)
    monkeypatch.setattr(f"{SHIPPED}.backend.users.HIDDEN", (str(tmp_path),))
    home = tmp_path / "home"
    result = call_module("host_agent", {"home": str(home), "digest": "0" * 64})
    assert result["failed"] and "DG160" in result["msg"] and not home.exists()
