# `make demo` and `make test` set up everything they need, on a machine that has only Python and make.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: help demo test slow check docs lock versions bench house format clean

help:
	@echo "make demo    train small models, record one, look inside, and write build/report.html: two minutes"
	@echo "make test    run the tests, a few minutes"
	@echo "make slow    run the tests over large corpora"
	@echo "make check   lint, format and types"
	@echo "make docs    build the site of the documentation into build/site"
	@echo "make lock    write into constraints.txt the newest version of every package that the tests need; TORCH=2.13.0 names PyTorch's"
	@echo "make versions  run the tests on other versions of Python and PyTorch, with the newest of everything else"
	@echo "make house   draw the folders and their imports into docs/design.md"
	@echo "make bench   measure against the floor and against rivals"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $(READY)

# Nothing in train_digits.py knows that it is recorded; build/ is not under version control.
RECORDED = build/digits.h5
PLACES = blocks.*.attention.forward.weights blocks.*.attention.sharpness forward.hidden **.weight.grad mean_image
demo: $(READY)
	@mkdir -p build
	@echo "1 of 4: train a small attention model on handwritten digits, and record what passes in it"
	$(BIN)/byname run --check $(PLACES:%=--record '%') --to $(RECORDED) --overwrite examples/train_digits.py build/digits.pt
	@printf "\n2 of 4: what was recorded\n"
	$(BIN)/byname show $(RECORDED)
	@printf "\n3 of 4: read the recording, look into the trained model, and write one page about it\n"
	$(BIN)/python examples/report_digits.py $(RECORDED) build/digits.pt build/report.html
	@printf "\n4 of 4: train another model, which has a fault that its accuracy hides, and look inside while it learns\n"
	$(BIN)/python examples/probe_digits.py build/digits.png
	@printf "\nDone. Open build/report.html in a browser; build/digits.png is the picture of the other model.\n"

test: $(READY)
	$(BIN)/python tests/runner.py -m "not slow"

slow: $(READY)
	$(BIN)/python tests/runner.py -m slow

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Every warning is an error: of links, of anchors, and of docstrings that do not fit their signatures.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "build/site/index.html"

# Everything that an environment of today gets, direct and indirect, so that the tests run tomorrow with the same.
TORCH ?= $(patsubst torch==%,%,$(filter torch==%,$(file < constraints.txt)))
LOCKED = build/lock
lock:
	$(PYTHON) -m venv --clear $(LOCKED)
	$(LOCKED)/bin/python -m pip install --quiet --upgrade pip
	$(LOCKED)/bin/python -m pip install --quiet "torch==$(TORCH)" --editable ".[dev]"
	$(LOCKED)/bin/python -m pip freeze --all --exclude-editable > $(LOCKED)/packages
	sed 's/+cpu$$//' $(LOCKED)/packages > constraints.txt
	rm -r $(LOCKED)

# The oldest and the newest PyTorch, each in an environment of its own; writes the table in docs/versions.md.
VERSIONS ?= 3.11+2.10.0 3.12+2.15.0 3.13+2.15.0
versions:
	.ci/versions $(VERSIONS)

bench: $(READY)
	$(BIN)/python -m benchmarks

# The table and the picture of the folders in docs/design.md, from the code.
house: $(READY)
	$(BIN)/python docs/house.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
