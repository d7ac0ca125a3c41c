PYTHON := .venv/bin/python
RUN ?= results/latest
REFERENCE ?= results/reference/cpu-zoo
GATE_OUTPUT ?= results
GATE_ARGS ?=
TIMED := --benchmark-enable --benchmark-only --benchmark-columns=min,median,rounds --benchmark-max-time=0.2
HOT_PATHS ?= $(TIMED) --benchmark-compare=tests/benchmarks/hot_paths.json --benchmark-compare-fail=min:300%
MUTANTS_ARGS ?=
GPU_ARGS ?=
NAME :=
STORED = results/reference/$(NAME)
FIGURES ?= $(basename $(notdir $(wildcard $(STORED)/figures/*.png)))

.PHONY: help install check test test-slow test-wheel mutants docs smoke bench gate hot-paths kernels gpu report reference

help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile

install: .venv/.installed   ## virtual environment with everything the project needs
.venv/.installed: pyproject.toml constraints.txt
	python3 -m venv .venv
	$(PYTHON) -m pip install -q -c constraints.txt torch
	$(PYTHON) -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

check: install   ## ruff, format, mypy (strict but for tests), import rules
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports --no-cache
	$(PYTHON) -m pytest -q tests/test_layering.py

test: install    ## the default test suite (CPU, no network), two processes
	$(PYTHON) -m pytest -q -n 2 --dist worksteal -m "not slow and not gpu"

test-slow: install   ## the tests of minutes
	$(PYTHON) -m pytest -q -n 2 --dist worksteal -m slow

docs: .venv/.docs   ## the docs site: builds site/, ends at any warning
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict
.venv/.docs: .venv/.installed
	$(PYTHON) -m pip install -q -c constraints.txt -e '.[docs]'
	touch $@

mutants: install   ## plant known wrong lines, count those that tests notice (MUTANTS_ARGS="--jobs 4")
	$(PYTHON) -m tests.mutants $(MUTANTS_ARGS)

test-wheel: install  ## build the wheel, install it into an empty environment, run it elsewhere
	$(PYTHON) -m pytest -q tests/test_wheel.py

smoke: install   ## every default decoder on a few prompts
	$(PYTHON) -m bench run --no-compile --limit 6 --repeats 1 --quality-limit 0 --output /tmp/bench-smoke

bench: install   ## the main job on the embedded default
	$(PYTHON) -m bench run

gate: install    ## hard gates on the zoo against the stored reference
	$(PYTHON) -m bench gate --against $(REFERENCE) --quality-limit 40 --output $(GATE_OUTPUT) --progress plain $(GATE_ARGS)

hot-paths: install   ## the hot paths without a model against the stored times, in units of a calibration
	$(PYTHON) -m pytest -q tests/benchmarks/test_hot_paths.py $(HOT_PATHS)

kernels: .venv/.triton   ## the kernels for a GPU: interpreted, and compiled for one that is not there
	PYTHONPATH=.venv/triton $(PYTHON) -m pytest -q tests/core/kernels/test_kernels.py -m "not gpu"
.venv/.triton: .venv/.installed
	$(PYTHON) -m pip install -q --no-deps --target .venv/triton triton==3.9.0  # torch for a CPU brings none
	touch $@

gpu: install     ## everything a GPU is borrowed for, in eleven minutes (GPU_ARGS=--rehearse: in small, on the CPU)
	$(PYTHON) -m pip install -q -c constraints.txt -e '.[gpu]'  # NVML: clocks, energy
	$(PYTHON) -m bench.extras.gpu $(GPU_ARGS)

report: install  ## redo tables and figures of a run: make report RUN=results/…
	$(PYTHON) -m bench report $(RUN)

reference: install  ## store a run: make reference NAME=cpu-zoo RUN=results/latest FIGURES="speedup latency"
	$(if $(NAME),,$(error NAME is missing: make reference NAME=cpu-zoo RUN=results/latest))
	rm -f $(addprefix $(STORED)/,phases.json figures/* tables/*)
	$(PYTHON) -m bench export $(RUN) --to reference --folder $(STORED) $(addprefix --figure=,$(FIGURES))
