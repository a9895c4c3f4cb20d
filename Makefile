# circuitkit. `make book` builds the book, `make check` takes 20 seconds, `make test` checks everything that CI checks.
# `make help` lists all commands: the words after ## on the lines below.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := book
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
WORKERS ?= 2
PORT ?= 8000
HTML := _build/html
ifeq ($(SOLUTIONS),no) # pages that can be given to students, in a folder of their own
OUTPUT := _build/without-solutions
HTML := $(OUTPUT)/_build/html
export SOLUTIONS
endif
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONUTF8 := 1
export PYTHONDONTWRITEBYTECODE := # compiled once, and not in each process
ifneq ($(shell test -w "$$HOME" && echo yes),yes) # kernels, fonts and caches need a home folder that can be written to
export HOME := $(CURDIR)/_build/home
$(shell mkdir -p "$(CURDIR)/_build/home")
endif

BOOK_SOURCES := _config.yml _toc.yml $(shell find book src/circuitkit CHANGELOG.md -type f -not -path '*/.*' -not -path '*/__pycache__/*' 2>/dev/null)
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout=300 --nbval-sanitize-with=tests/book/sanitize.cfg
PYTEST := $(PY) -m pytest -q -p no:cacheprovider
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0

.PHONY: help env browser firefox book serve lab archive format lint types quick check test-book test notebooks bench coverage lock clean distclean

# --- the environment -------------------------------------------------------------------------------------------------
# The mark in .venv names the folder for which a set-up was completed. Where it is missing or names another folder, the
# set-up was interrupted or the project was moved, and .venv is made again from nothing.
LOCK ?= requirements.txt
PIP := $(PY) -m pip -qq
MARK := $(VENV)/.made-from
ifneq ($(shell cat $(MARK) 2>/dev/null),$(CURDIR))
.PHONY: $(MARK)
endif

env: $(MARK) ## make .venv, or bring it up to date (TORCH=cpu: the build of torch without CUDA)

$(MARK): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "circuitkit needs Python 3.11, 3.12 or 3.13. Name one: make PYTHON=python3.13"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "This Python has no module venv. On Debian and Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	@[ -e $@ ] || [ -z "$$(ls -A $(VENV) 2>/dev/null)" ] || \
	  { echo "$(VENV) was not made by make. Move it away or delete it with make distclean, and start again."; exit 1; }
	@if [ "$$(cat $@ 2>/dev/null)" != "$(CURDIR)" ]; then \
	  echo "Making $(VENV) from nothing. This takes a few minutes."; \
	  mkdir -p $(VENV); echo unfinished > $@; \
	  find $(VENV) -mindepth 1 ! -path $@ -delete; \
	  $(PYTHON) -m venv $(VENV); \
	fi
	@echo unfinished > $@
ifeq ($(TORCH),cpu)
	@torch="$$(grep -o '^torch==[^ ]*' $(LOCK))"; \
	$(PIP) install "$$(grep -o '^uv==[^ ]*' $(LOCK))"; \
	$(VENV)/bin/uv pip install --quiet --no-deps --torch-backend cpu "$$torch" 2>/dev/null || \
	  { echo "The index of CPU builds cannot be reached: torch comes from the plain package index."; \
	    $(PIP) install --no-deps "$$torch"; }
endif
	@$(PIP) install --no-deps --require-hashes -r $(LOCK)
	@$(PIP) install --no-build-isolation -e . # on Linux this also installs what the CUDA build of torch asks for
	@$(PIP) check
	@echo "$(CURDIR)" > $@

LAUNCH := $(PY) -c $$'from playwright.sync_api import sync_playwright\nwith sync_playwright() as p: p.chromium.launch().close()'
ROOT := $(if $(filter-out 0,$(shell id -u)),sudo)
browser: env ## a browser for the tests: one that is installed, else Playwright's, else the system's package
	@$(PY) -c 'from tools.publish.browser import installed_chromium; exit(not installed_chromium())' && exit 0; \
	$(PY) -m playwright install --only-shell chromium >/dev/null 2>&1 && $(LAUNCH) 2>/dev/null && exit 0; \
	echo "Playwright cannot fetch Chromium: the system's package manager installs it."; \
	if command -v apt-get >/dev/null; then \
	  $(ROOT) apt-get update -qq && \
	  { $(ROOT) apt-get install -y -qq --no-install-recommends chromium-headless-shell >/dev/null || \
	    $(ROOT) apt-get install -y -qq --no-install-recommends chromium >/dev/null; }; \
	elif command -v dnf >/dev/null; then $(ROOT) dnf install -y -q chromium; \
	elif command -v pacman >/dev/null; then $(ROOT) pacman -S --noconfirm chromium; \
	elif command -v brew >/dev/null; then brew install --cask chromium; \
	else false; fi || \
	{ echo "The pages need Chromium or Google Chrome. Install one, and start again."; exit 1; }

firefox: ## Firefox, for one weekly test
	@command -v firefox-esr firefox >/dev/null || \
	  { $(ROOT) apt-get update -qq && $(ROOT) apt-get install -y -qq --no-install-recommends firefox-esr >/dev/null; } || \
	  { echo "A weekly test needs Firefox. Install it, and start again."; exit 1; }

# --- the book --------------------------------------------------------------------------------------------------------
$(HTML)/.stamp-book: $(BOOK_SOURCES) $(MARK)
	@$(PY) -c "from importlib.metadata import version; version('jupyter-book')[0] == '1' or exit('The book needs jupyter-book 1: version 2 would rename _config.yml and _toc.yml.')"
	rm -rf $(HTML) $(dir $(HTML)).doctrees # incremental builds keep pages that an extension or a style would change
	PYTHONPATH=. $(PY) $(VENV)/bin/jupyter-book build . --quiet -n -W --keep-going $(OUTPUT:%=--path-output %)
	@touch $@

book: $(HTML)/.stamp-book ## the rendered book; prints where it is (SOLUTIONS=no: without the solutions of the exercises)
	@echo "The book: $(CURDIR)/$(HTML)/index.html"

serve: book ## the book on http://localhost:8000 (PORT=...)
	$(PY) -m http.server $(PORT) --bind 127.0.0.1 --directory $(HTML)

lab: env ## the chapters in JupyterLab
	$(PY) -m jupyterlab book $(if $(filter 0,$(shell id -u)),--allow-root)

notebooks: env ## run every notebook again: the only way its outputs are written
	$(PY) -m tools execute
	$(PY) -m tools stubs

archive: book ## the book as one file that opens without a network
	$(PY) -m tools archive

# --- checks ----------------------------------------------------------------------------------------------------------
FORMATTED := src tests tools book exercises benchmarks

format: env ## format Python files and notebooks
	$(VENV)/bin/ruff format $(FORMATTED)
	$(VENV)/bin/ruff check --fix .

lint: env ## merge conflicts, format, faults, spelling, package layers, workflows
	@! git grep -nE '^(<{7}|>{7}) ' || { echo 'These lines are left over from a merge conflict: keep one side of each.'; exit 1; }
	$(VENV)/bin/ruff format --check --quiet $(FORMATTED)
	$(VENV)/bin/ruff check --quiet .
	$(VENV)/bin/codespell -D- -D.codespell/dictionary.txt
	$(VENV)/bin/lint-imports --no-cache --no-logo >/dev/null || $(VENV)/bin/lint-imports --no-cache --no-logo
	$(VENV)/bin/actionlint -shellcheck=$(VENV)/bin/shellcheck .github/workflows/*.yml
	$(VENV)/bin/zizmor --offline --strict-collection --quiet .github

TYPED := $(shell find src typings tests/library/editor_types.py -name '*.py*' -not -path '*/__pycache__/*' 2>/dev/null)
_build/.stamp-types: $(TYPED) $(MARK)
	$(VENV)/bin/pyright --pythonpath $(PY)
	@mkdir -p _build && touch $@

types: _build/.stamp-types ## pyright on the library, unless nothing of it has changed since it passed

QUICK := $(addprefix tests/book/test_,hollow_cells.py page_form.py page_lists.py exercise_pages.py numbers.py equations.py spelling.py glossary.py names_and_paths.py)
quick: env ## the tests that need no kernel: hollow cells, form and lists of the pages and exercises, numbers, equations, spelling of notebooks, glossary
	$(PYTEST) $(QUICK)

check: env ## after every edit (20 s): lint, types and the quick tests
	@$(MAKE) --no-print-directory -k -j2 types lint quick

test-book: browser ## after an edit of the text (4 min): check, book, notebooks, pages
	@$(MAKE) --no-print-directory -j2 lint types book
	$(PYTEST) book tests/book tests/site $(NBVAL) $(PARALLEL)

test: browser ## everything that CI checks (5 min)
	@$(MAKE) --no-print-directory -j2 lint types book
	$(PYTEST) book tests src $(NBVAL) --doctest-modules $(PARALLEL) --durations=8

bench: env ## measured ratios
	$(PY) benchmarks/run.py

# --- the lock ---------------------------------------------------------------------------------------------------------
COMPILE := $(VENV)/bin/uv pip compile pyproject.toml --group dev --quiet --generate-hashes --no-annotate --no-emit-index-url --custom-compile-command "make lock"
UNIVERSAL := --universal --python-version 3.11 --fork-strategy fewest

lock: env ## write requirements.txt from pyproject.toml (UPGRADE=name, or UPGRADE=all)
	$(COMPILE) $(UNIVERSAL) -o requirements.txt $(if $(filter all,$(UPGRADE)),--upgrade,$(UPGRADE:%=--upgrade-package %))

# --- once a week -----------------------------------------------------------------------------------------------------
# .github/workflows/weekly.yml runs each of these as one job, on the machine that its name asks for.
WEEKLY := $(PYTEST) $(PARALLEL) -m weekly

weekly-arm weekly-macos: env ## every notebook, on an ARM or a macOS machine
	$(PYTEST) book $(NBVAL) $(PARALLEL)

weekly-plain-cpu: env ## every notebook without vector instructions and with two threads
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=2 $(PYTEST) book $(NBVAL) $(PARALLEL) -n 1 --nbval-cell-timeout=900

weekly-notebooks: env ## every notebook run from nothing, its outputs compared with the stored ones
	CIRCUITKIT_COLD_KERNELS=1 $(PYTEST) book $(NBVAL) $(PARALLEL)

weekly-newest: RESOLVE := $(UNIVERSAL) --upgrade
weekly-oldest: RESOLVE := --resolution lowest-direct
weekly-newest weekly-oldest: env ## notebooks and library with the newest or the oldest packages allowed (CONSTRAINTS=file: but these)
	mkdir -p _build
	rm -f _build/$@.txt
	$(COMPILE) $(RESOLVE) $(CONSTRAINTS:%=--constraint %) -o _build/$@.txt
	$(MAKE) --no-print-directory env VENV=.venv-$@ LOCK=_build/$@.txt
	.venv-$@/bin/python -m pytest -q -p no:cacheprovider book tests/library tests/exercises $(NBVAL) $(PARALLEL) -m "not weekly and not browser"

# The image is where google.colab is installed. On any other machine its packages of one day are installed next to .venv.
COLAB_PACKAGES := tests/packaging/colab-2026-08-19.txt
COLAB_PYTHON ?= python3.13
COLAB_COPY := $(CURDIR)/.venv-weekly-colab/bin/python
IN_THE_IMAGE := from importlib.util import find_spec; exit(not (find_spec("google") and find_spec("google.colab")))
COLAB = $(shell python3 -c '$(IN_THE_IMAGE)' && command -v python3 || echo $(COLAB_COPY))
SETUP_CELL := import json, sys; cells = json.load(sys.stdin)["cells"]; \
  print("".join(next(cell["source"] for cell in cells if cell["cell_type"] == "code")))

$(COLAB_COPY): $(COLAB_PACKAGES)
	@command -v $(COLAB_PYTHON) >/dev/null || \
	  { echo "Colab has Python 3.13, and there is no $(COLAB_PYTHON) here. Name one: make weekly-colab COLAB_PYTHON=..."; exit 1; }
	rm -rf .venv-weekly-colab
	$(COLAB_PYTHON) -m venv .venv-weekly-colab
	@torch="$$(grep '^torch==' $<)"; $@ -m pip install -qq uv; \
	.venv-weekly-colab/bin/uv pip install --quiet --python $@ --torch-backend cpu "$$torch" --constraint $< 2>/dev/null || \
	  echo "The index of CPU builds cannot be reached: torch comes from the plain package index."
	$@ -m pip install -qq -r $<
	$@ -m pip uninstall -qq -y uv
	touch $@

weekly-colab: ## every notebook, set-up cell first, with Colab's packages: nothing that is preinstalled there may be replaced
	if [ $(COLAB) = $(COLAB_COPY) ]; then $(MAKE) --no-print-directory $(COLAB); fi
	rm -rf _build/colab
	mkdir -p _build/colab
	$(COLAB) -m pip uninstall -qq -y circuitkit-book # an older one of the same version
	$(COLAB) -m pip wheel --quiet --no-deps --wheel-dir _build/colab .
	$(COLAB) -m pip freeze | sort > _build/colab/before.txt
	{ echo 'import sys, types; sys.modules["google.colab"] = types.ModuleType("google.colab")'; \
	  $(COLAB) -c '$(SETUP_CELL)' < book/models-and-heads.ipynb; } > _build/colab/setup.ipy
	cd _build/colab && $(COLAB) -m IPython --no-banner setup.ipy
	$(COLAB) -m pip freeze | sort > _build/colab/after.txt
	grep circuitkit-book _build/colab/after.txt
	$(COLAB) -m pip install --quiet nbval pytest-xdist
	! comm -23 _build/colab/before.txt <($(COLAB) -m pip freeze | sort) | grep .
	TQDM_DISABLE=1 CIRCUITKIT_STILL=1 PYDEVD_DISABLE_FILE_VALIDATION=1 $(COLAB) -m pytest book -q -p no:cacheprovider -c tests/packaging/colab.ini --rootdir=. $(NBVAL) $(PARALLEL)
	$(COLAB) -m nbconvert --to html --execute --output-dir _build/colab book/models-and-heads.ipynb
	[ $$(grep -c 'class="ck-packed"' _build/colab/models-and-heads.html) = 3 ] # live attention views

weekly-pages: browser firefox book ## every page in every width and theme, and a saved lab in Firefox
	$(WEEKLY) tests/site --dist load # one file has nearly all of these tests

PLAIN := _build/plain
weekly-sphinx: book ## Sphinx alone builds the same book from _config.yml and _toc.yml: the way out of jupyter-book 1
	rm -rf $(PLAIN) && mkdir -p $(PLAIN)
	git ls-files -z | grep -zv '^studies/' | xargs -0 cp --parents -t $(PLAIN)
	cd $(PLAIN) && $(abspath $(PY)) $(abspath $(VENV))/bin/jupyter-book config sphinx . >/dev/null
	sed -i "s/'jupyter_book', //" $(PLAIN)/conf.py
	cd $(PLAIN) && PYTHONPATH=.:book/_ext $(abspath $(PY)) -m sphinx -b html -n -W --keep-going -q -d doctrees . html
	diff -rq --exclude=.stamp-book --exclude=.buildinfo $(HTML) $(PLAIN)/html

weekly-address: browser book ## the whole book as it is when the repository has an address
	$(WEEKLY) tests/site/test_address_on_pages.py

ANNOTATIONS := --jaxtyping-packages=circuitkit,beartype.beartype # half as long again, so not on every change

weekly-library: env ## all model families, the full fuzz, slow claims; every annotation is checked at every call
	$(PYTEST) $(PARALLEL) -m "not browser" $(ANNOTATIONS) tests/library tests/exercises tests/book

weekly-archive: browser archive ## the archive opens without a network
	$(WEEKLY) tests/site/test_archive.py

weekly-coverage: env ## which lines of the library the tests run
	$(PYTEST) tests/library tests/exercises tests/book $(PARALLEL) -m "not weekly and not browser" --cov=circuitkit --cov-report=term-missing --cov-fail-under=95

MUTANTS ?= 40
weekly-mutants: env ## faults planted in files of the library that changed in the last week (MUTANTS=40 of them, drawn by the week)
	$(VENV)/bin/uv pip install --quiet --python $(PY) --group mutants
	$(PY) -m tools mutants --number $(MUTANTS)

weekly-bench: bench ## the ratios of times stay within their limits

# --- housekeeping ----------------------------------------------------------------------------------------------------
help: ## this list
	@awk -F ':.*## ' '/^[a-z -]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

clean: ## remove what was built
	rm -rf _build build dist mutants .pytest_cache .ruff_cache .coverage
	find src tests tools book benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## remove .venv too
	rm -rf $(VENV)
