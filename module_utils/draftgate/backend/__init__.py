"""Service managers: systemd for hosts that have it, supervisord for everything else."""

from __future__ import annotations

from typing import Optional

from ..errors import InputError
from ..layout import Home, root_under_systemd
from .base import Backend, Job, JobState, Service, ServiceState
from .supervisord import SupervisordBackend
from .systemd import SystemdBackend
from .users import engine_user, require_reachable

__all__ = [
    "Backend",
    "Job",
    "JobState",
    "Service",
    "ServiceState",
    "choose",
    "engine_user",
    "require_reachable",
]


def choose(home: Home, wanted: str, *, supervisor_lock: str, agent: Optional[str] = None) -> Backend:
    """The backend for this host.

    :param wanted: ``auto`` (systemd when it is PID 1 and we are root, else supervisord) or a name.
    :param supervisor_lock: text of the hash-pinned requirements file of supervisord's own environment.
    :param agent: directory that holds the package ``draftgate``; the home's current agent by default.
    :raises InputError: another name, or systemd where it is not PID 1 or we are not root.
    """
    usable = root_under_systemd()
    if wanted == "systemd" and not usable:
        raise InputError(
            "choosing the service manager",
            "draftgate_service_backend is systemd, but systemd is not PID 1 here or we are not root",
            "both, or supervisord",
            "Set draftgate_service_backend: auto, or become root.",
        )
    if wanted == "systemd" or (wanted == "auto" and usable):
        return SystemdBackend(home)
    if wanted in ("auto", "supervisord"):
        return SupervisordBackend(home, agent=agent or home.agent_current, lock=supervisor_lock)
    observed = f"draftgate_service_backend is {wanted!r}"
    raise InputError("choosing the service manager", observed, "auto, systemd or supervisord")
