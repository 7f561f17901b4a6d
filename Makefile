# Two targets do everything on a fresh machine: `make matrix` and `make test`. Each makes the environment it needs.

PYTHON  ?= python3.11
# another version than the pinned one, with an environment of its own beside .venv
TORCH   ?=
VENV    := .venv$(addprefix -torch-,$(TORCH))
NEEDS   := $(if $(TORCH),requirements/torch-$(TORCH).txt,requirements.txt)
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
TARGET  ?= runtime
TIER    ?= default
DEVICE  ?= cpu
# the module that registers a device of another package, if matrix.yaml does not name it
BACKEND ?=
WORKERS ?= 2
# each worker begins with a half of its own: neighbours share samples, references and fixtures
PYTEST  := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q
ARGS    ?=
# another installer: INSTALL="uv pip install --python .venv"
INSTALL ?= $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
MODULES := $(if $(filter all,$(TIER)),.cache/all,generated_tests)
LAST    := .cache/matrix/last

export OMP_NUM_THREADS ?= 1
# empty: the many processes that tests start load compiled modules
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help generate matrix test check bench native lint types torch-facts house docs site release audit clean .native .smoke

help:  ## this text
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12
	@echo
	@echo 'Variables: TARGET=runtime|torch|…  TIER=smoke|default|full|all  DEVICE=cpu|cuda|mydevice|…  BACKEND=my_backend  WORKERS=2  TORCH=2.14.1|…  ARGS="-k torch.sin"'

requirements/torch-%.txt:
	@echo 'no requirements of torch $*, only of' $(patsubst requirements/torch-%.txt,%,$(wildcard requirements/torch-*.txt)) >&2; exit 2

$(READY): $(NEEDS) requirements/others.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing the environment (about a minute)'
	@$(INSTALL) -r $(NEEDS)
	@# pip would compile with one core; packages may bring files that are no Python of this version
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests/' $(VENV)/lib || true
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

generate: $(READY)  ## matrix.yaml -> generated_tests/
	@$(BIN)/python -m gen generate $(if $(filter all,$(TIER)),--every --out $(MODULES))

matrix: generate  ## generate, run and report the matrix (TARGET, TIER, DEVICE)
	@rm -f $(LAST); status=0; $(PYTEST) $(MODULES) --target $(TARGET) --tier $(TIER) --device $(DEVICE) $(addprefix --backend=,$(BACKEND)) $(ARGS) || status=$$?; \
	test ! -e $(LAST) || $(BIN)/python -m gen report --last --out report/index.html; exit $$status

test: $(READY)  ## the project's own tests, the linters and the check that generated_tests/ is current
	@# each of these takes one processor, and together they take two
	@# torch's types differ between its versions: those of the pinned one are checked
	@$(MAKE) --no-print-directory --jobs=2 $(if $(TORCH),,types) .native check lint .smoke
	@$(PYTEST) tests $(ARGS)

check: $(READY)  ## is generated_tests/ what matrix.yaml says? shows the difference
	@$(BIN)/python -m gen check

.smoke: $(READY)
	@$(BIN)/python -m pytest -q generated_tests --target $(TARGET) --tier smoke

.native: $(READY)
	@# without a compiler its tests are skipped, with that reason
	@$(BIN)/python -m runtime native || true

native: $(READY)  ## compile what compares the guards of jit in C++ (docs/jit.md); ARGS="--force"
	@$(BIN)/python -m runtime native $(ARGS)

bench: $(READY)  ## the runtime beside torch.func and torch's engine: ratios of medians, and memory (ARGS="--help")
	@$(BIN)/python -m runtime native || true
	@$(BIN)/python -m benchmarks $(ARGS)

lint: $(READY)  ## ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .

types: $(READY)  ## mypy
	@$(BIN)/mypy

torch-facts: $(READY)  ## what the installed torch does otherwise than is written down (TORCH, ARGS="--write")
	@$(BIN)/python -m gen facts $(ARGS)

house: $(READY)  ## how the code of each folder reads, in figures (ARGS="--worst 20", "--help")
	@$(BIN)/python -m tools.house $(ARGS)

audit: $(READY)  ## plant faults in the target and count those that the matrix catches
	@$(BIN)/python -m gen audit --target $(TARGET) $(ARGS)

docs: $(READY)  ## write the pages of docs/ that come from code: the JSON Schemas, the tables of the records, the findings, the bad inputs, what per-sample gradients support, the shared state and the glossary
	@$(BIN)/python -m gen schema
	@$(BIN)/python -m runtime coverage --out docs/coverage.md
	@$(BIN)/python -m runtime records --out docs/records.md
	@$(BIN)/python -m tests.reports page --out docs/findings.md
	@$(BIN)/python -m tests.reports drawn --out docs/drawn_findings.md
	@$(BIN)/python -m tests.bad_inputs
	@$(BIN)/python -m tests.per_sample_support
	@$(BIN)/python -m tools.state --out docs/state.md
	@$(BIN)/python -m tools.glossary --out docs/glossary.md

site: $(READY)  ## docs/ and the API reference as HTML pages, in site/
	@$(INSTALL) --no-build-isolation -e '.[docs]'
	@$(BIN)/python -m sphinx -W -q -b html docs site
	@echo site/index.html

release: $(READY)  ## build the wheel and the source distribution, and try them in a clean environment (ARGS="--shared")
	@$(INSTALL) --no-build-isolation -e '.[release]'
	@$(BIN)/python -m tools.release.trial $(ARGS)

clean:  ## remove the environment and every cache
	rm -rf $(VENV) .tox .cache .pytest_cache .mypy_cache .ruff_cache build dist report site *.egg-info
