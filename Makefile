# `make install` sets up .venv from a fresh clone; the other targets do so first where needed.
PYTHON ?= python3
# TensorFlow's build: cpu, cuda or tpu. Without one, that of the .venv that is there.
EXTRA ?= $(or $(shell cat .venv/installed 2>/dev/null),cpu)
BIN := .venv/bin
SHELL_SCRIPTS := $(wildcard scripts/*.sh scripts/inference/*.sh docker/*.sh) .ci/run
KERNELS := models/official/detection/submission/fusion
# Whole files, in their order: each file's fixtures, some of which train for a minute, are made once.
TWO_WORKERS := -n 2 --dist loadfile --no-loadscope-reorder
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: install demo demo-masks test test-all test-tpu torture tpu-plans lint clean

install: .venv/installed  ## everything that the other targets need

.venv/installed: pyproject.toml setup.py $(wildcard $(KERNELS)/*.pyx $(KERNELS)/*.pxd)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRA),jax,cluster,dev]'
	echo $(EXTRA) > $@

demo: .venv/installed  ## draw a data set, train, evaluate, export, predict, submit: minutes
	$(BIN)/tpudet demo

demo-masks: .venv/installed  ## the same with a mask for each object
	$(BIN)/tpudet demo --masks

test: .venv/installed  ## the default suite; real-data tests where TPUDET_TEST_DATA names them
	$(BIN)/python -m pytest $(TWO_WORKERS) $(PYTEST_ARGS)

test-all: .venv/installed  ## the slow tests too
	$(BIN)/python -m pytest $(TWO_WORKERS) -m "slow or not slow" $(PYTEST_ARGS)

torture: .venv/installed  ## kill, starve and damage real commands for hours; docs/restart.md's table
	$(BIN)/python tests/conformance/torture.py --times $(or $(TIMES),100) --write

build/libtpu/installed:
	$(BIN)/python -m pip install --quiet --no-deps --target build/libtpu libtpu==0.0.52
	touch $@

test-tpu: .venv/installed build/libtpu/installed  ## small steps through the TPU's compiler
	PYTHONPATH=build/libtpu $(BIN)/python -m pytest -m "slow or not slow" tests/trainkit/training/test_tpu_topology.py

tpu-plans: .venv/installed build/libtpu/installed  ## docs/tpu_plans.md, minutes a config; resumes where it stopped
	PYTHONPATH=build/libtpu $(BIN)/python tools/write_tpu_plans.py

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/shellcheck $(SHELL_SCRIPTS)

clean:
	rm -rf .venv output build dist .pytest_cache .ruff_cache models/official/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
