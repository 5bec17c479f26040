# make demo    raw text -> vocabulary -> TFRecords -> pre-training -> evaluation, with real text
# make test    style checks and the whole test suite
# make setup   the environment alone (HOROVOD=0 leaves the distributed parts out)
# make demo_qa from the demo's model to one that answers questions (a smoke test)

PYTHON ?= python3
VENV ?= .venv
HOROVOD ?= 1
ACCELERATOR ?= cpu
DEMO_DIR ?= demo
BROWSER ?= 0

SETUP = $(PYTHON) tools/setup_env.py --venv $(VENV) --horovod $(HOROVOD) --accelerator $(ACCELERATOR)
BIN = $(VENV)/bin

.PHONY: help python setup demo demo_qa test lint clean

help:
	@sed -n 's/^# //p' Makefile

setup: python
	@$(SETUP)

python:
	@command -v $(PYTHON) >/dev/null || { echo "setup: $(PYTHON) was not found; install Python 3.9-3.11 or name one: PYTHON=/path/to/python3.11." >&2; exit 1; }

demo: setup
	@$(BIN)/python tools/demo.py --output_dir=$(DEMO_DIR) $(if $(DEMO_TEXT),--text='$(DEMO_TEXT)') $(if $(DEMO_STEPS),--steps=$(DEMO_STEPS))

test: python
	@$(SETUP) --dev --browser $(BROWSER)
	@$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -n auto --dist loadfile

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) $(DEMO_DIR) build *.egg-info
