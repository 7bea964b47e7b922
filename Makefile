# The verbs. Each does its own set-up, so that a fresh clone needs git, make and Python 3.11 and nothing else.
.DEFAULT_GOAL := help
SHELL := /bin/sh
BIN := .venv/bin
SEEDS ?= 300

# A machine with certificates of its own (a mirror, a closed network) has them here; uv's built-in ones do not know it.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt),)
export UV_SYSTEM_CERTS := 1
endif

.PHONY: help chart docs setup proto lock lint advisories format test test-quick sim bench bench-receive bench-instructions bench-tracing e2e-observability e2e-admin trace-viewer bench-metrics up demo conformance images e2e-clients e2e-kube loss-rounds failover-rounds many-topics fuzz attacks security security-table h2spec http2-scale audit-check bench-consistency clean bench-put bench-send bench-catchup bench-fairness mixed-load first-hour wheels strangers

help: ## list the verbs
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: ## make .venv from uv.lock, compile the protos
	@tools/bootstrap.sh dev

proto: setup ## refresh the stubs in build/proto
	@$(BIN)/python proto/build_hook.py

lock: ## renew uv.lock
	@tools/lock.sh

lint: setup ## ruff, mypy --strict, import-linter, buf, advisories
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@cd proto && ../$(BIN)/buf lint
	@$(BIN)/python tools/supply_chain.py

advisories: setup ## known weaknesses of the packages in uv.lock, from the advisories kept here
	@$(BIN)/python tools/supply_chain.py

format: setup ## format and fix what a tool can fix
	@$(BIN)/ruff check --fix -q . ; $(BIN)/ruff format -q . ; cd proto && ../$(BIN)/buf format -w

test: setup ## everything CI runs: linters, the documents' links, unit, contract, simulation, integration, chart; then as compiled
	@tools/bootstrap.sh networks
	@$(BIN)/python tools/run_tests.py

compiled: setup ## the busiest modules as C extensions, in build/compiled (gets a compiler if there is none): LEVEL=1, sooner, for tests
	@tools/bootstrap.sh compiler
	@$(BIN)/python tools/compile.py $(if $(LEVEL),--level $(LEVEL))

test-quick: setup ## unit and contract tests only
	@$(BIN)/python tools/run_tests.py --report test-quick unit contract

conformance: setup ## the client API's scenarios with raw stubs and official clients: build/conformance.json, a row for each
	@$(BIN)/python tools/official_clients.py
	@code=0; for folder in contract/client_api $(foreach client,python java go node rust,e2e/official_$(client)); do \
		$(BIN)/python tools/run_tests.py --report conformance-tests $$folder || code=1; done; \
		$(BIN)/python tools/conformance.py --results; exit $$code

chart: setup ## the chart: lint, schemas, rendered presets, refused values (gets helm and kubeconform if they are missing)
	@$(BIN)/python tools/run_tests.py --report chart chart

docs: ## the documents as a site with every link checked: build/site
	@tools/bootstrap.sh docs
	@build/docs-venv/bin/python tools/docs_site.py

images: ## the images, built and looked into: ONLY="broker consistency" TAG=0.1.0 BASE=name@sha256:... PLAIN=1, LOAD=1 onto the test cluster
	@tools/bootstrap.sh uv
	@python3 tools/images.py $(ONLY) $(if $(TAG),--tag $(TAG)) $(if $(BASE),--base $(BASE)) $(if $(PLAIN),--plain) $(if $(LOAD),--load)

wheels: setup ## wheels in build/wheels: a pure one, and a compiled one for each CPython of 3.11 to 3.13 that is in PATH
	@tools/bootstrap.sh compiler
	@$(BIN)/python tools/wheels.py

e2e-clients: setup $(if $(COMPILED),compiled) ## the conformance scenarios with the official Java, Go, Node and Python clients: COMPILED=1
	@$(BIN)/python tools/official_clients.py
	@$(BIN)/python tools/run_tests.py --report e2e-clients$(if $(COMPILED),-compiled) \
		$(if $(COMPILED),--compiled) \
		e2e/official_java e2e/official_go e2e/official_node e2e/official_python

e2e-kube: setup ## all presets and faults on a real Kubernetes of three nodes (root): ONLY="faults scaling", DOCS=1
	@tools/bootstrap.sh browser
	@$(BIN)/python tools/e2e_kube.py $(foreach part,$(ONLY),--only $(part)) $(if $(DOCS),--docs)

fuzz: setup compiled ## hostile bytes into the HTTP/2 front and our own decoders, guided by coverage: MINUTES=10, ONLY="send_request ..."
	@tools/bootstrap.sh fuzz
	@$(BIN)/python tools/fuzz.py --minutes $(or $(MINUTES),10) $(foreach target,$(ONLY),--only $(target))

attacks: setup ## HTTP/2 attacks against a real broker, many rounds, while an orderly client sends: ROUNDS=20
	@$(BIN)/python tools/attacks.py --rounds $(or $(ROUNDS),20)

strangers: setup compiled ## strangers on every port of a closed cluster, its modules compiled as in images, while a user sends: p99, nothing lost, nothing of theirs accepted: MINUTES=10
	@PYTHONPATH=$(CURDIR)/build/compiled $(BIN)/python tools/strangers.py --minutes $(or $(MINUTES),10)

security: setup ## who gets in: strangers, wrong certificates, every method as everybody, rotation under load; build/security.json
	@$(BIN)/python tools/security.py

security-table: setup ## the table of methods and callers, into docs/operations/security.md
	@$(BIN)/python tools/security.py --table

h2spec: setup ## h2spec against grpcio and against the HTTP/2 front, case by case (needs Go)
	@$(BIN)/python tools/h2spec.py

http2-scale: setup ## 10,000 streams, 2,000 idle connections and 4 MiB bodies on the HTTP/2 front
	@$(BIN)/python tools/http2_scale.py

sim: setup ## clusters on virtual time with faults: SEEDS=300, FAILOVER=1, FEW_FAULTS=1, or SEED=1234 to replay one
	@$(BIN)/python tools/sim.py $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(FAILOVER),--failover) $(if $(FEW_FAULTS),--few-faults) $(if $(PLANT),--plant $(PLANT))

bench: setup compiled ## side by side with RocketMQ: ROUNDS=3, ONLY=send,drain,..., QUICK=1, PLAIN=1
	@$(BIN)/python benchmarks/bench.py $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick) $(if $(PLAIN),--plain) $(if $(LOG_GB),--log-gb $(LOG_GB))

bench-receive: setup ## CPU of a receive and its acknowledgements, step by step, without sockets
	@$(BIN)/python benchmarks/receive_path.py

bench-catchup: setup ## a fresh slave copies a log and builds its ConsumeQueues: rate, CPU, recovery
	@$(BIN)/python benchmarks/ha_catchup.py

bench-send: setup ## CPU of a sync-replicated send, HTTP/2 bytes in and out, without sockets
	@$(BIN)/python benchmarks/send_path.py

bench-instructions: setup compiled ## instructions of a sync-replicated send by part, counted by callgrind: the same on a busy machine
	@tools/bootstrap.sh valgrind
	@$(BIN)/python benchmarks/send_instructions.py

bench-tracing: setup compiled ## CPU of a sync-replicated send with tracing off, at 1 % and of every message, beside code without it
	@$(BIN)/python benchmarks/tracing_overhead.py

e2e-observability: setup ## traces, metrics, alerts and dashboards of a live cluster with Prometheus and the OpenTelemetry Collector: PICTURES=1
	@$(BIN)/python tools/e2e_suite.py observability $(if $(PICTURES),--pictures)

e2e-admin: setup ## twenty tasks of a newcomer, each in the console (a real browser) and on the command line: PICTURES=1
	@tools/bootstrap.sh browser
	@$(BIN)/python tools/e2e_suite.py admin $(if $(PICTURES),--pictures)

bench-metrics: setup ## what a scrape of a broker with 10,000 topics costs
	@$(BIN)/python benchmarks/metrics_scrape.py

trace-viewer: setup ## Zipkin and an OpenTelemetry Collector for `tandemmq up --tracing --trace-target 127.0.0.1:4317`
	@$(BIN)/python tools/trace_viewer.py

bench-fairness: setup compiled ## latency of an orderly client alone, and beside one that sends as fast as it can
	@$(BIN)/python benchmarks/fairness.py

bench-put: setup ## CPU of one put, whole and step by step
	@$(BIN)/python benchmarks/put_path.py

failover-rounds: setup ## a group changes its master, real processes: nothing acknowledged may be lost: ROUNDS=50, ONLY="kill"
	@$(BIN)/python tools/failover_rounds.py --rounds $(or $(ROUNDS),50) $(if $(ONLY),--only "$(ONLY)")

mixed-load: setup ## all kinds of messages while masters are killed, nothing may be lost, early or doubled: MINUTES=60, KILL_S=120, LANGUAGES=raw, CHURN=6, SEED=1, SECURE=1
	@$(BIN)/python tools/mixed_load.py --minutes $(or $(MINUTES),60) --kill-s $(or $(KILL_S),120) \
		$(if $(LANGUAGES),--languages "$(LANGUAGES)") $(if $(CHURN),--churn $(CHURN)) $(if $(SEED),--seed $(SEED)) \
		$(if $(SECURE),--secure)

many-topics: setup ## start, answer and restart with 10,000 topics of 8 queues
	@$(BIN)/python benchmarks/many_topics.py

up: setup ## a cluster on this machine, until Ctrl-C: PRESET=2m-2s-async, DATA=folder; TRACING=1: every message traced, metrics, the trace page
	@$(BIN)/tandemmq up $(if $(PRESET),--preset $(PRESET)) $(if $(DATA),--data $(DATA)) $(if $(TRACING),--tracing)

demo: setup ## a cluster, 10,000 lines through the official client, a master killed on the way and left dead, the proof
	@$(BIN)/python tools/demo.py

first-hour: ## docs/first-hour.md typed into a fresh clone with an empty home: every promise of it is looked for
	@python3 tools/first_hour.py

loss-rounds: setup ## disks emptied, rolled back, damaged, swapped, members late or twice: what is acknowledged stays: ROUNDS=20, ONLY="sync: slave", PARALLEL=2
	@$(BIN)/python tools/loss_rounds.py --rounds $(or $(ROUNDS),20) $(if $(ONLY),--only "$(ONLY)") $(if $(PARALLEL),--parallel $(PARALLEL))

audit-check: setup ## damage of every kind planted in real replicas: the consistency job must name each, and nothing else: SEEDS=500, ONLY="flipped-body-bit ...", KEEP=1
	@$(BIN)/python tools/audit_check.py $(foreach damage,$(ONLY),--only $(damage)) $(if $(filter-out file,$(origin SEEDS)),--seeds $(SEEDS)) $(if $(KEEP),--keep)

bench-consistency: setup ## the consistency job beside md5sum, multiprocessing and a single reader on 20 GB: GIB=9.4
	@$(BIN)/python benchmarks/consistency_cost.py $(if $(GIB),--gib $(GIB))

clean: ## remove what was built
	rm -rf build .venv .tools .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
