# make demo: set-up, then the whole way on the embedded sample (RAW=path: on your raw DuReader files)
# make test: set-up, then style, types and the quick tests
# make test-slow: the other tests, 1,000 spoiled files for every reader (CASES=20000), kills of every long command
# make test-space: the search page in a browser and asked by 50 at once, by Gradio in an environment of its own (300 MB)
# make test-tools: what `export` writes and a release as it stands, read and trained on by other tools (200 MB)
# make gpu: check and measure the code that runs on a GPU, by the machine's own Python (PARTS=train: trainings)
PYTHON ?= python3
PARTS ?= checks speed
CASES ?= 1000
RAW ?= builders/sample
OUT ?= $(if $(filter builders/sample,$(RAW)),build/sample,build/raw)
BIN := .venv/bin
# The sample is small enough to train on: everything from scratch, on the CPU.
REPRODUCE = $(if $(filter builders/sample,$(RAW)),--table 4 --scratch --one-process \
  --settings baselines/settings/sample.toml,--table 4 --row bm25) --out "$(OUT)-runs"
# More threads than free cores wait for each other: models this small take many times as long.
ONE_THREAD = $(if $(filter builders/sample,$(RAW)),OMP_NUM_THREADS=1)
.DELETE_ON_ERROR:
# Bytecode by all cores, and not of the packages' own tests; some have files for other Pythons, which do not compile.
define install
$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e . --group $(1)
$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib || true
endef
.PHONY: demo test test-slow types pytest test-space test-tools gpu setup setup-test clean

# The marks are made last: an interrupted installation is taken up again.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 to 3.14 is needed, this is %d.%d (make PYTHON=python3.12 ...)" % sys.version_info[:2] if not (3, 10) <= sys.version_info < (3, 15) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'pip>=25.1'
	$(call install,models)
	@touch $@

.venv/installed-test: .venv/installed
	$(call install,dev)
	@touch $@

setup: .venv/installed
setup-test: .venv/installed-test

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

# Side by side: the one takes a core for a minute, the other waits often.
types:
	$(BIN)/mypy

pytest:
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not slow"

test-slow: setup-test
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m slow --ignore tests/fuzz
	FUZZ_CASES=$(CASES) $(BIN)/python -m pytest -n auto tests/fuzz

test-space: setup-test
	TEST_SPACE=1 $(BIN)/python -m pytest -rs tests/test_space_page.py

test-tools: setup-test
	TEST_TOOLS=1 $(BIN)/python -m pytest -rs tests/test_tools.py tests/test_peers.py tests/test_plain_encode.py

# A machine with a GPU often has no network: build/gpu-pack (benchmarks/gpu_pack.py) has the model, the data and wheels.
gpu:
	$(PYTHON) benchmarks/gpu.py --parts $(PARTS)

clean:
	rm -rf .venv .venvs build
