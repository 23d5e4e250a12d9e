# `make demo` and `make test` set up everything they need, on a machine that has only Python and make.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: help demo test check bench format clean

help:
	@echo "make demo    train a small model and print its leaves and saved tensors by name"
	@echo "make test    run every test"
	@echo "make check   lint, format and types"
	@echo "make bench   measure against the floor and against rivals"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $(READY)

demo: $(READY)
	$(BIN)/python examples/train_digits.py

# In two processes, for two cores.
test: $(READY)
	@$(BIN)/python -m pytest tests/autograd & first=$$!; \
	$(BIN)/python -m pytest --ignore tests/autograd; second=$$?; \
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
