# make demo    set everything up, then train a small CNN on two local nodes
# make test    every check: rules, format, types, import layers, documentation, tests
# make test-deep   the tests alone, with four times as many examples of every property and law: for hours
# make quick   rules, format, types, and the tests of what the change touches: under two minutes
# make lint, make docs, make bench, make clean    the parts
#
# PYTHON=python3.12            the interpreter to make .venv from (3.11 or newer); when it can import a torch that is new
#                              enough, that torch is used and none is downloaded
# TORCH_INDEX=https://...      a package index to take torch from, such as https://download.pytorch.org/whl/cpu

PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
PY := $(VENV)/bin/python
SETUP := sh .ci/setup "$(PYTHON)" "$(TORCH_INDEX)"

# Three workers on two cores: tests that start ranks wait for them to start, and for deadlines, much of the time.
TESTS := OMP_NUM_THREADS=1 $(PY) -m pytest -q -n 3 --dist loadgroup

# Targets that need nothing of each other, one a line, two at a time. Each says at its end all that it has to say.
SIDE_BY_SIDE := xargs -P 2 -I '{}' sh -c \
	'said=$$($(MAKE) --no-print-directory {} 2>&1); status=$$?; printf "%s\n" "$$said"; exit $$status'

.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test test-deep quick lint rules pyright layers docs simulator bench clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

# One stamp per set of packages; a stamp older than what it was made from is made again.
$(VENV)/.ready-examples: pyproject.toml setup.py constraints-dev.txt .ci/setup
	@$(SETUP) examples

$(VENV)/.ready-dev: pyproject.toml setup.py constraints-dev.txt .ci/setup
	@$(SETUP) dev

demo: $(VENV)/.ready-examples
	@$(VENV)/bin/maniple run --nodes 2 examples/digits.py

test: $(VENV)/.ready-dev
	@printf '%s\n' rules pyright docs simulator layers | $(SIDE_BY_SIDE)
	@echo "== tests"
	@$(TESTS)

test-deep: simulator
	@echo "== tests, with many examples"
	@HYPOTHESIS_PROFILE=deep $(TESTS)

quick: rules
	@echo "== tests of what the change touches"
	@OMP_NUM_THREADS=1 $(PY) .ci/touched.py

rules: $(VENV)/.ready-dev
	@echo "== rules (ruff)"
	@$(PY) -m ruff check --quiet .
	@echo "== format (ruff)"
	@$(PY) -m ruff format --quiet --check .
	@echo "== types (mypy)"
	@$(PY) -m mypy -p maniple

lint: rules pyright layers

pyright: $(VENV)/.ready-dev
	@echo "== types (pyright)"
	@$(PY) -m pyright --warnings --pythonpath $(PY)

layers: $(VENV)/.ready-dev
	@echo "== import layers (import-linter)"
	@$(PY) -c "from importlinter.cli import lint_imports_command as check; check()" --no-cache

docs: $(VENV)/.ready-dev
	@echo "== documentation (sphinx)"
	@$(PY) -m sphinx -q -W -n --keep-going -b html docs docs/_build/html

simulator: $(VENV)/.ready-dev
	@echo "== simulator (compiled once, for all tests)"
	@$(PY) -c "from maniple.strategies.simulation.compilation import compile_all; compile_all()"

bench: $(VENV)/.ready-dev
	@$(PY) benchmarks/first_light.py

# Keeps .venv, which is the expensive part: remove that by hand to begin again.
clean:
	rm -rf build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name .venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
