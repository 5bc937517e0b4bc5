# make demo | test | test-all | test-minimum | coverage | fuzz | test-interop | test-petsc | test-clients | lint | format |
# cuda | cpu-kernels | kernels | wheel | dist | check-dist | bench | docs | clean: each makes what it needs first, in .venv or in an environment of its own.
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
WORKERS ?= 2
# A file of tests to a worker, the longest first: tests/conftest.py has their order.
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# What is kept for other runs and checkouts, all of it named by its content: compiled kernels, CUDA files that compile.
override FINELU_CACHE := $(abspath $(or $(FINELU_CACHE),$(or $(XDG_CACHE_HOME),$(if $(HOME),$(HOME)/.cache,build))/finelu))
export FINELU_CACHE
# Python keeps the bytecode of the sources and of the tests: hundreds of processes would compile them anew.
unexport PYTHONDONTWRITEBYTECODE

comma := ,
NVCC := $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help installed demo forget test test-all test-minimum coverage fuzz interop-venv test-interop test-petsc \
    test-clients lint format cuda cpu-kernels kernels wheel dist check-dist bench docs clean

help:
	@echo "make demo   solve a generated Poisson problem, print the table, draw build/convergence.png"
	@echo "make test   run the tests (make test-all: the slow ones too, and more random examples)"
	@echo "make test-minimum   run them with Python 3.11 and the oldest versions that pyproject.toml allows"
	@echo "make coverage   run them, and print which lines of src ran"
	@echo "make fuzz   throw random systems, damaged files and unusual calls at finelu (MINUTES=10), on all cores"
	@echo "make test-interop   run the tests with JAX, PyAMG, scikit-fem and PyTorch (TORCH_INDEX=url)"
	@echo "make test-petsc   run the tests that need PETSc or MPI, on 1, 2 and 4 processes (PETSC_WHEELS=folder, PETSC=required)"
	@echo "make test-clients   solve with finelu inside other programs, and compare (CLIENTS='pandapower skfem')"
	@echo "make lint   check style (ruff), types (mypy), the floors of imports, the words and the constants"
	@echo "make cuda   compile every CUDA kernel for every type it is used with"
	@echo "make cpu-kernels  compile the CPU's kernels in all types to the machine code that a wheel carries"
	@echo "make kernels  the same, and every CUDA kernel (KERNELS='--arch sm_90')"
	@echo "make wheel  make it, and a wheel with it, in dist (PLATFORM=manylinux_2_17_x86_64)"
	@echo "make dist   make the sdist, and a wheel from it without machine code, in dist"
	@echo "make check-dist   check what lies in dist: the metadata, and the demo in a fresh environment with the wheel"
	@echo "make bench  run the paper's benchmark (NAME=syncfree)"
	@echo "make docs   build the documentation into build/site"
	@echo "make clean  remove what the above made, .venv too"

# A stamp a set of extras: pip runs again only when pyproject.toml has changed.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no python3.11 or python3 was found; install Python >= 3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "make: $(PYTHON) is older than 3.11; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.stamp-%: pyproject.toml | $(BIN)/python
	$(PIP) install --editable '.[$*]'
	@touch $@ $(foreach extra,$(subst $(comma), ,$*),$(VENV)/.stamp-$(extra))

# What .ci/run needs, by one run of pip.
installed: $(VENV)/.stamp-report,test,lint,docs$(if $(NVCC),,$(comma)nvrtc)

demo: $(VENV)/.stamp-report
	@mkdir -p build
	$(BIN)/finelu solve gallery:poisson7:60 --plot build/convergence.png

# What was compiled a month ago is compiled once more: else what sources of before led to would pile up.
forget:
	@find "$(FINELU_CACHE)/cuda" -type f -mtime +30 -delete 2>/dev/null || true

test: $(VENV)/.stamp-report $(VENV)/.stamp-test forget
	$(BIN)/python -m pytest -q $(SPREAD) -m "not slow"

test-all: $(VENV)/.stamp-report $(VENV)/.stamp-test forget
	FINELU_EXAMPLES=100 $(BIN)/python -m pytest -q $(SPREAD)

# An environment of its own.
MINIMUM := $(CURDIR)/build/minimum
test-minimum: pyproject.toml
	@mkdir -p $(MINIMUM)
	$(PYTHON) tools/minimum.py report test >$(MINIMUM)/constraints.txt
	PIP_CONSTRAINT=$(MINIMUM)/constraints.txt $(MAKE) test VENV=$(MINIMUM)/venv

# Of the processes that tests start, too. The kernels are not counted: Numba or NVRTC runs them.
coverage: $(VENV)/.stamp-report $(VENV)/.stamp-test
	@mkdir -p build
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q $(SPREAD) -m "not slow"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

MINUTES ?= 10
fuzz: $(VENV)/.stamp-report $(VENV)/.stamp-test
	$(BIN)/python tests/fuzz/run.py --minutes $(MINUTES) --out build

# A virtual environment of its own. Says so, and goes on without, where a package cannot be had.
INTEROP_VENV ?= build/interop
interop-venv:
	@PYTHON=$(PYTHON) tools/interop_venv.sh $(INTEROP_VENV) $(TORCH_INDEX)

test-interop: interop-venv
	$(INTEROP_VENV)/bin/python -m pytest -q -rs -n $(WORKERS) -m "not slow and not gpu" \
	    $(filter-out %_petsc.py, $(wildcard tests/app/test_interop_*.py)) tests/app/test_examples.py \
	    $(patsubst %, tests/app/test_%.py, solver singular certify sequence spilu deadline) \
	    tests/app/test_documentation.py::test_what_the_api_names_can_be_imported

# A virtual environment of its own, as PETSc may need another NumPy. Says so, and passes, where no PETSc can be had, or
# not from the wheels given; with PETSC=required it fails.
PETSC ?=
PETSC_WHEELS ?= $(patsubst %/,%,$(firstword $(dir $(wildcard ../shared/wheels/petsc4py-*.whl))))
PETSC_VENV ?= build/petsc
test-petsc: pyproject.toml
	@PYTHON=$(PYTHON) PETSC=$(PETSC) tools/petsc_venv.sh $(PETSC_VENV) $(PETSC_WHEELS) \
	    || { [ $$? = 3 ] && [ "$(PETSC)" != required ]; }
	@if [ -f $(PETSC_VENV)/petsc.env ]; then set -a; . $(PETSC_VENV)/petsc.env; \
	    timeout -k 10 900 $(PETSC_VENV)/bin/python -m pytest -q -m "petsc or mpi" \
	        tests/app/test_interop_petsc.py tests/app/test_multiblock_processes.py tests/app/test_notebooks.py; \
	    else echo "make: ***** the tests that need PETSc or MPI were NOT run *****" >&2; fi

# Each client in a virtual environment of its own, in FINELU_CACHE. Says so, and goes on, where one cannot be had.
CLIENTS ?=
test-clients:
	$(PYTHON) tests/clients/run.py $(CLIENTS)

lint: $(VENV)/.stamp-lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/floors.py
	$(BIN)/python tools/words.py
	$(BIN)/python tools/constants.py

format: $(VENV)/.stamp-lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# nvcc where there is one, else NVRTC from PyPI.
cuda: $(if $(NVCC),$(BIN)/python,$(VENV)/.stamp-nvrtc)
	$(BIN)/python tools/compile_cuda.py --known "$(FINELU_CACHE)/cuda"

cpu-kernels: $(BIN)/python $(VENV)/.stamp-report
	$(BIN)/python tools/build_cpu_kernels.py $(CPU_KERNELS)

# By NVRTC of CUDA 12, whatever nvcc there is.
KERNELS ?=
kernels: cpu-kernels $(VENV)/.stamp-kernels
	$(BIN)/python tools/build_kernels.py $(KERNELS)

# With all that lies in kernels/*/binaries, archives for other Pythons too. PLATFORM: what pip offers the wheel to.
PLATFORM ?= any
wheel: kernels
	rm -rf build/lib build/bdist.* dist/*.whl
	$(PIP) wheel --no-deps --config-settings=--build-option=--plat-name=$(PLATFORM) --wheel-dir dist .

dist: $(VENV)/.stamp-release
	rm -rf dist build/lib build/bdist.*
	$(BIN)/python -m build

check-dist: $(VENV)/.stamp-release
	$(BIN)/twine check --strict dist/*
	PYTHON=$(PYTHON) tools/try_wheel.sh dist/finelu-*.whl

NAME ?= syncfree
bench: $(VENV)/.stamp-bench
	$(BIN)/finelu bench $(NAME)

# Spelling, links to pages and to places in them, and nothing that is loaded from elsewhere.
docs: $(VENV)/.stamp-docs
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md docs examples src
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@! grep -rlE '<(script|img|source)[^>]* src="?(https?:)?//|<link[^>]* rel="?(stylesheet|preload|preconnect)[^>]*(https?:)?//' \
	    build/site --include=*.html || { echo "make: these pages load something from elsewhere" >&2; exit 1; }

clean:
	rm -rf $(VENV) build dist src/finelu/kernels/*/binaries .numba_cache .pytest_cache .mypy_cache .ruff_cache .hypothesis src/finelu.egg-info
	find src tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +
