# Every target sets up what it needs, from python3, pip, make and git alone.
#   make serve    run Trunkline on its embedded default        make test     the tests
#   make check    formatting, types, imports, budgets, docs    make bench    comparisons, stored; a soak
#   make fuzz     four minutes of fuzzing                        make docs     the manual, in site/
#   make test-on PYTHON=python3.13   the tests on another Python, in an environment of its own
#   make test-outside   against programs that we did not write  make lock     new locks
#   make conformance    the official MCP suite, directly and through the gateway
#   make bench-finding  how well tools are found, over those of real servers
#   make bench-layers   what governing and recording cost, with more and more switched on
#   make bench-hop      one hop through Trunkline, nginx and every other gateway we can install

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
FUZZ_SECONDS ?= 60

# Where this is set, every program that a test starts would compile all of Trunkline once more.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve test test-on test-pure test-doing test-outside conformance check bench bench-finding bench-hop bench-layers fuzz docs lock update clean

# $(call environment,directory,lock): a virtual environment with exactly what the lock names.
# --no-deps, since a lock names all of it: pip would look up what `coverage[toml]` needs by itself,
# and stop at the first release that is newer than the lock.
# The marker is touched last, so that an interrupted installation starts again.
define environment
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $(2)
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
	.venv-outside1/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	touch $@

serve: $(VENV)/.test
	@$(BIN)/trunkline serve $(or $(ARGS),--http 127.0.0.1:8080)

# Two halves, each on two cores: the pure packages, whose every branch must be covered, and the rest.
# How the code is written is looked at by `check`.
PURE := tests/jsonrpc tests/mcp tests/routing
STYLE := tests/test_style.py tests/test_requirements.py
PYTEST = $(BIN)/python -m pytest -p no:cacheprovider

test: $(VENV)/.test
	$(MAKE) --no-print-directory test-pure
	$(MAKE) --no-print-directory test-doing

test-on:
	$(MAKE) --no-print-directory test VENV=.venv-$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')

test-pure: $(VENV)/.test
	$(PYTEST) -n 2 --cov --cov-report=term $(ARGS) $(PURE)

# Three at a time on two cores: these wait for programs that they start.
test-doing: $(VENV)/.test
	$(PYTEST) -n 3 --no-cov $(ARGS) tests $(PURE:%=--ignore=%) $(STYLE:%=--ignore=%)

# npm packages come with their own lock; node and npm must be there, and it is an error if not.
# It brings a Node of its own as well: the Inspector wants a newer one than most machines have.
outside/node_modules/.package-lock.json: outside/package-lock.json
	cd outside && npm ci --loglevel=error --no-audit --no-fund
	touch $@

# PostgreSQL is that of the system, or is unpacked where we need it: nothing of the system's is touched.
outside/postgresql/.ready:
	mkdir -p outside/postgresql
	test -n "$$(ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null)" || (cd outside/postgresql \
		&& apt-get download $$(apt-cache depends postgresql | sed -n 's/.*Depends: \(postgresql-[0-9]*\)$$/\1/p') libpq5 libllvm14 libxml2 \
		&& for package in *.deb; do dpkg -x $$package . || exit 1; done)
	touch $@

test-outside: .venv-outside/.ready .venv-outside1/.ready outside/node_modules/.package-lock.json outside/postgresql/.ready
	.venv-outside/bin/python -m pytest outside -p no:cacheprovider $(ARGS)

conformance/node_modules/.package-lock.json: conformance/package-lock.json
	cd conformance && npm ci --loglevel=error --no-audit --no-fund
	touch $@

# It brings a Node of its own: the suite wants a newer one than most machines have.
conformance: .venv-outside/.ready conformance/node_modules/.package-lock.json
	.venv-outside/bin/python -m conformance $(ARGS)

check: $(VENV)/.check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -p no:cacheprovider -n 2 --no-cov $(STYLE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs: $(VENV)/.check
	$(BIN)/mkdocs build --strict

bench: .venv-bench/.ready
	.venv-bench/bin/python -m bench $(ARGS)
	.venv-bench/bin/python -m bench.sources
	.venv-bench/bin/python -m bench.overhead
	.venv-bench/bin/python -m bench.soak

bench-finding: $(VENV)/.test
	$(BIN)/python -m bench.finding $(ARGS)

.venv-hop/.ready: requirements/hop.txt pyproject.toml
	$(call environment,.venv-hop,requirements/hop.txt)

.venv-hop1/.ready .venv-hop-contextforge/.ready .venv-hop-litellm/.ready: .venv-%/.ready: requirements/%.txt
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	touch $@

bench/hop/node_modules/.ready: bench/hop/package-lock.json
	cd bench/hop && npm ci --silent --no-audit --no-fund
	touch $@

# nginx is unpacked where we need it, not installed: nothing of the system's is touched.
.venv-hop/.nginx: .venv-hop/.ready
	command -v nginx || (cd .venv-hop && apt-get download nginx && dpkg -x nginx_*.deb nginx) \
		|| echo "nginx cannot be had here; it will be missing in the table"
	touch $@

HEAVY = $(if $(filter --all,$(ARGS)),.venv-hop-contextforge/.ready .venv-hop-litellm/.ready)

bench-layers: $(VENV)/.test
	$(BIN)/python -m bench.layers $(ARGS)

bench-hop: .venv-hop/.nginx .venv-hop1/.ready bench/hop/node_modules/.ready $(HEAVY)
	.venv-hop/bin/python -m bench.hop $(ARGS)

fuzz: .venv-fuzz/.ready
	.venv-fuzz/bin/python -m fuzz.codec -max_total_time=$(FUZZ_SECONDS) $(ARGS)
	.venv-fuzz/bin/python -m fuzz.framing -max_total_time=$(FUZZ_SECONDS) $(ARGS)
	.venv-fuzz/bin/python -m fuzz.sse -max_total_time=$(FUZZ_SECONDS) $(ARGS)
	.venv-fuzz/bin/python -m fuzz.registry -max_total_time=$(FUZZ_SECONDS) $(ARGS)

# Rewrite what is generated: the requirement map's tests, the message schema.
update: $(VENV)/.test
	$(BIN)/python -m pytest tests/test_requirements.py tests/test_conversations.py --update --no-cov
	$(BIN)/python -m pytest tests/jsonrpc/test_schema.py tests/config/test_schema.py tests/sources/test_schema.py --update --no-cov

lock:
	test -x .venv-lock/bin/uv || ($(PYTHON) -m venv .venv-lock && .venv-lock/bin/pip install --quiet uv)
	cd requirements && for name in runtime test check bench fuzz outside outside1 hop hop1 hop-contextforge hop-litellm; do \
		../.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
			--no-header --upgrade $$name.in -o $$name.txt || exit 1; \
	done

clean:
	rm -rf .venv .venv-* site .coverage .pytest_cache .ruff_cache .hypothesis dist
