# The entry point. `make` lists all targets.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.NOTPARALLEL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

ifeq ($(filter oneshell,$(.FEATURES)),)
$(error this Makefile needs GNU make 3.82 or newer)
endif

# ---- settings: `make VARIABLE=value`, or the environment ----

# Build results live outside the clone: clones share them, and `git clean` does not remove them.
override TAPESTRY_CACHE := $(or $(TAPESTRY_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tapestry)
override CARGO_TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(TAPESTRY_CACHE)/target)
# Gigabytes. Above this `make test` empties cargo's folder; a fresh debug build takes about 2.
CACHE_LIMIT ?= 15
# End-to-end tests that run at the same time: more starve the control planes, and leases expire.
E2E_THREADS ?= 2
# Part of the name of the end-to-end tests to run; empty: all.
E2E ?=
# `make demo DEMO=check` checks what it shows, and exits.
DEMO ?=
# Arguments of the benchmark.
BENCH ?=
SOAK_BENCH ?= --pods 5000
# 20 rounds of 1 000 pods, unless it says --rounds or --pods.
SOAK_CHURN ?= --dependents own
# 1 000 nodes and 10 000 pods, unless it says --nodes or --pods.
SOAK_SCALE ?=
SOAK_SCHEDULES ?= 200000
# Seconds of storms between syncer and clusters, in `make test` and in `make soak`.
CHAOS ?= 180
SOAK_CHAOS ?= 1800

ifeq ($(filter /%,$(firstword $(TAPESTRY_CACHE))),)
$(error TAPESTRY_CACHE must be an absolute path, not '$(TAPESTRY_CACHE)')
endif
export TAPESTRY_CACHE CARGO_TARGET_DIR

# ---- variables ----

# Tests that need no cluster; every other file in crates/*/tests runs on real control planes.
in_memory := objects world
# Tests on real nodes: they run within testbed/in-network, as root.
on_nodes := kubelet
# A test is a file crates/*/tests/NAME.rs or a folder crates/*/tests/NAME/main.rs.
tests := $(basename $(notdir $(wildcard crates/*/tests/*.rs))) $(notdir $(patsubst %/main.rs,%,$(wildcard crates/*/tests/*/main.rs)))
unit_tests := $(addprefix --test ,$(filter $(in_memory),$(tests)))
cluster_tests := $(addprefix --test ,$(filter-out $(in_memory) $(on_nodes),$(tests)))
node_tests := $(addprefix --test ,$(filter $(on_nodes),$(tests)))

debug := $(CARGO_TARGET_DIR)/debug
release := $(CARGO_TARGET_DIR)/release
times := $(CARGO_TARGET_DIR)/e2e-times.txt
e2e_log := $(CARGO_TARGET_DIR)/e2e.log
# Names the clone that built there last.
clone := $(CARGO_TARGET_DIR)/clone.txt

bold := $(if $(MAKE_TERMOUT),$(shell printf '\033[1m'))
plain := $(if $(MAKE_TERMOUT),$(shell printf '\033[0m'))
heading = printf '\n$(bold)== %s$(plain)\n' "$(1)"

# Called alone, a target first builds what it needs; `make test` runs all targets in order with WALK=1.
alone = $(if $(WALK),,$(1))

# ---- targets for users ----

.PHONY: help
help: ## list all targets
	@echo 'Tapestry: make TARGET'
	echo
	sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1|\2/p' Makefile | while IFS='|' read -r name text; do printf '%-14s %s\n' "$$name" "$$text"; done
	echo
	echo 'Caches: $(TAPESTRY_CACHE) (set TAPESTRY_CACHE to move them)'

.PHONY: build
build: $(call alone,need-rust) ## everything, with debug information: tapestry, testbed, tests
	@$(call heading,build)
	# Always --workspace, never --package: cargo then picks one set of features, and no later step compiles a crate again.
	cargo build --workspace --all-targets
	echo 'built $(debug)/tapestry'

.PHONY: demo
demo: $(call alone,demo-parts) ## lend a cluster on this machine to another one, and watch (DEMO=check: assert and end)
	@$(call heading,demo)
	# The debug build on purpose: a release build takes minutes more.
	# In a network of its own it can have a real node beside the simulated ones.
	network=
	if testbed/in-network --can 2>/dev/null && [ -e "$$(testbed/build-node --where)/complete" ]; then network=testbed/in-network; fi
	$$network '$(debug)/testbed' demo --tapestry '$(debug)/tapestry' $(if $(filter check,$(DEMO)),--check)

.PHONY: test
checks := prune fmt clippy build generated test-unit docs testbed test-e2e
test: ## all that CI checks, fastest first
	@$(MAKE) --keep-going need-rust need-go
	summary= nodes=
	if lack=$$(testbed/in-network --can 2>&1); then nodes='testbed-node test-kubelet'; fi
	for check in $(checks) $$nodes demo-check; do
	  start=$$SECONDS
	  $(MAKE) $$check WALK=1 || { $(call heading,FAILED after $${SECONDS} s: make $$check); exit 1; }
	  summary+=$$(printf '%6d s  %s' $$((SECONDS - start)) $$check)$$'\n'
	done
	if [ -s '$(times)' ]; then
	  $(call heading,the ten slowest end-to-end tests)
	  LC_ALL=C sort -rn '$(times)' | sed -n 1,10p | while read -r seconds name; do printf '%6s s  %s\n' "$$seconds" "$$name"; done
	fi
	$(call heading,all checks passed in $$SECONDS s)
	printf '%s' "$$summary"
	[ -n "$$nodes" ] || echo "left out: the tests on real nodes ($$lack); run them as root on Linux: make test-kubelet"

.PHONY: test-unit
test-unit: $(call alone,need-rust) ## unit and property tests and World, no cluster: seconds
	@$(call heading,unit tests)
	# The filter removes crates without tests.
	cargo test --workspace --lib --bins $(unit_tests) --quiet | sed '/^$$/d; /^running 0 tests$$/d; /^test result: ok\. 0 passed/d'

.PHONY: test-e2e
test-e2e: $(call alone,build testbed) ## tests on real control planes (E2E=part of a name: only those)
	@$(call heading,tests on real control planes)
	# Compile nothing during this run: a control plane without CPU loses its leases, and tests fail for no reason of their own.
	rm -f '$(times)'
	TAPESTRY_CHAOS_SECONDS=$(CHAOS) cargo test --workspace $(cluster_tests) --no-fail-fast -- --test-threads=$(E2E_THREADS) $(E2E) | tee '$(e2e_log)' || {
	  $(call heading,failures (full log: $(e2e_log)))
	  grep -aE -A4 '^(---- |Error: |thread .* panicked)' '$(e2e_log)' | grep -avE '(DEBUG|INFO|WARN) tapestry' || true
	  exit 1
	}

.PHONY: test-kubelet
test-kubelet: $(call alone,build testbed testbed-node) ## tests in real containers: kubelet, containerd, runc (root on Linux; E2E=part of a name)
	@$(call heading,tests on real nodes)
	if ! lack=$$(testbed/in-network --can 2>&1); then echo "real nodes cannot run here: $$lack"; exit 1; fi
	testbed/in-network cargo test --offline --workspace $(node_tests) -- --test-threads=$(E2E_THREADS) $(E2E)

.PHONY: testbed
testbed: $(call alone,need-go) ## build etcd, the Kubernetes control plane and kwok for the tests, once (6 minutes on 2 cores)
	@$(call heading,test control planes)
	testbed/build

.PHONY: testbed-node
testbed-node: $(call alone,need-go) ## build kubelet, containerd, runc and images for real nodes, once (6 minutes of CPU time)
	@$(call heading,parts of real nodes)
	testbed/build-node

.PHONY: bench
bench: release testbed ## measure the release build on real control planes (BENCH=arguments)
	@$(call heading,bench)
	'$(release)/bench' $(BENCH)

.PHONY: soak
soak: release build testbed ## long tests: 200 000 schedules in World, half an hour of storms, a burst of 5 000 pods, 20 000 pods that come and go, 1 000 nodes
	@$(call heading,$(SOAK_SCHEDULES) schedules in World)
	TAPESTRY_WORLD_SCHEDULES=$(SOAK_SCHEDULES) cargo test --release --workspace --test world
	$(call heading,$(SOAK_CHAOS) seconds of storms)
	TAPESTRY_CHAOS_SECONDS=$(SOAK_CHAOS) cargo test --workspace --test e2e -- storms::
	$(call heading,bench $(SOAK_BENCH))
	'$(release)/bench' $(SOAK_BENCH)
	$(call heading,bench churn $(SOAK_CHURN))
	'$(release)/bench' churn $(SOAK_CHURN)
	$(call heading,bench scale $(SOAK_SCALE))
	'$(release)/bench' scale $(SOAK_SCALE)

.PHONY: crds
crds: need-rust ## write deploy/crds from the Rust types
	@cargo build --quiet --workspace --bin crds
	'$(debug)/crds' deploy/crds

.PHONY: rbac
rbac: need-rust ## write deploy/rbac from the declared rights
	@cargo build --quiet --workspace --bin rbac
	'$(debug)/rbac' deploy/rbac

.PHONY: podspec
podspec: need-rust ## write docs/reference/podspec.md from the table of a pod's fields
	@cargo build --quiet --workspace --bin podspec
	'$(debug)/podspec' docs/reference

.PHONY: release
release: need-rust ## the optimised binaries
	@$(call heading,release build)
	cargo build --workspace --bins --release

.PHONY: fmt
fmt: $(call alone,need-rust) ## check the formatting (cargo fmt repairs it)
	@$(call heading,formatting)
	cargo fmt --all --check || { echo 'run: cargo fmt'; exit 1; }

.PHONY: clippy
clippy: $(call alone,need-rust) ## lint everything, warnings are errors
	@$(call heading,clippy)
	# The first target that compiles also refuses an outdated Cargo.lock.
	cargo clippy --locked --workspace --all-targets -- -D warnings

.PHONY: docs
docs: $(call alone,need-rust) ## build the API documentation, warnings are errors, and run its examples
	@$(call heading,API documentation)
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps
	cargo test --workspace --doc --quiet | sed '/^$$/d; /^running 0 tests$$/d; /^test result: ok\. 0 passed/d'

.PHONY: deny
deny: need-rust ## check licences, duplicates and advisories of all dependencies (needs cargo-deny)
	@cargo deny --version >/dev/null 2>&1 || { echo 'cargo-deny is missing. Install it: cargo install --locked cargo-deny'; exit 1; }
	cargo deny check

.PHONY: clean
clean: need-rust ## remove what cargo built (the test control planes stay)
	@cargo clean

# ---- internal targets ----

.PHONY: generated
generated: $(call alone,build)
	@$(call heading,generated files)
	'$(debug)/crds' --check deploy/crds && '$(debug)/rbac' --check deploy/rbac && '$(debug)/podspec' --check docs/reference && echo 'up to date'

.PHONY: demo-check
demo-check:
	@$(MAKE) demo DEMO=check

# Only what the demo runs: the tapestry and testbed binaries and the control planes.
.PHONY: demo-parts
demo-parts: need-rust need-go demo-bins testbed demo-node

# Without a real node the demo shows less, and needs less.
.PHONY: demo-node
demo-node:
	@if testbed/in-network --can 2>/dev/null; then
	  $(MAKE) testbed-node WALK=1 || echo 'note: the demo runs without a real node'
	fi

.PHONY: demo-bins
demo-bins:
	@$(call heading,tapestry and testbed (3 minutes on 2 cores the first time))
	cargo build --workspace --bin tapestry --bin testbed

# Cargo never removes what no build needs any more. Only our own folder is pruned, never one that the user chose,
# and cargo itself removes it. testbed/build prunes the test control planes.
.PHONY: prune
prune:
	@folder='$(TAPESTRY_CACHE)/target'
	[ "$$folder" = '$(CARGO_TARGET_DIR)' ] && [ -e "$$folder/CACHEDIR.TAG" ] || exit 0
	$(call heading,prune $$folder)
	# Executables that were not run or linked for two weeks: tests of old code.
	find "$$folder" -mindepth 3 -maxdepth 3 -path '*/deps/*' -type f -executable -atime +14 -print -delete | wc -l | sed 's/$$/ old test binaries removed/'
	size=$$(du -s --block-size=1G "$$folder" | cut -f1)
	echo "$$size of at most $(CACHE_LIMIT) GB used"
	if [ "$$size" -gt '$(CACHE_LIMIT)' ]; then cargo clean; fi

.PHONY: need-rust
need-rust:
	@missing=0
	lacks() { printf '%s\n' "$$1" "  what to do: $$2" >&2; missing=1; }
	pinned=$$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
	install="install rustup (https://rustup.rs), then run: rustup toolchain install $$pinned --profile minimal --component rustfmt --component clippy"
	if ! command -v cargo >/dev/null; then
	  lacks 'Rust is missing.' "$$install"
	elif ! version=$$(rustc --version 2>/dev/null); then
	  # rustup provides cargo and rustc, but the toolchain that rust-toolchain.toml names is not installed.
	  lacks "Rust $$pinned is not installed." "$${install#*then run: }"
	else
	  version=$${version#rustc }; version=$${version%% *}
	  if [ "$$(printf '%s\n' "$$pinned" "$$version" | sort -V | sed -n 1p)" != "$$pinned" ]; then
	    lacks "Rust $$version is too old: $$pinned or newer is needed." "$$install"
	  elif [ "$$version" != "$$pinned" ]; then
	    echo "note: Rust $$version, not the pinned $$pinned: formatting and lints may differ" >&2
	  fi
	  for tool in fmt clippy; do
	    cargo $$tool --version >/dev/null 2>&1 || lacks "cargo $$tool is missing." "rustup component add rustfmt clippy (or your system's packages of these names)"
	  done
	fi
	command -v "$${CC:-cc}" >/dev/null || lacks "A C compiler is missing ($${CC:-cc}): the TLS library needs one." 'install gcc or clang (Debian, Ubuntu: apt install build-essential; Fedora: dnf install gcc)'
	[ "$$missing" = 0 ] || exit 1
	# Clones share the dependencies only: cargo compares sources by age and by path within the clone, so it would take
	# another clone's build for ours.
	if [ "$$(cat '$(clone)' 2>/dev/null)" != '$(CURDIR)' ]; then
	  mkdir -p '$(CARGO_TARGET_DIR)'
	  if [ -e '$(clone)' ]; then cargo clean --quiet --workspace; cargo clean --quiet --workspace --release; fi
	  echo '$(CURDIR)' > '$(clone)'
	fi

.PHONY: need-go
need-go:
	@missing=0
	lacks() { printf '%s\n' "$$1" "  what to do: $$2" >&2; missing=1; }
	needed=$$(sed -n 's/^go //p' testbed/kube/*/go.mod | sort -V | tail -n 1)
	if ! command -v go >/dev/null; then
	  lacks "Go is missing: the test control planes are built from source." "install Go $$needed or newer (https://go.dev/doc/install)"
	# Inside a module an older Go downloads the version it needs, unless GOTOOLCHAIN forbids it.
	elif ! (cd testbed/kube/kubernetes && go version >/dev/null 2>&1); then
	  lacks "$$(go env GOVERSION 2>/dev/null || echo Go) is too old: $$needed or newer is needed." 'install it (https://go.dev/doc/install), or set GOTOOLCHAIN=auto'
	fi
	for tool in flock sha256sum; do
	  command -v $$tool >/dev/null || lacks "$$tool is missing." 'install util-linux and coreutils'
	done
	exit $$missing
