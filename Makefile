# gfaas. `make` builds everything into build/; `make demo` shows it at work;
# `make test` runs all tests. Needs Go, gcc and make.

BUILD := build
GO ?= go
CC := gcc
PREFIX ?= /usr/local
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.1.0-dev)
LDFLAGS_GO := -s -w -X github.com/gfaas/gfaas/pkg/command/cli.Version=$(VERSION)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.7.0

GO_SRC = $(shell find cmd pkg -name '*.go' -not -name '*_test.go') go.mod go.sum
BINARIES := $(addprefix $(BUILD)/bin/,$(notdir $(wildcard cmd/*)))

.DEFAULT_GOAL := all
include hook/hook.mk hook/sim/sim.mk testdata/victim/victim.mk examples/examples.mk

.PHONY: all demo test race explore fuzz lint drift docs bench gpu-check install clean

all: $(BINARIES) libs examples victims

# gfaas, gfaas-profile and gfaas-tokend need cgo, for NVML; the others are static
# and run on any Linux.
$(filter-out $(addprefix $(BUILD)/bin/,gfaas gfaas-profile gfaas-tokend),$(BINARIES)): export CGO_ENABLED := 0
$(BINARIES): $(BUILD)/bin/%: $(GO_SRC)
	$(GO) build -trimpath -ldflags '$(LDFLAGS_GO)' -o $@ ./cmd/$*

.PHONY: libs examples victims
libs: $(BUILD)/lib/libgfaas.so $(BUILD)/lib/sim/libcuda.so.1

demo: all
	examples/demo.sh $(BUILD)

# Tests run the built libraries and programs, so they are built first. Property
# tests draw the same cases each time, so that a red test is the change's own;
# `make explore` draws others, and many more.
test: all checks
	$(GO) test -timeout 20m $$($(call packages,ne,./...))
	$(GO) test -timeout 20m $$($(call packages,eq,./...)) -rapid.seed=1

# A program under the race detector sleeps a second before it ends, and the
# scripts run hundreds.
race: export GORACE := atexit_sleep_ms=0
race: all checks
	$(GO) test -race -timeout 30m $$($(call packages,ne,./pkg/...))
	$(GO) test -race -timeout 30m $$($(call packages,eq,./pkg/...)) -rapid.seed=1

CHECKS ?= 3000
explore: all checks
	$(GO) test -timeout 0 $$($(call packages,eq,./...)) -rapid.checks=$(CHECKS)

# The packages of $(2) that have property tests (eq), or have none (ne).
packages = $(GO) list -f '{{$$n := 0}}{{range .TestImports}}{{if eq . "pgregory.net/rapid"}}{{$$n = 1}}{{end}}{{end}}{{if $(1) $$n 1}}{{.ImportPath}}{{end}}' $(2)

# Each fuzz target for a short while; FUZZTIME=10m for a long one.
FUZZTIME ?= 10s
FUZZED ?= ./pkg/... ./hook/...
fuzz: all checks
	@set -e; for pkg in $$($(GO) list $(FUZZED)); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "$$pkg $$f"; GO='$(GO)' pkg/fuzz.sh $$pkg $$f $(FUZZTIME); done; done

lint:
	@test -z "$$(gofmt -l cmd pkg hook examples)" || { gofmt -l cmd pkg hook examples; echo 'gofmt: the files above differ'; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

# man/ and completions/ come from the command trees.
docs:
	$(GO) run ./pkg/command/gendocs man completions pkg/command/cli/settings.txt

drift:
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && mkdir $$dir/man $$dir/completions && \
	  $(GO) run ./pkg/command/gendocs $$dir/man $$dir/completions $$dir/settings.txt && \
	  diff -r man $$dir/man && diff -r completions $$dir/completions && diff pkg/command/cli/settings.txt $$dir/settings.txt && $(GO) generate ./pkg/wire && git diff --exit-code -- hook/wire.h

bench: all checks
	$(GO) test -run '^$$' -bench . -benchtime 1s ./...

# A folder to be copied to any machine with an NVIDIA GPU, and its run on this
# one's.
GPU_CHECK := $(BUILD)/gpu-check
.PHONY: gpu-check-folder
gpu-check-folder: all checks
	rm -rf $(GPU_CHECK)
	mkdir -p $(GPU_CHECK)/bin
	cp $(BUILD)/bin/gfaas $(BUILD)/bin/gfaas-tokend $(GPU_CHECK)/bin
	cp -r $(BUILD)/lib $(BUILD)/check $(BUILD)/victim $(GPU_CHECK)
	cp hook/gpucheck/run.sh hook/gpucheck/torch_loop.py $(GPU_CHECK)
	CGO_ENABLED=0 $(GO) test -c -o $(GPU_CHECK)/check/mps.test ./pkg/adapter/mps

gpu-check: gpu-check-folder
	$(GPU_CHECK)/run.sh

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/gfaas/sim $(DESTDIR)$(PREFIX)/share/man/man1 \
	  $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
	  $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	install -m 755 $(BINARIES) $(DESTDIR)$(PREFIX)/bin
	install -m 755 $(BUILD)/lib/libgfaas.so $(DESTDIR)$(PREFIX)/lib/gfaas
	install -m 755 $(BUILD)/lib/sim/libcuda.so.1 $(DESTDIR)$(PREFIX)/lib/gfaas/sim
	install -m 644 man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	for b in $(notdir $(BINARIES)); do \
	  install -m 644 completions/$$b.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$b; \
	  install -m 644 completions/$$b.zsh $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_$$b; \
	  install -m 644 completions/$$b.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$$b.fish; done

clean:
	rm -rf $(BUILD)
