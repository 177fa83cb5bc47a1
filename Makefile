# Every target installs what it needs; python3, pip, make and git must be there, for `test` curl and openssl.
#   make serve    run Trunkline with its default configuration   make test     the tests
#   make check    formatting, lint, types, imports, style, docs  make bench    comparisons, stored; a soak test
#   make fuzz     fuzz the parsers, a minute each              make docs     build the manual in site/
#   make requirements   print which tests show each requirement
#   make test-on PYTHON=python3.13   the tests on another Python, in a separate environment
#   make test-stores    the tests with stores that keep only bytes, and with stores that answer later
#   make test-outside   tests against real clients and servers   make lock     update the locks
#   make conformance    the official MCP suite, directly and through the gateway
#   make bench-finding  recall of the tool search over the tools of real servers
#   make bench-finding-public   the same over a public set that nothing was tuned on, from PyPI
#   make bench-layers   the cost of policy, audit, metrics and traces
#   make release        build, check and tag a release; nothing is uploaded
#   make picture        record the picture of a terminal on the start page
#   make bench-hop      one hop through Trunkline, nginx and other gateways

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
FUZZ_SECONDS ?= 60

# With this variable, every program that a test starts would compile Trunkline again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve test test-on test-pure test-doing test-stores test-outside conformance check bench bench-finding bench-finding-public bench-hop bench-layers requirements fuzz docs lock update picture release clean

# $(call environment,directory,lock): a virtual environment with exactly what the lock names.
# --no-deps, because a lock names every package: pip would resolve `coverage[toml]` again and stop at
# a release that is newer than the lock. The marker is written last, so an interrupted installation
# starts again.
define environment
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $(2)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . ./packaging/trunkline
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

# Environments without Trunkline: other programs with their own dependencies.
.venv-outside1/.ready .venv-servers/.ready .venv-frameworks/.ready .venv-frameworks1/.ready \
.venv-hop1/.ready .venv-hop-contextforge/.ready .venv-hop-litellm/.ready .venv-release/.ready: .venv-%/.ready: requirements/%.txt
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	touch $@

serve: $(VENV)/.test
	@$(BIN)/trunkline serve $(or $(ARGS),--http 127.0.0.1:8080)

# Two parts: the pure packages, which need 100 % branch coverage, and the rest. `check` runs the
# style tests.
PURE := tests/jsonrpc tests/mcp tests/routing tests/search
STYLE := tests/test_style.py tests/test_prose.py tests/test_requirements.py tests/test_site.py
# The programs that these tests start have stores of their own.
PROGRAMS := tests/guides
PYTEST = $(BIN)/python -m pytest -p no:cacheprovider

test: $(VENV)/.test
	$(MAKE) --no-print-directory test-pure
	$(MAKE) --no-print-directory test-doing

test-on:
	$(MAKE) --no-print-directory test VENV=.venv-$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')

test-pure: $(VENV)/.test
	$(PYTEST) -n 2 --cov --cov-report=term $(ARGS) $(PURE)

# Three workers on two cores: these tests wait for programs that they start.
test-doing: $(VENV)/.test
	$(PYTEST) -n 3 --no-cov $(ARGS) tests $(PURE:%=--ignore=%) $(STYLE:%=--ignore=%)

test-stores: $(VENV)/.test
	$(PYTEST) -n 3 --no-cov --stores=bytes $(ARGS) tests $(STYLE:%=--ignore=%) $(PROGRAMS:%=--ignore=%)
	$(PYTEST) -n 3 --no-cov --stores=later $(ARGS) tests $(STYLE:%=--ignore=%) $(PROGRAMS:%=--ignore=%)

# npm packages have their own lock; without node and npm this fails. The lock contains a newer Node,
# which the Inspector needs.
outside/node_modules/.package-lock.json: outside/package-lock.json
	cd outside && npm ci --loglevel=error --no-audit --no-fund
	touch $@

# Use the PostgreSQL of the system, or unpack one here. The system is not changed.
outside/postgresql/.ready:
	mkdir -p outside/postgresql
	test -n "$$(ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null)" || (cd outside/postgresql \
		&& apt-get download $$(apt-cache depends postgresql | sed -n 's/.*Depends: \(postgresql-[0-9]*\)$$/\1/p') libpq5 libllvm14 libxml2 \
		&& for package in *.deb; do dpkg -x $$package . || exit 1; done)
	touch $@

# The same for bubblewrap, which needs libcap and libselinux; every Debian has those two.
outside/bubblewrap/.ready:
	mkdir -p outside/bubblewrap
	command -v bwrap || (cd outside/bubblewrap && apt-get download bubblewrap && dpkg -x bubblewrap_*.deb .)
	touch $@

# The same for `systemd-analyze`, and for the numbers of system calls. Nothing of systemd is started.
outside/systemd/.ready:
	mkdir -p outside/systemd
	command -v systemd-analyze || (cd outside/systemd && apt-get download systemd libsystemd-shared libapparmor1 libip4tc2 libkmod2 libseccomp2 \
		&& for package in *.deb; do dpkg -x $$package . || exit 1; done)
	test -e /usr/include/x86_64-linux-gnu/asm/unistd_64.h || (cd outside/systemd && apt-get download linux-libc-dev && dpkg -x linux-libc-dev_*.deb .)
	touch $@

# The same for the proxies; `outside/proxy.py` looks for those of the system first.
outside/proxies/.ready:
	mkdir -p outside/proxies
	(command -v nginx && command -v haproxy && command -v caddy) || (cd outside/proxies \
		&& apt-get download nginx haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1 caddy \
		&& for package in *.deb; do dpkg -x $$package . || exit 1; done)
	touch $@

# The same for `promtool`, which checks the files for Prometheus.
outside/prometheus/.ready:
	mkdir -p outside/prometheus
	command -v promtool || (cd outside/prometheus && apt-get download prometheus && dpkg -x prometheus_*.deb .)
	touch $@

OUTSIDE := .venv-outside/.ready .venv-outside1/.ready .venv-servers/.ready .venv-frameworks/.ready \
	.venv-frameworks1/.ready outside/node_modules/.package-lock.json outside/postgresql/.ready outside/bubblewrap/.ready outside/systemd/.ready outside/proxies/.ready \
	outside/prometheus/.ready .venv-release/.ready

# Two workers on two cores; each file stays on one worker, because its tests share programs.
test-outside:
	$(MAKE) --no-print-directory -j2 $(OUTSIDE)
	.venv-outside/bin/python -m pytest outside -p no:cacheprovider -n 2 --dist loadfile $(ARGS)

conformance/node_modules/.package-lock.json: conformance/package-lock.json
	cd conformance && npm ci --loglevel=error --no-audit --no-fund
	touch $@

# The lock contains a newer Node, which the suite needs.
conformance: .venv-outside/.ready conformance/node_modules/.package-lock.json
	.venv-outside/bin/python -m conformance $(ARGS)

check: $(VENV)/.check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/zensical build --strict --clean
	$(BIN)/python -m pytest -p no:cacheprovider -n 2 --no-cov $(STYLE)

docs: $(VENV)/.check
	$(BIN)/zensical build --strict --clean
	$(BIN)/python -m pytest -p no:cacheprovider --no-cov tests/test_site.py

bench: .venv-bench/.ready
	.venv-bench/bin/python -m bench $(ARGS)
	.venv-bench/bin/python -m bench.page
	.venv-bench/bin/python -m bench.sources
	.venv-bench/bin/python -m bench.overhead
	.venv-bench/bin/python -m bench.soak

# Print which tests show each requirement.
requirements: $(VENV)/.test
	@$(BIN)/python -P tests/test_requirements.py

bench-finding: $(VENV)/.test
	$(BIN)/python -m bench.finding $(ARGS)
	$(BIN)/python -m bench.page

# A public set of functions and questions. The wheel is read, never installed.
BFCL := bench/finding/public/bfcl_eval-2026.3.23-py3-none-any.whl

$(BFCL): $(VENV)/.test
	$(BIN)/python -m pip download --quiet --no-deps --dest $(@D) bfcl-eval==2026.3.23

bench-finding-public: $(BFCL)
	$(BIN)/python -m bench.finding.public_set $(BFCL)

.venv-hop/.ready: requirements/hop.txt pyproject.toml
	$(call environment,.venv-hop,requirements/hop.txt)

bench/hop/node_modules/.ready: bench/hop/package-lock.json
	cd bench/hop && npm ci --silent --no-audit --no-fund
	touch $@

# Use the nginx of the system, or unpack one here. The system is not changed.
.venv-hop/.nginx: .venv-hop/.ready
	command -v nginx || (cd .venv-hop && apt-get download nginx && dpkg -x nginx_*.deb nginx) \
		|| echo "nginx is not available here; the table will not have it"
	touch $@

HEAVY = $(if $(filter --all,$(ARGS)),.venv-hop-contextforge/.ready .venv-hop-litellm/.ready)

bench-layers: $(VENV)/.test
	$(BIN)/python -m bench.layers $(ARGS)
	$(BIN)/python -m bench.page

bench-hop: .venv-hop/.nginx .venv-hop1/.ready bench/hop/node_modules/.ready $(HEAVY)
	.venv-hop/bin/python -m bench.hop $(ARGS)
	.venv-hop/bin/python -m bench.page

FUZZ_TARGETS := codec framing sse registry http_reader headers policy config

fuzz: .venv-fuzz/.ready
	for target in $(FUZZ_TARGETS); do \
		.venv-fuzz/bin/python -m fuzz.$$target -max_total_time=$(FUZZ_SECONDS) $(ARGS) || exit 1; \
	done

# Rewrite the generated files: golden conversations and schemas.
update: $(VENV)/.test
	$(BIN)/python -m bench.page
	$(BIN)/python -m pytest tests/test_conversations.py --update --no-cov
	$(BIN)/python -m pytest tests/test_reference.py tests/jsonrpc/test_schema.py tests/config/test_schema.py tests/sources/test_model.py --update --no-cov

# Record the picture of a terminal in docs/ anew, with a real server.
picture: .venv-outside/.ready
	.venv-outside/bin/python -m outside.picture

# Build, check and tag a release; ARGS=--no-tag leaves the tag out. Nothing is uploaded.
release: .venv-release/.ready
	.venv-release/bin/python packaging/release.py $(ARGS)

lock:
	test -x .venv-lock/bin/uv || ($(PYTHON) -m venv .venv-lock && .venv-lock/bin/pip install --quiet uv)
	cd requirements && for name in runtime test check bench fuzz outside outside1 servers frameworks frameworks1 hop hop1 hop-contextforge hop-litellm release container container-build; do \
		../.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
			--no-header --upgrade $$name.in -o $$name.txt || exit 1; \
	done

clean:
	rm -rf .venv .venv-* site .cache .coverage .pytest_cache .ruff_cache .hypothesis dist
