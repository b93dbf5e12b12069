# Every target sets itself up in .venv; the stamps make the second time quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# The compiled modules are rebuilt when their sources change.
INPUTS := pyproject.toml constraints.txt Makefile setup.py $(wildcard src/slipform/text/*.py)

.PHONY: run test lint format bench fuzz docs clean

run: $(VENV)/.installed-run
	$(BIN)/slipform serve

test: $(VENV)/.installed-dev
	$(BIN)/slipform models pull
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-bench
	$(BIN)/python -m bench

fuzz: $(VENV)/.installed-fuzz
	$(BIN)/python tests/fuzz/fuzz_repair.py -max_total_time=60

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --quiet --strict --site-dir build/docs
	@echo "The documentation is in build/docs/index.html"

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-run: $(INPUTS) | $(BIN)/python
	$(PIP) --editable '.[server,local]'
	touch $@

$(VENV)/.installed-dev: $(INPUTS) | $(BIN)/python
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/.installed-run

$(VENV)/.installed-fuzz: $(VENV)/.installed-dev
	$(PIP) --editable '.[dev,fuzz]'
	touch $@

$(VENV)/.installed-docs: $(INPUTS) | $(BIN)/python
	$(PIP) --editable '.[docs]'
	touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-dev
	$(PIP) --editable '.[dev,bench]'
	touch $@
