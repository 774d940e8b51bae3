# Every target does one plain thing; the servers come from scripts/servers.

CARGO ?= cargo
ARGS ?=
MINUTES ?= 30
SEEDS ?= 100000
# PostgreSQL/NATS
VERSIONS ?= 14/2.11 16/2.12 17/2.15 18/2.15

.DEFAULT_GOAL := help
.PHONY: help demo chaos soak test long simulate stress matrix nightly bench bench-inbox fuzz lint \
	book packages-check servers servers-all clean-servers

help: ## list the targets
	@sed -En 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

# As the tests are built, which use what it builds: a release takes much longer.
demo: servers ## run relay and inbox on throw-away servers and watch them; ARGS="--for 20s --rate 500"
	$(CARGO) run --bin tailpost -- demo $(ARGS)

chaos: servers ## break everything by name, under load, and count; ARGS="--seed 7"
	$(CARGO) run --release -p tailpost --features jemalloc -- chaos all $(ARGS)

soak: servers ## break everything at random for MINUTES; ARGS="--seed 7" repeats one
	$(CARGO) run --release -p tailpost --features jemalloc -- chaos soak --for $(MINUTES)m $(ARGS)

test: servers-all ## run the tests on real servers; ARGS="part_of_a_name"
	$(CARGO) build --workspace --bin tailpost
	@if $(CARGO) nextest --version >/dev/null 2>&1; then set -x; \
		$(CARGO) nextest run --workspace $(ARGS); \
	else set -x; \
		$(CARGO) test --workspace --lib --bins --tests $(ARGS); \
	fi
	$(CARGO) test --workspace --doc

long: servers-all ## run the tests that `make test` leaves out because they take longest
	$(CARGO) build --workspace --bin tailpost
	EXAMPLES=25 $(CARGO) nextest run --workspace --ignore-default-filter \
		-E 'not default()' $(ARGS)

simulate: ## play SEEDS schedules of each simulation of the relay and the inbox
	@echo "$(SEEDS) schedules of each simulation"
	SEEDS=$(SEEDS) CARGO_PROFILE_RELEASE_LTO=off \
		$(CARGO) test --release --no-fail-fast -p tailpost-relay -p tailpost-inbox --lib -- \
		simulation:: engine::outages:: $(ARGS)

# Row filters, hence shards, and lists of columns came with PostgreSQL 15.
BEFORE_NATS_2_14 = $(shell sed -n 's/^[a-z].*/test(&)/p' tests/before_nats_2.14 | paste -sd+)
SINCE_POSTGRESQL_15 = test(shards) + test(relays_delete_by_themselves) \
	+ test(columns_that_the_publication)

matrix: servers-all ## run those of `make test` with servers on every supported version; VERSIONS="14/2.11"
	$(CARGO) build --workspace --bin tailpost
	@servers=$$(realpath $${CARGO_TARGET_DIR:-target}/servers); failed=0; \
	for pair in $(VERSIONS); do (set -x; scripts/servers --postgres $${pair%/*} && \
		scripts/servers --nats $${pair#*/} && \
		export TAILPOST_PG_BIN=$$servers/postgresql-$${pair%/*}/bin && \
		export TAILPOST_NATS_SERVER=$$(echo $$servers/nats-$${pair#*/}.*/nats-server) && \
		case $$pair in */2.1[0-3]) without='$(BEFORE_NATS_2_14)' ;; *) without='none()' ;; esac && \
		case $$pair in 14/*) without="$$without + $(SINCE_POSTGRESQL_15)" ;; esac && \
		$(CARGO) nextest run --workspace --no-fail-fast \
			-E "package(tailpost-tests) - ($$without)" $(ARGS)) \
		|| failed=1; done; \
	exit $$failed

nightly: ## what takes hours: long, matrix, stress, simulate, packages-check, the soak for MINUTES
	$(MAKE) --keep-going --jobs=1 packages-check long matrix stress simulate soak

bench: servers ## measure the relay beside its limits; ARGS="--suite" for all of it
	$(CARGO) build --release -p tailpost --features jemalloc
	$(CARGO) run --release -p tailpost-benches --bin end_to_end -- $(ARGS)

bench-inbox: servers ## measure the inbox beside its limits
	$(CARGO) run --release -p tailpost-benches --features jemalloc --bin inbox_bench -- $(ARGS)

fuzz: ## throw anything at the two parsers of network bytes, a minute each
	@for target in decoder answer; do (set -x; mkdir -p target/fuzz/corpus/$$target && cd fuzz && \
		$(CARGO) run --release --bin $$target -- ../target/fuzz/corpus/$$target seeds/$$target \
			-max_total_time=60 $(ARGS)) || exit 1; done

# What raced once, beside a busy machine. NEXTEST_FILTER names others.
NEXTEST_FILTER ?= test(however_many_marks) + test(marks_that_are_late) \
	+ test(a_second_connection_that_breaks) + test(a_cluster_outlives) + test(set_ups_may_begin)
TIMES ?= 20

stress: servers-all ## run the tests that raced once TIMES times beside two busy loops, nightly
	$(CARGO) build --workspace --bin tailpost
	$(CARGO) nextest run --workspace --no-run
	TAKEOVERS=100 $(CARGO) nextest run --workspace --ignore-default-filter \
		-E 'test(takeovers_one_after)'
	SILENCE=all $(CARGO) nextest run --workspace --ignore-default-filter -E 'test(silence::)'
	@busy=; for _ in 1 2; do (while :; do :; done) & busy="$$busy $$!"; done; \
		trap 'kill $$busy' EXIT; \
		$(CARGO) nextest run --workspace --ignore-default-filter --stress-count $(TIMES) \
			-E '$(NEXTEST_FILTER)' $(ARGS)

lint: ## check format, lints, documentation and dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet
	@if $(CARGO) deny --version >/dev/null 2>&1; then set -x; \
		$(CARGO) deny --offline check -A unmatched-skip -A unnecessary-skip bans licenses sources; \
	else echo 'lint: no cargo-deny (cargo install --locked cargo-deny): licences are not checked' >&2; fi
	@if $(CARGO) machete --version >/dev/null 2>&1; then (set -x; $(CARGO) machete); \
	else echo 'lint: no cargo-machete: unused dependencies are not looked for' >&2; fi

packages-check: servers-all ## check chart, image and units with their tools; run compose.yaml and the units by hand
	$(CARGO) build --workspace --bin tailpost
	# What the image builds, with no feature of a library that another package asks for.
	$(CARGO) check --package tailpost --no-default-features
	$(CARGO) clippy --workspace --no-default-features --all-targets -- -D warnings
	scripts/check-packages
	tests/compose_by_hand
	@if [ $$(id -u) = 0 ]; then tests/systemd_by_hand; else echo 'systemd_by_hand: needs root: not run' >&2; fi

book: ## build the book of docs/ into book/
	@scripts/servers --mdbook
	$${CARGO_TARGET_DIR:-target}/servers/mdbook/mdbook build

servers: ## make sure that PostgreSQL and nats-server are there
	@scripts/servers

servers-all: ## and what some tests want: other versions, and Prometheus
	@scripts/servers --all

clean-servers: ## remove fetched servers and prepared clusters
	rm -rf $${CARGO_TARGET_DIR:-target}/servers
