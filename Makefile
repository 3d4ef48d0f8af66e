# Everything a newcomer needs: `make demo`, `make test`, `make check`, `make bench`.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin

.PHONY: demo test check format bench clean

# PyTorch is pinned to a CPU build so that no GPU packages are pulled on a CPU machine; a GPU host keeps the torch it has.
$(VENV)/.ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install -q torch==2.13.0
	$(BIN)/pip install -q -e '.[test,dev]'
	touch $@

demo: $(VENV)/.ready
	$(BIN)/python examples/demo.py

test: $(VENV)/.ready
	$(BIN)/python -m pytest tests -m "not gpu"

check: $(VENV)/.ready
	$(BIN)/ruff format --check gt tests benchmarks examples
	$(BIN)/ruff check gt tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/pure

format: $(VENV)/.ready
	$(BIN)/ruff format gt tests benchmarks examples
	$(BIN)/ruff check --fix gt tests benchmarks examples

bench: $(VENV)/.ready
	$(BIN)/python benchmarks/compare.py

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
