# Every target sets up what it needs; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
ARGS ?=
DRAFTGATE_CACHE ?= $(HOME)/.cache/draftgate

# Named, because Ansible ignores the ansible.cfg of a directory that others may write to.
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export DRAFTGATE_CACHE

DEV := .venv-dev/bin

# $(call venv,DIRECTORY,REQUIREMENT FILES,INTERPRETER): made again only when the interpreter, the place or a
# requirement changed. The stamp is written last: an environment whose making was killed is made again.
define venv
exec 9> $(1).lock
flock 9
wanted=$$({ $(3) -VV; pwd; cat $(2); } | sha256sum | cut -c1-16)
if [ "$$(cat $(1)/stamp 2>/dev/null)" != "$$wanted" ]; then
  echo "$(1): installing $(2), once, about half a minute"
  $(3) -m venv --clear $(1)
  $(1)/bin/pip install --quiet --disable-pip-version-check $(addprefix --requirement ,$(2))
  echo "$$wanted" > $(1)/stamp
fi
exec 9>&-
endef

.PHONY: help deploy test test-unit test-long bench lint tiny-pair system-packages clean .venv .venv-dev

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deploy: .venv ## Deploy to inventory/local, or elsewhere: make deploy ARGS="-i inventory/fleet --check --diff"
	@.venv/bin/ansible-playbook deploy.yml $(ARGS)

test: lint ## Everything CI runs: lint, unit, integration and one real deployment with its faults
	@$(DEV)/pytest -m "not long and not bench" $(ARGS)

test-unit: .venv-dev ## The tests that need no engine and no deployment, in seconds
	@$(DEV)/pytest tests/unit $(ARGS)

test-long: .venv .venv-dev ## All faults, random kills and truth tables: hours; a finished case is not run again
	@$(DEV)/pytest -m long $(ARGS)

bench: .venv .venv-dev ## Measure the figures of docs/ into a table and reports/bench.json
	@$(DEV)/pytest -m bench $(ARGS)

lint: .venv-dev ## ruff, mypy, yamllint and ansible-lint
	@$(DEV)/ruff check .
	$(DEV)/mypy
	$(DEV)/yamllint --strict .
	PATH="$(CURDIR)/$(DEV):$$PATH" $(DEV)/ansible-lint --offline --strict

.venv: system-packages
	@$(call venv,.venv,requirements.txt,$(PYTHON))

.venv-dev: system-packages
	@$(call venv,.venv-dev,requirements.txt requirements-dev.txt,$(PYTHON))

system-packages:
	@true

clean: ## Remove what make put into this directory (the cache in ~/.cache/draftgate and deployments stay)
	@rm -rf .venv .venv-dev .venv*.lock .ansible .mypy_cache .pytest_cache .ruff_cache reports
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
