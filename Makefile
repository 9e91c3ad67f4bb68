# make demo: install; build, search, train and evaluate on the embedded sample (with RAW=path: on raw DuReader files)
# make test: install; check style and types; run the quick tests
# make test-slow: build the documentation site; run the slow tests; kill every long command; damage 1,000 files for each reader (CASES=20000: 20,000 files)
# make docs: build the documentation site into build/site; a dead link or an unknown name is an error
# make test-space: serve the search page to a browser, 50 clients and an agent, in a separate environment (300 MB)
# make test-tools: let other tools read releases and exports, and train on them (200 MB)
# make gpu: check and measure the GPU code with $(PYTHON), not with .venv (with PARTS=train: run trainings)
PYTHON ?= python3
PARTS ?= checks speed
CASES ?= 1000
RAW ?= builders/sample
OUT ?= $(if $(filter builders/sample,$(RAW)),build/sample,build/raw)
BIN := .venv/bin
# On the sample, models are trained from scratch on the CPU.
REPRODUCE = $(if $(filter builders/sample,$(RAW)),--table 4 --scratch --one-process \
  --settings baselines/settings/sample.toml,--table 4 --row bm25) --out "$(OUT)-runs"
# Use one thread: with more threads than free cores, the training of these small models takes many times as long.
ONE_THREAD = $(if $(filter builders/sample,$(RAW)),OMP_NUM_THREADS=1)
.DELETE_ON_ERROR:
# Compile on all cores. Some packages have test files for other Python versions, so errors are ignored.
define install
$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt $(1)
$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib || true
endef
.PHONY: demo test test-slow types pytest docs test-space test-tools gpu setup setup-test setup-docs clean

# The file .venv/installed is written last, so that an interrupted installation runs again.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 to 3.14 is needed, this is %d.%d (make PYTHON=python3.12 ...)" % sys.version_info[:2] if not (3, 11) <= sys.version_info < (3, 15) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'pip>=25.1'
	$(call install,-e ".[models]")
	@touch $@

.venv/installed-test: .venv/installed
	$(call install,-e . --group dev)
	@touch $@

.venv/installed-docs: .venv/installed
	$(call install,-e . --group docs)
	@touch $@

setup: .venv/installed
setup-test: .venv/installed-test
setup-docs: .venv/installed-docs

demo: setup
	$(BIN)/python -m builders release --quiet --raw "$(RAW)" --out "$(OUT)"
	@$(BIN)/python -c 'import dureader_retrieval, datasets; datasets.disable_progress_bars(); \
	  print("\nload_dataset(\"dureader_retrieval\", \"dev\", data_dir=\"$(OUT)\"):", \
	  datasets.load_dataset("dureader_retrieval", "dev", data_dir="$(OUT)", split="dev"))'
	@$(ONE_THREAD) $(BIN)/python -m baselines reproduce --quiet --release "$(OUT)" $(REPRODUCE)
	@echo
	@$(BIN)/python -m baselines show --quiet --release "$(OUT)" --split dev "$(OUT)-runs/bm25.dev.run.gz"

test: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	+@$(MAKE) --no-print-directory -j 2 types pytest

# Runs in parallel with pytest, because pytest often waits for other processes.
types:
	$(BIN)/mypy

pytest:
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not slow"

# The variable turns off an advertisement of the theme's successor, which cannot run the hooks of mkdocs.yml.
docs: setup-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

test-slow: setup-test docs
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m slow --ignore tests/fuzz
	FUZZ_CASES=$(CASES) $(BIN)/python -m pytest -n auto tests/fuzz

test-space: setup-test
	TEST_SPACE=1 $(BIN)/python -m pytest -rs tests/test_space_page.py

test-tools: setup-test
	TEST_TOOLS=1 $(BIN)/python -m pytest -rs tests/test_tools.py tests/test_peers.py tests/test_plain_encode.py \
	  tests/test_engines.py tests/test_endpoint_server.py

# Machines with a GPU often lack a network. benchmarks/gpu_pack.py puts model, data and wheels into build/gpu-pack.
gpu:
	$(PYTHON) benchmarks/gpu.py --parts $(PARTS)

clean:
	rm -rf .venv .venvs build
