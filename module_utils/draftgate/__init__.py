"""Draftgate's logic: contract, release, switch, gate.

An ordinary Python package (stdlib only, Python 3.9 or newer). Ansible modules import it as
``ansible.module_utils.draftgate``; on a host the same files run as ``python -m draftgate``.
"""

from __future__ import annotations

__version__ = "0.1.0"
