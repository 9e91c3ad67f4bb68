# make demo: install; build, search, train and evaluate on the embedded sample (with RAW=path: on raw DuReader files)
# make test: install; check style; run the quick tests
# make test-slow: check types; build the documentation site; run the slow tests; kill every long command; damage 1,000 files for each reader (CASES=20000: 20,000 files)
# make docs: build the documentation site into build/site; a dead link or an unknown name is an error
# make test-space: serve the search page to a browser, 50 clients and an agent, in a separate environment (300 MB)
# make test-tools: let other tools read releases and exports, and train on them (200 MB)
# make test-lowest, make test-newest: run the quick tests with the lowest and newest allowed versions (2 GB in .venvs;
#   TORCH=torch==2.13.0+cpu installs a build of PyTorch from PIP_FIND_LINKS)
# make release: build the sdist and the wheel, try them in a new environment, print the next steps
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
# With compiled files, later runs do not compile the project and the tests again.
unexport PYTHONDONTWRITEBYTECODE
# Use uv if it is installed, because it downloads and unpacks in parallel. uv does not read pip's settings.
UV := $(shell command -v uv)
UV_SETTINGS = $(if $(PIP_INDEX_URL),UV_DEFAULT_INDEX="$(PIP_INDEX_URL)") $(if $(PIP_FIND_LINKS),UV_FIND_LINKS="$(PIP_FIND_LINKS)")
INSTALL = $(if $(UV),$(UV_SETTINGS) $(UV) pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install --quiet --no-compile)
# Compile on all cores. Some packages have test files for other Python versions, so errors are ignored.
define install
$(INSTALL) -c constraints.txt $(1)
$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib || true
endef
# The extras that the tests need. test-lowest and test-newest install them without constraints.txt.
EXTRAS := elasticsearch judge models opencc ray stress
TORCH ?=
PYTEST := -m pytest -n auto --dist loadfile --no-loadscope-reorder
.PHONY: demo test test-slow types docs test-space test-tools test-lowest test-newest release gpu setup setup-test setup-docs clean

# The file .venv/installed is written last, so that an interrupted installation runs again.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 to 3.14 is needed, this is %d.%d (make PYTHON=python3.12 ...)" % sys.version_info[:2] if not (3, 11) <= sys.version_info < (3, 15) else 0)'
	$(PYTHON) -m venv .venv
	$(if $(UV),,$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'pip>=25.1')
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
	$(BIN)/python $(PYTEST) -m "not slow" --ignore tests/fuzz

# A part of test-slow, because a first run takes a minute.
types: setup-test
	$(BIN)/mypy

# The variable turns off an advertisement of the theme's successor, which cannot run the hooks of mkdocs.yml.
docs: setup-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

test-slow: setup-test types docs
	$(BIN)/python $(PYTEST) -m slow --ignore tests/fuzz
	FUZZ_CASES=$(CASES) $(BIN)/python -m pytest -n auto tests/fuzz

test-space: setup-test
	TEST_SPACE=1 $(BIN)/python -m pytest -rs tests/test_space_page.py

test-tools: setup-test
	TEST_TOOLS=1 $(BIN)/python -m pytest -rs tests/test_tools.py tests/test_peers.py tests/test_plain_encode.py \
	  tests/test_engines.py tests/test_endpoint_server.py

# build, twine and uv.
.venvs/tools/installed: pyproject.toml
	$(PYTHON) -m venv .venvs/tools
	.venvs/tools/bin/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
	.venvs/tools/bin/python -m pip install --quiet --group tools
	@touch $@

test-lowest: RESOLUTION := lowest-direct
test-newest: RESOLUTION := highest
test-lowest test-newest: test-%: .venvs/tools/installed
	.venvs/tools/bin/uv venv --quiet --clear --seed --python $(PYTHON) .venvs/$*
	$(UV_SETTINGS) .venvs/tools/bin/uv pip install --quiet --python .venvs/$*/bin/python --resolution $(RESOLUTION) \
	  -r pyproject.toml $(EXTRAS:%=--extra %) --group checks $(TORCH)
	.venvs/tools/bin/uv pip install --quiet --python .venvs/$*/bin/python --no-deps -e .
	.venvs/tools/bin/uv pip freeze --python .venvs/$*/bin/python > .venvs/$*.txt
	.venvs/$*/bin/python $(PYTEST) -m "not slow" --ignore tests/fuzz

release: .venvs/tools/installed
	$(UV_SETTINGS) .venvs/tools/bin/python .ci/release.py

# Machines with a GPU often lack a network. benchmarks/gpu_pack.py puts model, data and wheels into build/gpu-pack.
gpu:
	$(PYTHON) benchmarks/gpu.py --parts $(PARTS)

clean:
	rm -rf .venv .venvs build
