"""Where things lie under ``draftgate_home``. The only place that joins these names."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .errors import InputError

AUTO = "auto"
"""As a home: the system's directory where systemd runs services for us, else one of the user's own."""
SYSTEM_ROOT, USER_ROOT = "/var/lib/draftgate", "~/.draftgate"


def root_under_systemd() -> bool:
    """Whether systemd is process 1 and we are root."""
    try:
        with open("/proc/1/comm", encoding="utf-8") as handle:
            return handle.read().strip() == "systemd" and os.geteuid() == 0
    except OSError:
        return False


@dataclass(frozen=True)
class Home:
    """Paths of one installation; all are absolute once ``root`` is."""

    root: str

    @classmethod
    def at(cls, path: str) -> Home:
        """``auto``, ``~`` and relative parts resolved for this host and the current user.

        :raises InputError: no path, the file system's root, or the user's own home directory: an
            installation is removed as a whole, so it has a directory of its own.
        """
        if path.strip() == AUTO:
            path = SYSTEM_ROOT if root_under_systemd() else USER_ROOT
        root = os.path.abspath(os.path.expanduser(path))
        if not path.strip() or root in ("/", os.path.abspath(os.path.expanduser("~"))):
            raise InputError(
                "reading draftgate_home", repr(path), "a directory of its own, as in ~/.draftgate"
            )
        return cls(root)

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    # What runs
    @property
    def active(self) -> str:
        """The one pointer: which deployment is activated. Replaced atomically."""
        return self.path("state", "active.json")

    @property
    def journal(self) -> str:
        """The current switch's journal, one JSON object per line, each line fsynced."""
        return self.path("state", "journal.jsonl")

    @property
    def finished_journals(self) -> str:
        return self.path("state", "journals")

    @property
    def wish(self) -> str:
        """What the controller asked for last: the switch job's whole input."""
        return self.path("state", "wish.json")

    @property
    def front(self) -> str:
        """How the front was installed; absent on a host without one."""
        return self.path("state", "front.json")

    @property
    def switch_lock(self) -> str:
        return self.path("state", "switch.lock")

    @property
    def durations(self) -> str:
        """Seconds that stages took last time: the source of every "remaining" we print."""
        return self.path("state", "durations.json")

    @property
    def progress(self) -> str:
        return self.path("run", "progress")

    def progress_of(self, job: str) -> str:
        return self.path("run", "progress", f"{job}.json")

    # What is kept
    def release(self, release_id: str) -> str:
        return self.path("releases", release_id)

    def release_spec(self, release_id: str) -> str:
        return self.path("releases", release_id, "spec.json")

    def release_drafter(self, release_id: str) -> str:
        """The effective drafter: our config.json beside links to the downloaded files."""
        return self.path("releases", release_id, "drafter")

    def evidence(self, release_id: str) -> str:
        return self.path("evidence", release_id)

    def model(self, content_digest: str) -> str:
        return self.path("models", content_digest[:12])

    def prompts(self, prompts_digest: str) -> str:
        return self.path("prompts", f"{prompts_digest[:12]}.jsonl")

    def agent(self, agent_digest: str) -> str:
        return self.path("agent", agent_digest[:12])

    @property
    def agent_current(self) -> str:
        """Symlink to the agent that jobs and ``bin/draftgate`` run."""
        return self.path("agent", "current")

    @property
    def command(self) -> str:
        return self.path("bin", "draftgate")

    @property
    def runtimes(self) -> str:
        return self.path("runtimes")

    @property
    def supervisor(self) -> str:
        return self.path("supervisor")

    @property
    def secrets(self) -> str:
        """0700; files 0600, read by path, never printed."""
        return self.path("secrets")

    def secret(self, name: str, salted_digest: str) -> str:
        """One secret's file. A changed secret is a new file: restoring must find the old one."""
        return self.path("secrets", f"{name}.{salted_digest[:12]}")

    @property
    def logs(self) -> str:
        return self.path("logs")

    @property
    def cache(self) -> str:
        return self.path("cache")

    def engine_cache(self, user: str) -> str:
        """What an engine may write to. A user's own: what root reads from the cache is not theirs to write,
        and two engines side by side may have different users."""
        return self.path("cache", user) if user else self.cache
