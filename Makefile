# make demo: see a federation train.   make test: run the tests.   Both set up .venv on their own.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint bench clean

demo: $(READY)
	$(BIN)/python examples/demo.py

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python benchmarks/rounds.py mlp
	$(BIN)/python benchmarks/rounds.py cnn
	$(BIN)/python benchmarks/paths.py
	$(BIN)/python benchmarks/million.py
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/masking.py
	$(BIN)/python benchmarks/noise.py
	$(BIN)/python benchmarks/ring.py
	$(BIN)/python benchmarks/confined.py
	$(BIN)/python benchmarks/lossless.py
	$(BIN)/python benchmarks/adversary.py

clean:
	rm -rf .venv

# torch goes first, by itself: what comes after it then finds it there
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)
