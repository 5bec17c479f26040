# make demo    raw text -> vocabulary -> TFRecords -> pre-training -> evaluation, with real text
# make test    style checks and tests (ALL=1 takes the slow ones too, EXHAUSTIVE=1 all)
# make setup   the environment alone (HOROVOD=0 leaves the distributed parts out)
# make docs    the documentation as a site, in build/docs
# make gpu-check  speed, memory and results on this machine's GPU, in 8 minutes (MINUTES, PARTS=types,speed)
# make demo-qa questions and answers with the demo's model, or QA_WEIGHTS=DIR (a smoke test)

VENV ?= .venv
# An environment that is there keeps its Python.
PYTHON ?= $(or $(wildcard $(VENV)/bin/python),python3)
HOROVOD ?= 1
ACCELERATOR ?= cpu
TENSORFLOW ?=
DEMO_DIR ?= demo
BROWSER ?= 0
HOSTS ?= 0
ALL ?= 0
EXHAUSTIVE ?= 0
# The tests of a marker alone, such as each_tensorflow.
MARK ?= $(if $(filter 1,$(EXHAUSTIVE)),,$(if $(filter 1,$(ALL)),not exhaustive,not slow and not exhaustive))
# Tests that would begin after so many minutes are skipped.
MINUTES ?=
# Processes of tests: one more than cores, as some wait for programs, hosts or disks.
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))

# What the tests may not do without: they fail where set-up could not build or install it.
BUILT = $(if $(filter 1,$(ALL) $(EXHAUSTIVE)),native_ops $(if $(filter 1,$(HOROVOD)),horovod))
NEEDED ?= $(strip $(BUILT) $(if $(filter 1,$(BROWSER)),browser) $(if $(filter 1,$(HOSTS)),hosts))

SETUP = $(PYTHON) tools/setup_env.py --venv $(VENV) --horovod $(HOROVOD) --accelerator $(ACCELERATOR) $(if $(TENSORFLOW),--tensorflow $(TENSORFLOW))
BIN = $(VENV)/bin

.PHONY: help python setup demo demo-qa gpu-check docs test lint clean

help:
	@sed -n 's/^# make /make /p' Makefile

setup: python
	@$(SETUP)

python:
	@command -v $(PYTHON) >/dev/null || { echo "setup: $(PYTHON) was not found; install Python 3.9-3.13 or name one: PYTHON=/path/to/python3.13." >&2; exit 1; }

# exec: a shell between make and a program would end at Ctrl-C, and make with it, before its work is
# saved.
demo: setup
	@exec $(BIN)/python tools/demo/run.py --output_dir=$(DEMO_DIR) $(if $(DEMO_TEXT),--text='$(DEMO_TEXT)') $(if $(DEMO_STEPS),--steps=$(DEMO_STEPS))

demo-qa: setup
	@exec $(BIN)/python tools/demo/run_qa.py --demo_dir=$(DEMO_DIR) --output_dir=$(DEMO_DIR)/qa $(if $(DEMO_TEXT),--text='$(DEMO_TEXT)') $(if $(QA_WEIGHTS),--init_checkpoint=$(QA_WEIGHTS))

gpu-check: HOROVOD = 0
gpu-check: ACCELERATOR = gpu
gpu-check: setup
	@mkdir -p build
	@$(BIN)/python -m benchmarks.gpu --minutes=$(or $(MINUTES),8) $(if $(PARTS),--parts=$(PARTS)) $(if $(PEER_PYTHON),--peer_python=$(PEER_PYTHON)) $(if $(DATA),--data=$(DATA)) --json=$(or $(JSON),build/gpu.json)

docs: python
	@$(SETUP) --horovod 0 --docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --builder html --doctree-dir build/doctrees docs build/docs

test: python
	@$(SETUP) --dev --browser $(BROWSER) --hosts $(HOSTS)
	@$(MAKE) --no-print-directory lint
	$(if $(NEEDED),BERT_TF_TESTS_NEED="$(NEEDED)" )$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(if $(MARK),-m "$(MARK)") $(if $(MINUTES),--minutes=$(MINUTES))

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(if $(wildcard $(BIN)/mypy),$(BIN)/mypy,@echo "lint: no mypy, which needs Python 3.10; types are not checked")

clean:
	rm -rf $(VENV) $(DEMO_DIR) build *.egg-info
