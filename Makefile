# gfaas. `make` builds everything into build/; `make demo` shows it at work;
# `make test` runs all tests. Needs Go, gcc and make.

BUILD := build
GO ?= go
# Of the folder that it is built in nothing is said: the same source makes the same bytes.
CC := gcc '-ffile-prefix-map=$(CURDIR)=.'
# Of all C that runs in other people's processes. The second level of fortify is
# what every compiler and C library that will do knows. Not -all: a launch under a
# lease has no array on its stack, and so gets no guard (hook/check/library.sh looks);
# it takes the same 27 instructions without all this, and one call in a thousand,
# that with the mark, a dozen more.
HARDEN := -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
HARDEN_LD := -Wl,-z,relro,-z,now
PREFIX ?= /usr/local
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.1.0-dev)
LDFLAGS_GO := -s -w -X github.com/gfaas/gfaas/pkg/command/cli.Version=$(VERSION)
# One way to compile for all: what make all has built, the tests need not again.
export GOFLAGS := $(strip $(shell $(GO) env GOFLAGS) -trimpath)
# Of the headers outside its package that cgo compiles with, Go's cache knows nothing
# but what they are called.
export CGO_CFLAGS := $(filter-out -DGFAAS_HEADERS=%,$(shell $(GO) env CGO_CFLAGS)) -DGFAAS_HEADERS=$(shell cat hook/cuda.h hook/symbols.def | sha256sum | cut -c 1-16)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.7.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.1.4
GO_LICENSES := github.com/google/go-licenses@v1.6.0

GO_SRC = $(shell find cmd pkg -name '*.go' -not -name '*_test.go') go.mod go.sum
BINARIES := $(addprefix $(BUILD)/bin/,$(notdir $(wildcard cmd/*)))

.DEFAULT_GOAL := all
include hook/hook.mk hook/sim/sim.mk hook/kernel/kernel.mk hook/model/model.mk testdata/victim/victim.mk examples/examples.mk packaging/packaging.mk

.PHONY: all demo test race explore soak fuzz lint drift docs bench gpu-check install uninstall clean

all: $(BINARIES) libs examples victims

# gfaas, gfaas-kerneld, gfaas-profile and gfaas-tokend need cgo, for NVML, and
# gfaas-modeld for the CUDA driver; the others are static and run on any Linux.
$(filter-out $(addprefix $(BUILD)/bin/,gfaas gfaas-kerneld gfaas-modeld gfaas-profile gfaas-tokend),$(BINARIES)): export CGO_ENABLED := 0
# Daemons, which listen to programs of others, are at other addresses each time. A
# start takes 2 to 3 ms longer so, a third of gfaas version, which is why commands
# are not. Their functions are bound when they are first called: those of NVML are
# nowhere to be found until its library is opened, if there is one.
$(filter %d,$(BINARIES)): GO_HARDEN := -buildmode=pie -ldflags '$(LDFLAGS_GO) -extldflags "-Wl,-z,relro,-z,lazy"'
$(BINARIES): $(BUILD)/bin/%: $(GO_SRC) $(BUILD)/version
	$(GO) build -buildvcs=false -ldflags '$(LDFLAGS_GO)' $(GO_HARDEN) -o $@ ./cmd/$*

# Written when it is another than before, and then the programs are linked anew.
.PHONY: FORCE
$(BUILD)/version: FORCE
	@mkdir -p $(@D) && echo '$(VERSION)' | cmp -s - $@ || echo '$(VERSION)' >$@

.PHONY: libs examples victims
libs: $(BUILD)/lib/libgfaas.so sim model

# It builds only what it runs, and links all programs alike, so that Go compiles each
# package once. Without its stamp, the next make links them as they are installed.
DEMO_BINARIES := gfaas gfaas-place gfaas-profile gfaas-sim gfaas-tokend
.PHONY: demo-build demo-binaries
demo:
	@mkdir -p $(BUILD) && echo 'building: a minute or two the first time ($(BUILD)/demo-build.log)'
	@$(MAKE) -s -j$$(nproc) demo-build >$(BUILD)/demo-build.log 2>&1 || { tail -n 30 $(BUILD)/demo-build.log; exit 1; }
	@examples/demo.sh $(BUILD)
demo-build: demo-binaries libs examples $(BUILD)/victim/saturate
demo-binaries:
	@rm -f $(BUILD)/version
	$(GO) build -buildvcs=false -ldflags '$(LDFLAGS_GO)' -o $(BUILD)/bin/ $(addprefix ./cmd/,$(DEMO_BINARIES))

# Tests run the built libraries and programs, so they are built first, and an
# earlier run is not remembered, since Go does not see when those change. Most
# tests mostly wait, so twice as many packages run at once as there are processors,
# and eight of a package's parallel tests. (Not under the race detector, where a program
# needs a processor for seconds.) Property tests draw the same cases each time, so that
# a red test is the change's own; `make explore` draws others, and many more. After
# make lint, VET=-vet=off saves a second vet. Linking without DWARF, which nothing
# reads, takes two thirds of the time.
TESTING = $(GO) test -count=1 -ldflags=-w -p $(shell expr 2 \* $$(nproc)) -exec '"$(CURDIR)/pkg/rapid.sh" -rapid.seed=1'
test: all checks
	$(TESTING) -parallel 8 $(VET) -timeout 20m ./...

# A program under the race detector sleeps a second before it ends, and the
# scripts run hundreds. Policies, simulations, formats and what draws pages or writes
# manifests start no goroutine, which a test holds, so there is nothing to be seen in
# their own tests; those of daemons and commands run them too. Nor is there in tests that
# do one thing after the other many times, which -short leaves out. What takes longest is
# begun first.
SEQUENTIAL := policy|sim|gpu|number|splitmix|csvfile|jsonfile|textfile|yamlfile|safetensors|function|profile|plan|trace|record|status|events|transcript|kgraph|wire|command/(picture|place/manifest|profile/report|sim/report)
race: export GORACE := atexit_sleep_ms=0
race: all checks
	$(TESTING) -vet=off -race -short -timeout 30m $$($(GO) list ./pkg/command/gfaas ./pkg/... | grep -vE '/pkg/($(SEQUENTIAL))(/|$$)')

# Every property with CHECKS cases that no run had before; then, for EXPLORE_TIME
# seconds, round after round those of the queueing policies, which have most to do
# with a world that changes. A red case is kept in testdata/rapid of its package.
CHECKS ?= 3000
EXPLORE_TIME ?= 600
explore: all checks
	$(GO) test -timeout 0 $$(grep -rl --include='*_test.go' pgregory.net/rapid pkg hook examples | xargs -n1 dirname | sort -u | sed 's,^,./,') -rapid.checks=$(CHECKS)
	@end=$$(($$(date +%s) + $(EXPLORE_TIME))); round=0; while [ $$(date +%s) -lt $$end ]; do \
	  round=$$((round + 1)); echo "./pkg/policy/queue, round $$round of $(CHECKS) cases, $$((end - $$(date +%s))) s left"; \
	  $(GO) test -count=1 -timeout 0 ./pkg/policy/queue -rapid.checks=$(CHECKS) || exit 1; done

# Each fuzz target for a short while; FUZZTIME=10m for a long one.
FUZZTIME ?= 10s
FUZZED ?= ./pkg/... ./hook/...
fuzz: all checks
	GO='$(GO)' pkg/fuzz.sh $(FUZZTIME) $(FUZZED)

# Programs that others wrote, on the simulated GPU, bare and in slices; they come from
# apt, and where they cannot be had that is said.
.PHONY: clients clients-fetched
clients: all
	timeout 110 hook/clients/run.sh $(BUILD)
clients-fetched:
	hook/clients/run.sh $(BUILD) fetch

# What takes longer than CI has: KILLS commands and daemons killed at random, then a
# gateway under fire for SOAK.
KILLS ?= 2000
SOAK ?= 30m
soak: all checks
	GFAAS_KILLS=$(KILLS) GFAAS_SOAK=$(SOAK) $(GO) test -count=1 -v -timeout 180m ./pkg/command/gfaas -run '^(TestKills|TestGatewaySoak)$$'

# What a gateway does with a trace beside what gfaas-sim says of it: three minutes, on
# a machine that has time for it.
.PHONY: locality
locality: all checks
	GFAAS_LOCALITY=1 $(GO) test -count=1 -v -timeout 20m ./pkg/command/gfaas -run '^TestLocality$$'

# Whether plans keep their promise: DEMANDS random ones, each driven for a minute
# after its start, on a machine that has time for it.
DEMANDS ?= 50
.PHONY: promise
promise: all checks
	GFAAS_DEMANDS=$(DEMANDS) $(GO) test -count=1 -v -timeout 180m ./pkg/command/gfaas -run '^TestPromise$$'

# Whether manifests are what Kubernetes' own types can read: a module of its own, since it
# needs those types.
KUBETYPES := pkg/command/place/manifest/kubetypes
.PHONY: kube-check
kube-check:
	GFAAS_KUBETYPES=1 $(GO) test -vet=off -count=1 ./$(KUBETYPES)/.. -run '^TestKubernetesTypes$$'

# Whether the changes that CONTRIBUTING.md shows work, in copies of the tree.
.PHONY: contributing-check
contributing-check:
	GFAAS_CONTRIBUTING=1 $(GO) test -vet=off -count=1 -timeout 20m ./pkg -run '^TestContributing'

lint:
	@test -z "$$(gofmt -l cmd pkg hook examples)" || { gofmt -l cmd pkg hook examples; echo 'gofmt: the files above differ'; exit 1; }
	$(GO) vet ./...
	cd $(KUBETYPES) && $(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

# man/ and completions/ come from the command trees.
docs:
	$(GO) run ./pkg/command/gendocs man completions pkg/command/cli/settings.txt

drift:
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && mkdir $$dir/man $$dir/completions && \
	  $(GO) run ./pkg/command/gendocs $$dir/man $$dir/completions $$dir/settings.txt && \
	  diff -r man $$dir/man && diff -r completions $$dir/completions && diff pkg/command/cli/settings.txt $$dir/settings.txt && $(GO) generate ./pkg/wire && git diff --exit-code -- hook/wire.h

# Known faults of Go and of the modules, as far as our code can come to them. The
# database is asked over the network; VULNDB=file:///a/folder is a copy of it
# (https://go.dev/doc/security/vuln/database), for machines without. Without either
# pkg/vulncheck.sh ends with 4, and with 3 where it found some.
VULNDB ?= https://vuln.go.dev
.PHONY: vulncheck licences licences-drift
vulncheck:
	GOBIN=$(abspath $(BUILD))/tools $(GO) install $(GOVULNCHECK)
	pkg/vulncheck.sh '$(VULNDB)' $(BUILD)/tools/govulncheck

# What is linked into the programs, and under which licences. The tool's warnings
# are of addresses of licences, which are not in the list; it has to be told where Go
# is, since -trimpath takes that from it and it would take all for Go's own.
LICENCES_OF = GOROOT=$$($(GO) env GOROOT) $(BUILD)/tools/go-licenses
$(BUILD)/tools/go-licenses: Makefile
	GOBIN=$(abspath $(@D)) $(GO) install $(GO_LICENSES)
	touch $@
define list-licences
@mkdir -p $(BUILD) && printf 'package,version,licence\n{{range .}}{{.Name}},{{.Version}},{{.LicenseName}}\n{{end}}' >$(BUILD)/licences.tpl
@$(LICENCES_OF) report ./cmd/... --ignore github.com/gfaas/gfaas --template $(BUILD)/licences.tpl >$(1) 2>$(BUILD)/licences.log || { cat $(BUILD)/licences.log; exit 1; }
endef
licences: $(BUILD)/tools/go-licenses
	$(call list-licences,docs/licences.csv)

licences-drift: $(BUILD)/tools/go-licenses
	$(call list-licences,$(BUILD)/licences.csv)
	@diff docs/licences.csv $(BUILD)/licences.csv || { echo 'docs/licences.csv is not what is linked: make licences, and look at what came'; exit 1; }

bench: all checks
	$(GO) test -run '^$$' -bench . -benchtime 1s ./...

# A folder to be copied to any machine with an NVIDIA GPU, and its run on this
# one's.
GPU_CHECK := $(BUILD)/gpu-check
.PHONY: gpu-check-folder
gpu-check-folder: all checks
	rm -rf $(GPU_CHECK)
	mkdir -p $(GPU_CHECK)/bin
	cp $(addprefix $(BUILD)/bin/,gfaas gfaas-kerneld gfaas-modeld gfaas-tokend) $(GPU_CHECK)/bin
	cp -r $(BUILD)/lib $(BUILD)/check $(BUILD)/victim $(GPU_CHECK)
	cp hook/gpucheck/run.sh hook/gpucheck/torch_loop.py hook/gpucheck/loads.py $(GPU_CHECK)
	CGO_ENABLED=0 $(GO) test -c -o $(GPU_CHECK)/check/mps.test ./pkg/adapter/mps
	$(GO) test -c -o $(GPU_CHECK)/check/model.test ./pkg/daemon/model

gpu-check: gpu-check-folder
	$(GPU_CHECK)/run.sh

# All that a machine needs; what is in packages is what this installs. With systemd's
# services nothing is started, nor a user made for them: packages do (packaging/).
install: $(BINARIES) libs examples
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/gfaas/sim $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man7 \
	  $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
	  $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d $(DESTDIR)$(PREFIX)/share/doc/gfaas/docs $(DESTDIR)$(PREFIX)/lib/systemd/system
	install -m 755 $(BINARIES) $(DESTDIR)$(PREFIX)/bin
	install -m 755 $(BUILD)/lib/libgfaas.so $(BUILD)/lib/gfaas-kernel-executor $(DESTDIR)$(PREFIX)/lib/gfaas
	install -m 755 $(BUILD)/lib/sim/libcuda.so.1 $(BUILD)/lib/sim/libnvidia-ml.so.1 $(DESTDIR)$(PREFIX)/lib/gfaas/sim
	ln -sfn libcuda.so.1 $(DESTDIR)$(PREFIX)/lib/gfaas/sim/libcuda.so
	install -m 755 $(BUILD)/lib/libgfaas-model.so $(DESTDIR)$(PREFIX)/lib/gfaas
	install -D -m 644 $(BUILD)/lib/python/gfaas_model.py $(DESTDIR)$(PREFIX)/lib/gfaas/python/gfaas_model.py
	ln -sfn gfaas/libgfaas-model.so $(DESTDIR)$(PREFIX)/lib/libgfaas-model.so
	install -D -m 644 $(BUILD)/include/gfaas_model.h $(DESTDIR)$(PREFIX)/include/gfaas_model.h
	install -m 644 man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 man/*.7 $(DESTDIR)$(PREFIX)/share/man/man7
	for b in $(notdir $(BINARIES)); do \
	  install -m 644 completions/$$b.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$b; \
	  install -m 644 completions/$$b.zsh $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_$$b; \
	  install -m 644 completions/$$b.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$$b.fish; done
	for f in $(EXAMPLES); do \
	  install -D -m $$(test -x $$f && echo 755 || echo 644) $$f $(DESTDIR)$(PREFIX)/lib/gfaas/$${f#$(BUILD)/} || exit; done
	for e in $(sort $(notdir $(patsubst %/,%,$(dir $(EXAMPLES))))); do \
	  install -m 644 examples/$$e/README.md $(DESTDIR)$(PREFIX)/lib/gfaas/examples/$$e || exit; done
	install -m 644 README.md LICENSE $(DESTDIR)$(PREFIX)/share/doc/gfaas
	install -m 644 $(filter-out docs/how-to,$(wildcard docs/*)) $(DESTDIR)$(PREFIX)/share/doc/gfaas/docs
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/gfaas/docs/how-to docs/how-to/*
	[ -z '$(LICENCES)' ] || { rm -rf $(DESTDIR)$(PREFIX)/share/doc/gfaas/licences && cp -R '$(LICENCES)' $(DESTDIR)$(PREFIX)/share/doc/gfaas/licences && \
	  chmod -R u=rwX,go=rX $(DESTDIR)$(PREFIX)/share/doc/gfaas/licences; }
	for u in packaging/systemd/*.service; do \
	  sed -e 's,@bindir@,$(PREFIX)/bin,' -e '/@hardening@/{r packaging/systemd/hardening.conf' -e 'd}' $$u >$(DESTDIR)$(PREFIX)/lib/systemd/system/$${u##*/} && \
	  chmod 644 $(DESTDIR)$(PREFIX)/lib/systemd/system/$${u##*/} || exit; done
	install -D -m 644 packaging/systemd/sysusers.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/gfaas.conf

# What install would put there, and the folders that are gfaas's alone.
uninstall:
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && $(MAKE) -s install DESTDIR=$$dir && \
	  (cd $$dir && find . ! -type d -print0) | (cd '$(DESTDIR)/' && xargs -0 rm -fv) && \
	  (cd $$dir && find . -type d -name gfaas -print0) | (cd '$(DESTDIR)/' && xargs -0 sh -c 'for d; do [ ! -d "$$d" ] || find "$$d" -depth -type d -empty -delete; done' -)

clean:
	rm -rf $(BUILD)
