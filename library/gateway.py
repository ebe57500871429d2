#!/usr/bin/python
# Copyright: Draftgate contributors
# SPDX-License-Identifier: Apache-2.0
"""Install, change or remove the front of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gateway
short_description: Install, change or remove the front of a host
description:
  - Writes one server of its own into nginx's configuration, tests it, loads it, and waits until the public
    address answers by it. What nginx refuses, or does not bring into force, is taken back.
  - A new front is closed (503 and C(Retry-After) for every request); the switch of M(release) leads it to the
    release that it activates, and away from it while that is replaced. An installed one goes on leading where
    it did.
  - It installs no package - without nginx it does nothing and says so - and touches no other site, except the
    distribution's welcome page.
options:
  home:
    description: Where the installation's state lies on the host. Two homes have two fronts.
    type: path
    default: auto
  state:
    description: V(absent) removes the front; nginx, its other sites and the front's access log stay.
    type: str
    choices: [present, absent]
    default: present
  host:
    description: The public address; V(0.0.0.0) is every IPv4 one, V(::) every one.
    type: str
    default: 0.0.0.0
  port:
    description: The public port.
    type: int
    default: 8080
  paths:
    description:
      - What is public; V(/v1/) is all below it. Everything else gets 404, the engine's C(/metrics) and
        C(/server_info) among it. C(/v1/load_lora_adapter) and C(/v1/unload_lora_adapter) are public only
        where they are named themselves.
    type: list
    elements: str
    default: [/v1/, /v2/, /health]
  read_timeout:
    description: How long the engine may be silent within one request, as in a long prefill ('1 h').
    type: str
    default: 1 h
  client_max_body_size:
    description: The largest request, as in V(256m); V(0) = no limit.
    type: str
    default: 256m
  retry_after:
    description: Seconds after which a refused client should come back. OpenAI's clients wait 60 at most.
    type: int
    default: 30
  drain_seconds:
    description: The most that a switch waits for requests that run, before it stops their engine.
    type: int
    default: 60
  tls_certificate:
    description: The certificate's file on the host, with its chain; empty = plain HTTP.
    type: str
    default: ""
  tls_key:
    description: The file of its key.
    type: str
    default: ""
  remove_default_site:
    description: Whether the distribution's welcome page is disabled, where nobody has changed it.
    type: bool
    default: true
  nginx:
    description: How nginx is called. Where it is the distribution's alone, systemd starts and reloads it.
    type: list
    elements: str
    default: [/usr/sbin/nginx]
  configuration_directory:
    description: A directory whose C(*.conf) nginx includes on the level C(http).
    type: str
    default: /etc/nginx/conf.d
  state_directory:
    description: Below it lies where the front leads; nginx's workers must be able to enter it.
    type: str
    default: /var/lib/draftgate-front
  log_directory:
    description: Where the front's access log lies.
    type: str
    default: /var/log/nginx
attributes:
  check_mode:
    description: Works on a host without nginx too. What nginx itself would refuse is not seen.
    support: full
  diff_mode:
    description: Shows the server file.
    support: full
author: [Draftgate contributors]
"""

EXAMPLES = r"""
- name: Install the front of this host
  gateway:
    port: 443
    tls_certificate: /etc/ssl/llm.example.com.pem
    tls_key: /etc/ssl/private/llm.example.com.key
  register: front

- name: Remove it
  gateway:
    state: absent
"""

RETURN = r"""
missing: {description: There is no nginx on the host; nothing was done., type: bool, returned: success}
kept: {description: The front's access logs., type: list, elements: str, returned: when O(state) is V(absent)}
"""

from typing import Any, Dict  # noqa: E402 - documentation first, as Ansible wants it

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from ansible.module_utils.draftgate import gateway  # noqa: E402
from ansible.module_utils.draftgate.ansible_glue import run_module  # noqa: E402


def argument_spec() -> Dict[str, Any]:
    return {
        "home": {"type": "path", "default": "auto"},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "host": {"type": "str", "default": "0.0.0.0"},
        "port": {"type": "int", "default": 8080},
        "paths": {"type": "list", "elements": "str", "default": ["/v1/", "/v2/", "/health"]},
        "read_timeout": {"type": "str", "default": "1 h"},
        "client_max_body_size": {"type": "str", "default": "256m"},
        "retry_after": {"type": "int", "default": 30},
        "drain_seconds": {"type": "int", "default": 60},
        "tls_certificate": {"type": "str", "default": ""},
        "tls_key": {"type": "str", "default": ""},
        "remove_default_site": {"type": "bool", "default": True},
        "nginx": {"type": "list", "elements": "str", "default": ["/usr/sbin/nginx"]},
        "configuration_directory": {"type": "str", "default": "/etc/nginx/conf.d"},
        "state_directory": {"type": "str", "default": "/var/lib/draftgate-front"},
        "log_directory": {"type": "str", "default": "/var/log/nginx"},
    }


def main() -> None:
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    run_module(module, lambda: gateway.module_result(module.params, module.check_mode))


if __name__ == "__main__":
    main()
