# `make demo` and `make test` set up everything they need, on a machine that has only Python and make.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: help demo test slow check bench format clean

help:
	@echo "make demo    train a small model and print its leaves and saved tensors by name"
	@echo "make test    run the tests, a few minutes"
	@echo "make slow    run the tests over large corpora"
	@echo "make check   lint, format and types"
	@echo "make bench   measure against the floor and against rivals"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $(READY)

demo: $(READY)
	$(BIN)/python examples/train_digits.py

FAST = $(BIN)/python -m pytest -m "not slow"
SLOW = $(BIN)/python -m pytest -m slow

# Two processes at a time, for two cores. The tests of memory look at the whole heap, and want a small one.
test: $(READY)
	@{ $(FAST) tests/autograd && $(FAST) tests/memory && $(FAST) tests/watch; } & first=$$!; \
	$(FAST) --ignore tests/autograd --ignore tests/memory --ignore tests/watch; second=$$?; \
	wait $$first && exit $$second

slow: $(READY)
	@{ $(SLOW) tests/memory && $(SLOW) --ignore tests/memory --ignore tests/watch; } & first=$$!; \
	$(SLOW) tests/watch; second=$$?; \
	wait $$first && exit $$second

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
