# Everything a newcomer needs: `make demo`, `make check`, `make test`, `make test-all`, `make bench`.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin

LANES   = test-others test-sessions test-documents test-processes-1 test-processes-2  # the longest first

.PHONY: demo test $(LANES) test-all test-variants check format stubs bench fuzz soak docs clean

# PyTorch is pinned to a CPU build so that no GPU packages are pulled on a CPU machine; a GPU host keeps the torch it has.
$(VENV)/.ready: pyproject.toml setup.py $(shell find gt -name '*.[ch]')
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install -q torch==2.13.0+cpu 2>/dev/null || \
	$(BIN)/pip install -q --retries 1 --timeout 10 torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu || \
	$(BIN)/pip install -q torch==2.13.0
	$(BIN)/pip install -q -e '.[test,dev]'
	touch $@

demo: $(VENV)/.ready
	$(BIN)/python examples/demo.py

# At most ten minutes on two quiet cores: without the slow tests and tests/pure (`make check`), in lanes of which four run at a
# time, since tests with real processes often wait. SELECT="" leaves out nothing but what needs a GPU.
# What failed in any lane is listed once more at the end.
SELECT = and not slow
FAILED = .pytest_cache/failed
test: $(VENV)/.ready
	@mkdir -p $(dir $(FAILED)) && rm -f $(FAILED)
	@TEST_FAILURES=$(FAILED) $(MAKE) -k -j4 --output-sync=target --no-print-directory $(LANES) SELECT="$(SELECT)" || \
	{ cat $(FAILED) 2>/dev/null; exit 1; }

test-processes-1: $(VENV)/.ready
	$(BIN)/python -m pytest tests/socket/test_[a-f]*.py -m "not gpu $(SELECT)"

test-processes-2: $(VENV)/.ready
	$(BIN)/python -m pytest tests/socket/test_[g-z]*.py -m "not gpu $(SELECT)"

test-sessions: $(VENV)/.ready
	$(BIN)/python -m pytest tests/memory -m "not gpu $(SELECT)"

test-documents: $(VENV)/.ready
	$(BIN)/python -m pytest tests/docs tests/backends tests/tensor_ops -m "not gpu $(SELECT)"

OTHERS = $(filter-out $(addprefix tests/,socket memory docs backends tensor_ops pure gpu typing __init__.py conftest.py),$(wildcard tests/*))
test-others: $(VENV)/.ready
	$(BIN)/python -m pytest $(filter-out %__pycache__,$(OTHERS)) -m "not gpu $(SELECT)"

test-all: $(VENV)/.ready
	$(BIN)/python -m pytest tests/pure
	$(MAKE) test SELECT=

# The suite again, with each of the variables that change how GT computes and not what.
test-variants: $(VENV)/.ready
	GT_WORKER_BATCH_SIZE=10 $(MAKE) test
	GT_TRACE=0 $(MAKE) test
	GT_NATIVE=0 $(MAKE) test
	GT_LOCAL_ANSWERS=0 $(MAKE) test
	GT_AUTO_COMPILE=1 $(MAKE) test

# With 100,000 hostile messages to both cores; `make test` sends another 40,000.
check: $(VENV)/.ready
	$(BIN)/ruff format --check gt tests benchmarks examples tools
	$(BIN)/ruff check gt tests benchmarks examples tools
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/pure
	$(BIN)/python -m pytest tests/memory/test_fuzz.py -m slow

# Write gt/__init__.pyi, from which editors know Tensor's methods, anew from the op table.
stubs: $(VENV)/.ready
	$(BIN)/python tools/stubs.py

format: $(VENV)/.ready
	$(BIN)/ruff format gt tests benchmarks examples tools
	$(BIN)/ruff check --fix gt tests benchmarks examples tools

# 10 million hostile messages, in a process for each core; fewer by `make fuzz FUZZ="--count 100000"`, or for so long by
# `FUZZ="--seconds 600"`.
fuzz: $(VENV)/.ready
	$(BIN)/python -m gt.testing.fuzz $(FUZZ)

# Clients and workers that come and go for an hour, or for as many seconds as `make soak SOAK_SECONDS=60` says, or so many
# short clients: `make soak SOAK_SESSIONS=4000`.
soak: $(VENV)/.ready
	SOAK_SECONDS=$(or $(SOAK_SECONDS),3600) SOAK_SESSIONS=$(or $(SOAK_SESSIONS),0) PYTHONPATH=.:tests/socket $(BIN)/python tests/socket/soak.py

# The site, in build/docs: every warning is an error. Open build/docs/index.html; it needs no network.
docs: $(VENV)/.ready
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs

bench: $(VENV)/.ready
	$(BIN)/python benchmarks/compare.py

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
