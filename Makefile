# Two commands on a fresh machine: `make train` and `make test`. Each sets everything up first.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
SEARCHERS := .venv/.searchers

.PHONY: setup train test test-all lint format bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

train: setup
	$(BIN)/shoal train CartPole-v1

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow' --durations 20

test-all: $(SEARCHERS)
	$(BIN)/python -m pytest -n 2 --dist worksteal

# What the searchers of sweeps need; one that must be compiled may fail, and then its tests say so.
$(SEARCHERS): $(STAMP)
	for extra in hyperopt bayesopt bohb nevergrad ax pb2; do \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[$$extra]" \
			|| echo "shoal[$$extra] cannot be installed here: its tests skip"; \
	done
	touch $(SEARCHERS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/solve.py
	$(BIN)/python benchmarks/learning.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/dqn.py
	$(BIN)/python benchmarks/curriculum.py
	$(BIN)/python benchmarks/trpo.py
	$(BIN)/python benchmarks/workers.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/launch.py
	$(BIN)/python benchmarks/rendezvous.py
	$(BIN)/python benchmarks/tune.py

clean:
	rm -rf .venv .venvs
