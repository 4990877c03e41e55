# `make run` and `make test` do everything; `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
PORT ?= 8000
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: help run install system vllm test test-unit test-vllm check format bench-sandbox bench-grading bench-engine bench-scheduler bench-learner soak-sandbox scale scale-step demo-seeds roc-ablation base-model smollm2 screenshots lock lock-vllm clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: install system  ## everything on this machine, with the demo pipeline running
	@exec env ASTROLABE_PORT=$${ASTROLABE_PORT:-$(PORT)} $(BIN)/python manage.py up

install: .venv/installed

.venv/installed: requirements.lock
	@deploy/install.sh python "$(PYTHON)"
	@touch $@

system:
	@deploy/install.sh system

vllm: install .venv-vllm/installed  ## vLLM for CPUs in an environment of its own, for recipes with engines above 0

.venv-vllm/installed: requirements-vllm.lock
	@deploy/install.sh vllm "$(PYTHON)"
	@touch $@

test: install system  ## unit, integration and browser tests
	@deploy/install.sh newer-runsc
	@deploy/install.sh browser
	$(BIN)/python -m pytest -m "not e2e and not vllm and not gpu"
	$(BIN)/python -m pytest -m e2e  # a process of its own: Playwright keeps an event loop in its thread

test-unit: install  ## only what needs no service
	$(BIN)/python -m pytest -m "not db and not runsc and not integration and not e2e and not vllm and not gpu"

test-vllm: vllm system  ## vLLM engines for real on the CPUs: parity, weight updates, a whole run with engines killed
	$(BIN)/python -m pytest -m vllm

check: install  ## format, lint, types, arrows between rooms, migrations, compose file
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy contracts sandbox trainer webapp
	$(BIN)/lint-imports
	$(BIN)/python -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run
	@if command -v docker >/dev/null && docker compose version >/dev/null 2>&1; then \
	  docker compose config --quiet && echo "docker compose config: ok"; \
	else echo "docker compose not found: its file is not checked"; fi

format: install  ## ruff format and fixable lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-sandbox: install system  ## the sandbox against itself without gVisor and against code-judge; prints its bars
	$(BIN)/python -m benchmarks.sandbox $(if $(CODE_JUDGE),--code-judge $(CODE_JUDGE))

bench-grading: install  ## the verifier on collected pairs, against math-verify alone; prints its bars
	$(BIN)/python -m benchmarks.grading $(if $(PAIRS),--pairs $(PAIRS))

bench-engine: install  ## our engine beside transformers and, where it is installed, vLLM; prints its bar
	$(BIN)/python -m benchmarks.engine

bench-scheduler: install  ## rollout scheduling simulated over the grid, on seeds it was not tuned on; a page and its bars
	$(BIN)/python -m benchmarks.scheduler

bench-learner: install  ## our GRPO step and TRL's in turns, TRL in var/trl of its own; prints its bars
	$(BIN)/python -m benchmarks.learner

soak-sandbox: install system  ## 10,000 calls, hostile ones among them, on one node: memory, threads, files must stay flat
	$(BIN)/python -m benchmarks.sandbox.soak

scale: install system  ## measure the cost of a call, simulate, check on two nodes; rewrites docs/scale.md
	$(BIN)/python -m benchmarks.sandbox --modes closed --only ours --rounds 1 --seconds 30 --c 1 $$((4 * $$(nproc))) --costs sandbox/measured_costs.json
	$(BIN)/python -m sandbox simulate --markdown docs/scale.md
	$(BIN)/python -m benchmarks.sandbox --modes two-nodes --markdown docs/scale.md

scale-step: install  ## what a step of the paper's run needs on 64 GPUs, by explain and the simulator; rewrites docs/scale-step.md
	$(BIN)/python -m docs.scale_step

demo-seeds: install system  ## the demo recipe with seeds 1, 2, 3; prints the table of its bars
	$(BIN)/python -m benchmarks.demo_seeds

roc-ablation: install system  ## plain GRPO against GRPO-RoC on the demo task, three seeds: a table and a page
	$(BIN)/python -m benchmarks.roc_ablation

base-model: install  ## pretrain models/tiny-base anew (up to 2 h on two cores)
	$(BIN)/python -m trainer.pretrain --out models/tiny-base

screenshots: install  ## pictures of a running Astrolabe for the README
	@deploy/install.sh browser
	$(BIN)/python -m docs.screenshots

smollm2: models/smollm2-135m/config.json  ## a real pretrained model of 135M parameters, for recipes/smollm2_trial.yaml

models/smollm2-135m/config.json: | install
	@deploy/install.sh smollm2

lock:  ## resolve requirements.lock anew from pyproject.toml
	@deploy/install.sh lock "$(PYTHON)"

lock-vllm:  ## resolve requirements-vllm.lock anew
	@deploy/install.sh lock-vllm "$(PYTHON)"

clean:  ## remove the environment, caches and all data of `make run`
	rm -rf .venv .venv-vllm var .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
