# Every target sets up what it needs; `make` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
# What environments on this machine are made with, whatever python3 comes first in PATH.
SYSTEM_PYTHON ?= /usr/bin/python3
# Root's is open to all: a service user, and the hosts that tests boot, run the runtime from there.
DRAFTGATE_CACHE ?= $(if $(filter 0,$(shell id -u)),/var/cache/draftgate,$(HOME)/.cache/draftgate)
ARGS ?=

# Named, because Ansible ignores the ansible.cfg of a directory that others may write to; and Ansible refuses
# to start without a UTF-8 locale, which a bare machine does not set.
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export LC_ALL := C.UTF-8
# Progress is for the one who waits, through a pipe too.
export PYTHONUNBUFFERED := 1
export DRAFTGATE_CACHE

# For this make alone: a test that runs make must not hand it the arguments that were meant for pytest.
MAKEOVERRIDES =
unexport ARGS

DEV := .venv-dev/bin

# $(call venv,DIRECTORY,REQUIREMENT FILES): made again only when the interpreter, the place or a requirement
# changed. The stamp is written last, so that an environment whose making was killed is made again; the lock
# is for two makes at once.
define venv
mkdir -p $(dir $(1))
exec 9> $(1).lock
flock 9
wanted=$$({ $(PYTHON) -VV; echo $(abspath $(1)); cat $(2); } | sha256sum | cut -c1-16)
if [ "$$(cat $(1)/stamp 2>/dev/null)" != "$$wanted" ]; then
  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
    "Making $(1): $(PYTHON) is $$($(PYTHON) -V 2>&1), expected 3.11 or newer. Try: make $(MAKECMDGOALS) PYTHON=$(SYSTEM_PYTHON)" >&2
    exit 1
  }
  echo "$(1): installing $(2) (once)"
  $(PYTHON) -m venv --clear $(1)
  $(1)/bin/pip install --quiet --disable-pip-version-check $(addprefix --requirement ,$(2))
  echo "$$wanted" > $(1)/stamp
fi
exec 9>&-
endef

# The packages in $$missing, by whoever may install some.
define install_missing
[ -n "$$missing" ] || exit 0
install="apt-get install --yes --no-install-recommends$$missing"
if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "Type this and run make again (or install the same packages of your distribution): sudo $$install" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -qq -o DPkg::Lock::Timeout=300 update
$${install/apt-get/apt-get -qq -o DPkg::Lock::Timeout=300}
endef

.PHONY: help deploy preflight replay test test-unit hosts molecule test-long bench lint tiny-pair system-packages test-packages clean .venv .venv-dev

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deploy: .venv ## deploy to this machine, or elsewhere: make deploy ARGS="-i inventory/... --check --diff"
	@.venv/bin/ansible-playbook deploy.yml $(ARGS)

preflight: .venv ## judge the pair by its files; nothing is changed: make preflight ARGS="-e vllm_version=..."
	@.venv/bin/ansible-playbook playbooks/preflight.yml $(ARGS)

replay: .venv .venv-dev ## the incident again: its files against two engines, and the tiny pair broken for real
	@$(DEV)/python -m tests.replay $(ARGS)

test: lint .venv test-packages ## what CI runs: lint, unit and integration tests, a real deployment and its faults
	@$(DEV)/pytest tests/unit
	$(DEV)/pytest --verbose --durations=10 -m "not long and not bench" tests/integration tests/e2e $(ARGS)

test-unit: .venv-dev ## the tests that need neither an engine nor a deployment
	@$(DEV)/pytest tests/unit $(ARGS)

hosts: .venv-dev test-packages ## boot systemd hosts for tests: make hosts ARGS="up demo 2 | ssh demo1 | list | down demo"
	@PYTHONPATH=module_utils $(DEV)/python -m tests.hosts $(ARGS)

# All on one host, bare in the first: the order is part of the test. Its inventory and what molecule writes are gone
# afterwards. DRAFTGATE_TEST_INVENTORY=path: a host of your own takes the place of the one that is booted.
SCENARIOS = default $(filter-out default teardown,$(notdir $(patsubst %/,%,$(dir $(wildcard tests/molecule/*/molecule.yml))))) teardown

molecule: .venv-dev test-packages ## real roles on a systemd host, step by step: make molecule ARGS="-s default"
	@mkdir -p $(DRAFTGATE_CACHE)
	exec 8> $(DRAFTGATE_CACHE)/molecule.lock
	flock --nonblock 8 || { echo "Another make molecule runs on this machine; its host has the same name." >&2; exit 1; }
	export MOLECULE_EPHEMERAL_DIRECTORY=$$(mktemp --directory)
	trap 'rm -rf "$$MOLECULE_EPHEMERAL_DIRECTORY"' EXIT
	export DRAFTGATE_MOLECULE_INVENTORY="$${DRAFTGATE_TEST_INVENTORY:-$$MOLECULE_EPHEMERAL_DIRECTORY/hosts.yml}"
	export MOLECULE_GLOB='tests/molecule/*/molecule.yml' MOLECULE_PYTHON='$(CURDIR)/$(DEV)/python'
	export PYTHONPATH='$(CURDIR)/module_utils' PATH="$(CURDIR)/$(DEV):$$PATH"
	molecule -c tests/molecule/config.yml test --no-command-borders $(or $(ARGS),$(SCENARIOS:%=-s %)) 8>&-

test-long: .venv .venv-dev ## all faults, random kills and truth tables; goes on where it stopped
	@$(DEV)/pytest --verbose -m long $(ARGS)

bench: .venv .venv-dev ## measure: a table, and reports/bench.json
	@$(DEV)/pytest --verbose -m bench $(ARGS)

lint: .venv-dev ## ruff, mypy, vermin, yamllint, ansible-lint
	@$(DEV)/ruff check .
	$(DEV)/mypy
	$(DEV)/vermin --quiet --target=3.9- --violations --no-tips module_utils library
	$(DEV)/yamllint --strict .
	PATH="$(CURDIR)/$(DEV):$$PATH" $(DEV)/ansible-lint --offline --strict

tiny-pair: system-packages ## train models/tiny-pair again from nothing, on the CPU
	@$(call venv,$(DRAFTGATE_CACHE)/tiny-pair,models/tiny-pair/recipe/requirements.txt)
	cd models/tiny-pair
	$(DRAFTGATE_CACHE)/tiny-pair/bin/python -m recipe $(ARGS)

.venv: system-packages
	@$(call venv,.venv,requirements.txt)

.venv-dev: system-packages
	@$(call venv,.venv-dev,requirements.txt requirements-dev.txt)

# A controller that deploys elsewhere runs no engine.
ENGINE_IS_HERE = $(if $(filter -i% --inventory%,$(ARGS)),false,true)

system-packages: ## what pip cannot bring: python3-venv, libnuma1 (asks for root only when one is missing)
	@missing=""
	for python in $(PYTHON) $$($(ENGINE_IS_HERE) && echo $(SYSTEM_PYTHON)); do
	  command -v "$$python" >/dev/null || { echo "There is no $$python; expected Python 3.11 or newer." >&2; exit 1; }
	  "$$python" -c 'import ensurepip' 2>/dev/null || missing=" python3-venv"
	done
	[ -z "$$missing" ] || echo "python3-venv is missing: it makes the environments of the controller and the engine."
	if $(ENGINE_IS_HERE) && ! $(SYSTEM_PYTHON) -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null; then
	  echo "libnuma1 is missing: the engine's CPU kernels load it."
	  missing+=" libnuma1"
	fi
	$(install_missing)

test-packages: ## what the tests need beside: chromium, nginx, and systemd-nspawn and its like for test hosts
	@missing=""
	PATH="$$PATH:/usr/sbin:/sbin"
	need() { command -v $$1 >/dev/null || { missing+=" $$2"; echo "$$2 is missing: $$3."; }; }
	need chromium chromium "a test opens the report page in it"
	need nginx nginx-light "tests lead a front on it"
	if [ "$$(id -u)" = 0 ]; then # only root boots hosts; tests on hosts say so themselves
	  need mmdebstrap mmdebstrap "it makes the test hosts' disk"
	  need systemd-nspawn systemd-container "it boots the test hosts"
	  need ip iproute2 "it connects the test hosts"
	fi
	need ssh openssh-client "Ansible reaches the test hosts by it"
	$(install_missing)

clean: ## remove what make put into this directory; deployments and the cache stay
	@rm -rf .venv .venv-dev .venv.lock .venv-dev.lock .ansible .mypy_cache .pytest_cache .ruff_cache reports
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
