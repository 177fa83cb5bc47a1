# Every target sets up what it needs, from python3, pip, make and git alone.
#   make serve    run Trunkline on its embedded default        make test     the tests
#   make check    formatting, types, imports, budgets, docs    make bench    comparisons, stored; a soak
#   make fuzz     two minutes of fuzzing                        make docs     the manual, in site/
#   make test-outside   against programs that we did not write  make lock     new locks

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
FUZZ_SECONDS ?= 60

.PHONY: serve test test-outside check bench fuzz docs lock update clean

# $(call environment,directory,lock): a virtual environment with exactly what the lock names.
# The marker is touched last, so that an interrupted installation starts again.
define environment
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(2)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@
endef

$(VENV)/.test: requirements/test.txt pyproject.toml
	$(call environment,$(VENV),requirements/test.txt)

$(VENV)/.check: requirements/check.txt pyproject.toml | $(VENV)/.test
	$(call environment,$(VENV),requirements/check.txt)

.venv-bench/.ready: requirements/bench.txt pyproject.toml
	$(call environment,.venv-bench,requirements/bench.txt)

.venv-fuzz/.ready: requirements/fuzz.txt pyproject.toml
	$(call environment,.venv-fuzz,requirements/fuzz.txt)

.venv-outside/.ready: requirements/outside.txt pyproject.toml
	$(call environment,.venv-outside,requirements/outside.txt)

.venv-outside1/.ready: requirements/outside1.txt
	test -x .venv-outside1/bin/python || $(PYTHON) -m venv .venv-outside1
	.venv-outside1/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	touch $@

serve: $(VENV)/.test
	@$(BIN)/trunkline serve $(ARGS)

test: $(VENV)/.test
	$(BIN)/python -m pytest --cov --cov-report=term $(ARGS)

# npm packages come with their own lock; node and npm must be there, and it is an error if not.
test-outside: .venv-outside/.ready .venv-outside1/.ready
	cd outside && npm ci --silent --no-audit --no-fund
	.venv-outside/bin/python -m pytest outside -p no:cacheprovider $(ARGS)

check: $(VENV)/.check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/test_style.py tests/test_requirements.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs: $(VENV)/.check
	$(BIN)/mkdocs build --strict

bench: .venv-bench/.ready
	.venv-bench/bin/python -m bench $(ARGS)
	.venv-bench/bin/python -m bench.overhead
	.venv-bench/bin/python -m bench.soak

fuzz: .venv-fuzz/.ready
	.venv-fuzz/bin/python -m fuzz.codec -max_total_time=$(FUZZ_SECONDS) $(ARGS)
	.venv-fuzz/bin/python -m fuzz.framing -max_total_time=$(FUZZ_SECONDS) $(ARGS)

# Rewrite what is generated: the requirement map's tests, the message schema.
update: $(VENV)/.test
	$(BIN)/python -m pytest tests/test_requirements.py tests/test_conversations.py --update --no-cov
	$(BIN)/python -m pytest tests/jsonrpc/test_schema.py tests/config/test_schema.py --update --no-cov

lock:
	test -x .venv-lock/bin/uv || ($(PYTHON) -m venv .venv-lock && .venv-lock/bin/pip install --quiet uv)
	cd requirements && for name in runtime test check bench fuzz outside outside1; do \
		../.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
			--no-header --upgrade $$name.in -o $$name.txt || exit 1; \
	done

clean:
	rm -rf .venv .venv-* site .coverage .pytest_cache .ruff_cache .hypothesis dist
