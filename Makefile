# The commands of this repository. Each does all the set-up that it needs, can be run again at any
# time, says what it is doing, and fails with the remedy. `make` alone lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# One profile for everything (see Cargo.toml), so that wasmtime is compiled once.
export CARGO_TARGET_DIR ?= $(CURDIR)/target
REEVE := $(CARGO_TARGET_DIR)/debug/reeve
GUESTS := $(CARGO_TARGET_DIR)/guests
say = @printf '\033[1m== %s\033[0m\n' "$(1)" >&2

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: reeve guests kubernetes ## A real API server, the host, a Website, a hot swap: five minutes after the first build
	$(call say,Running the demo)
	@cargo run --quiet -p reeve-e2e --bin reeve-demo

.PHONY: dev
dev: reeve guests kubernetes ## The same start as the demo; stays up with a live log until Ctrl-C
	@cargo run --quiet -p reeve-e2e --bin reeve-demo -- --stay

.PHONY: test
test: reeve guests kubernetes ## Every test: plugins, unit, property and protocol tests, scenarios on a real control plane
	$(call say,Testing the plugins natively)
	@cargo test --quiet --manifest-path plugins/Cargo.toml --target-dir $(CARGO_TARGET_DIR)/plugins-native
	$(call say,Testing the control plane's supervisor)
	@cd tests/controlplane && CONTROLPLANE=$$(./ensure) go test -count=1 ./internal/...
	$(call say,Testing the workspace)
	@cargo test --workspace

.PHONY: check
check: setup ## Format, clippy with warnings denied, documentation with warnings denied
	$(call say,Checking the format)
	@cargo fmt --all --check
	@cargo fmt --manifest-path plugins/Cargo.toml --all --check
	$(call say,Running clippy)
	@cargo clippy --quiet --workspace --all-targets -- -D warnings
	@cargo clippy --quiet --manifest-path plugins/Cargo.toml --workspace --target-dir $(CARGO_TARGET_DIR)/plugins-native -- -D warnings
	$(call say,Building the documentation)
	@RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps
	@if command -v cargo-deny >/dev/null; then cargo deny check; fi

.PHONY: bench
bench: reeve guests kubernetes ## The measurements of tests/bench, as a table of ratios
	@cargo run --quiet -p reeve-bench

.PHONY: soak-short
soak-short: reeve guests kubernetes ## 1,000 Websites, kills, restarts and swaps on a real control plane
	@cargo run --quiet -p reeve-e2e --bin reeve-soak

.PHONY: controlplane
controlplane: kubernetes ## A real control plane in the foreground; prints its kubeconfig, Ctrl-C ends it
	@"$$(tests/controlplane/ensure)/controlplane" up

# --- the parts

.PHONY: setup
setup:
	@tests/setup

.PHONY: reeve
reeve: setup
	$(call say,Building the host (the first time takes ten minutes or more: wasmtime))
	@cargo build --quiet -p reeve-cli -p reeve-e2e

.PHONY: guests
guests: reeve
	$(call say,Building the example plugins)
	@for plugin in hello-configmap website website-next misbehaving; do \
		$(REEVE) build plugins/$$plugin --out $(GUESTS)/$$plugin.wasm; \
	done

.PHONY: kubernetes
kubernetes: setup
	@tests/controlplane/ensure >/dev/null
