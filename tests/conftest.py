"""What all tests share: the package under both its names, and three ways to run a module."""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pytest

REPO = Path(__file__).resolve().parent.parent
# Before the first import of Ansible, which reads its configuration then.
os.environ["ANSIBLE_CONFIG"] = str(REPO / "ansible.cfg")

import ansible.module_utils  # noqa: E402 - after its configuration is named
from ansible.module_utils.testing import patch_module_args  # noqa: E402 - likewise
from ansible.plugins.loader import init_plugin_loader, module_utils_loader  # noqa: E402 - likewise
from draftgate import agent  # noqa: E402 - likewise

# `import draftgate` comes from pythonpath in pyproject.toml; this is the name that modules import it by.
ansible.module_utils.__path__.append(str(REPO / "module_utils"))

pytest_plugins = ["tests.results"]


class CallModule(Protocol):
    def __call__(self, name: str, arguments: dict[str, Any], **internal: bool) -> dict[str, Any]: ...


class RunModule(Protocol):
    def __call__(self, name: str, arguments: dict[str, Any], *options: str) -> dict[str, Any]: ...


@functools.cache
def load_plugins() -> None:
    """As the command line does once, before the first template or module."""
    init_plugin_loader()
    module_utils_loader.add_directory(str(REPO / "module_utils"))


def import_module_file(name: str) -> ModuleType:
    """``library/<name>.py``, freshly imported."""
    path = REPO / "library" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"library.{name}", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the checkout."""
    return REPO


@pytest.fixture
def call_module() -> CallModule:
    """Run a module in this process, where its collaborators can be replaced; returns its JSON result.

    ``check_mode=True`` and ``diff=True`` are passed as Ansible passes them.
    """

    def call(name: str, arguments: dict[str, Any], **internal: bool) -> dict[str, Any]:
        module = import_module_file(name)
        passed = {**arguments, **{f"_ansible_{key}": value for key, value in internal.items()}}
        if hasattr(module, "agent_code"):  # what its action plugin would ship
            digest, archive = agent.build(str(REPO / "module_utils" / agent.PACKAGE))
            passed |= {"agent": digest, "agent_archive": base64.b64encode(archive).decode()}
        output = io.StringIO()
        with patch_module_args(passed), contextlib.redirect_stdout(output), pytest.raises(SystemExit):
            module.main()
        return {"failed": False, **json.loads(output.getvalue())}

    return call


@pytest.fixture
def run_module() -> RunModule:
    """Run a module as Ansible does, packed and in a process of its own; returns its JSON result.

    ``options`` go to the ``ansible`` command (``--check``). Whatever Ansible itself prints beside the
    result fails the test: a warning is a defect.
    """

    def run(name: str, arguments: dict[str, Any], *options: str) -> dict[str, Any]:
        argv = [
            str(Path(sys.executable).with_name("ansible")),
            "localhost",
            "-i",
            "localhost,",
            "-c",
            "local",
        ]
        argv += ["-m", name, "-a", json.dumps(arguments), *options]
        argv += ["-e", f"ansible_python_interpreter={sys.executable}"]
        as_json = {"ANSIBLE_STDOUT_CALLBACK": "minimal", "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
        done = subprocess.run(
            argv, cwd=REPO, env={**os.environ, **as_json}, capture_output=True, text=True, check=False
        )
        _, found, body = done.stdout.rpartition("localhost | ")
        assert found and not done.stderr, done.stdout + done.stderr
        outcome, _, result = body.partition(" => ")
        return {"failed": not outcome.startswith(("SUCCESS", "CHANGED")), **json.loads(result)}

    return run
