"""What is killed, and what has to be true afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from draftgate import processes

from tests.e2e.installation import Done, Installation, until


def kill(pids: set[int]) -> None:
    """SIGKILL, to those that still live."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def killed_controller(at: Installation, wish: Mapping[str, Any], *states: str) -> Iterator[None]:
    """Kill the controller and its children in each of these states of one switch; its job goes on alone.

    From the second state on the controller is a re-run, which has to find the attempt that is under way.
    Within the block the last controller is dead and the job is held no more.
    """
    at.hold(*states)
    attempts = set()
    for state in states:
        controller = at.start("deploy.yml", wish)
        at.wait_for(state)
        controller.wait_for_line("TASK [vllm_server : Switch to")
        job = at.job()
        assert job and not job & controller.pids(), "the job is a child of the controller"
        controller.kill()
        assert at.job() == job
        attempts.add(at.journal()[0]["switch"])
        assert len(at.engines()) <= 1
        at.release_hold(state)
    assert len(attempts) == 1, "a re-run began anew beside the running switch"
    yield
    at.wait_settled()


def deploy_with_killed_job(at: Installation, playbook: str, wish: Mapping[str, Any], state: str) -> Done:
    """Kill the host's job in a state: its manager starts it again, and it goes on where its journal ends.

    The controller lives and reports how it ended.
    """
    at.hold(state)
    controller = at.start(playbook, wish)
    at.wait_for(state)
    job, engines = at.job(), at.engines()
    kill(job)
    until(lambda: at.job() - job, 60, "the job, started again")
    assert at.engines() == engines, "the job's death reached an engine"
    at.release_hold(state)
    done = controller.wait()
    at.wait_settled()
    assert [entry["state"] for entry in at.journal()].count(state) == 1, "it did a step again"
    return done


def kill_everything(at: Installation) -> None:
    """The service manager, the job and the engines, as a power cut would; nothing of them is left."""
    pid_file = Path(at.home.supervisor) / "supervisord.pid"
    with contextlib.suppress(FileNotFoundError):
        kill({int(pid_file.read_text())})  # first, so that it starts nothing again
    kill(set(processes.owned_by_home(str(at.root))))
    until(lambda: not processes.owned_by_home(str(at.root)), 30, "the end of all processes")


def assert_settled(at: Installation, wish: Mapping[str, Any], *releases: str) -> None:
    """Exactly one activated release serves, and a re-run finds nothing to do."""
    at.assert_one_serves(*releases)
    again = at.deploy(wish)
    assert again.code == 0 and again.recap()["changed"] == 0, again
