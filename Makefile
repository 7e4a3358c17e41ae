# gfaas needs Go, gcc and make. `make help` lists the targets.

BUILD := build
GO ?= go
# Objects do not contain the path of this folder, so that builds are reproducible.
CC := gcc '-ffile-prefix-map=$(CURDIR)=.'
# For all C code that runs in users' processes. All supported compilers and C libraries
# know level 2 of _FORTIFY_SOURCE. -fstack-protector-strong instead of -all: it puts no
# guard into a launch under a lease, which has no array on its stack (hook/check/library.sh
# checks this), so that a launch executes the same 27 instructions as without hardening.
HARDEN := -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
HARDEN_LD := -Wl,-z,relro,-z,now
PREFIX ?= /usr/local
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.1.0-dev)
LDFLAGS_GO := -s -w -X github.com/gfaas/gfaas/pkg/command/cli.Version=$(VERSION)
# Programs and tests are compiled with the same flags, so that tests reuse what make all
# has compiled.
export GOFLAGS := $(strip $(shell $(GO) env GOFLAGS) -trimpath)
# Go's build cache does not notice changes of headers outside a cgo package. This header of
# the package changes with them.
CUDA_HEADERS := pkg/adapter/cuda/headers.h
$(shell sum=$$(cat hook/cuda.h hook/symbols.def | sha256sum | cut -c 1-16) && \
  printf '/* Written by make: a sum of hook/cuda.h and hook/symbols.def. */\n\043define GFAAS_HEADERS 0x%s\n' $$sum >$(CUDA_HEADERS).$$$$ && \
  if cmp -s $(CUDA_HEADERS).$$$$ $(CUDA_HEADERS); then rm $(CUDA_HEADERS).$$$$; else mv $(CUDA_HEADERS).$$$$ $(CUDA_HEADERS); fi)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.7.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.1.4
GO_LICENSES := github.com/google/go-licenses@v1.6.0

GO_SRC = $(shell find cmd pkg -name '*.[ch]' -o -name '*.go' -not -name '*_test.go') go.mod go.sum
BINARIES := $(addprefix $(BUILD)/bin/,$(notdir $(wildcard cmd/*)))

.DEFAULT_GOAL := all
include hook/hook.mk hook/sim/sim.mk hook/kernel/kernel.mk hook/model/model.mk testdata/victim/victim.mk examples/examples.mk packaging/packaging.mk

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: all demo test race explore soak fuzz lint drift docs bench gpu-check install uninstall clean

all: $(BINARIES) libs examples victims ## build everything into build/ (the default)

# gfaas, gfaas-kerneld, gfaas-profile and gfaas-tokend use cgo for NVML, and gfaas-modeld
# uses it for the CUDA driver. The other programs are static and run on any Linux.
$(filter-out $(addprefix $(BUILD)/bin/,gfaas gfaas-kerneld gfaas-modeld gfaas-profile gfaas-tokend),$(BINARIES)): export CGO_ENABLED := 0
# Daemons read input of other users' programs, so they are position-independent and loaded
# at random addresses. Commands are not, because it adds 2 to 3 ms to each start. Functions
# are bound lazily, because those of NVML are undefined until its library is opened.
$(filter %d,$(BINARIES)): GO_HARDEN := -buildmode=pie -ldflags '$(LDFLAGS_GO) -extldflags "-Wl,-z,relro,-z,lazy"'
$(BINARIES): $(BUILD)/bin/%: $(GO_SRC) $(BUILD)/version
	$(GO) build -buildvcs=false -ldflags '$(LDFLAGS_GO)' $(GO_HARDEN) -o $@ ./cmd/$*

# The file changes only with the version, and the programs are then linked again.
.PHONY: FORCE
$(BUILD)/version: FORCE
	@mkdir -p $(@D) && echo '$(VERSION)' | cmp -s - $@ || echo '$(VERSION)' >$@

.PHONY: libs examples victims
libs: $(BUILD)/lib/libgfaas.so sim model

# make demo builds only the programs that it runs, all with the same flags, so that Go
# compiles each package once. It removes build/version, so that the next make links the
# programs again with the flags of an installation.
DEMO_BINARIES := gfaas gfaas-place gfaas-profile gfaas-sim gfaas-tokend
.PHONY: demo-build demo-binaries
demo: ## build what the demo needs, and run it
	@mkdir -p $(BUILD) && echo 'building: a minute or two the first time ($(BUILD)/demo-build.log)'
	@$(MAKE) -s -j$$(nproc) demo-build >$(BUILD)/demo-build.log 2>&1 || { tail -n 30 $(BUILD)/demo-build.log; exit 1; }
	@examples/demo.sh $(BUILD)
demo-build: demo-binaries libs examples $(BUILD)/victim/saturate
demo-binaries:
	@rm -f $(BUILD)/version
	$(GO) build -buildvcs=false -ldflags '$(LDFLAGS_GO)' -o $(BUILD)/bin/ $(addprefix ./cmd/,$(DEMO_BINARIES))

# Tests run the built programs and libraries, whose changes Go's test cache does not
# notice: -count=1. Most tests mostly wait, so one package more than there are processors and
# eight parallel tests of a package run at a time, and the longest packages start first. With
# more, everything runs so slowly on a busy host that generous time limits pass. Under
# the race detector, programs need too much CPU time for that. Property tests use a fixed
# seed, so that a failure is due to the change under test; `make explore` uses random seeds
# and many more cases. VET=-vet=off skips vet, which make lint runs as well. Linking without
# DWARF saves a third of the link time.
TESTING = $(GO) test -count=1 -ldflags=-w -p $(shell expr 1 + $$(nproc)) -exec '"$(CURDIR)/pkg/rapid.sh" -rapid.seed=1'
test: all checks ## run all tests
	$(TESTING) -parallel 8 $(VET) -timeout 20m ./hook/hooktest ./pkg/command/gfaas ./pkg/daemon/gateway ./hook/sim/simtest ./...

# By default, a program under the race detector sleeps for a second before it exits, and the
# scripts run hundreds of programs. Packages in SEQUENTIAL start no goroutines (a test
# enforces this), so their own tests cannot race; tests of daemons and commands run their
# code too. -short skips tests that repeat one sequence many times, measure memory, run
# programs of one goroutine, or run the code of another test in containers.
SEQUENTIAL := policy|sim|gpu|grant|lists|number|outfile|owndir|reason|splitmix|csvfile|jsonfile|textfile|yamlfile|safetensors|function|profile|plan|trace|record|status|events|transcript|kgraph|kserve|wire|adapter/simgpu|command/(picture|profile/report|place|sim|svg|top)|daemon/gateway/fields|measure/(gpus|outlook|recorded)
race: export GORACE := atexit_sleep_ms=0
race: all checks ## run tests under the race detector
	$(TESTING) -vet=off -race -short -timeout 30m $$($(GO) list ./pkg/command/gfaas ./pkg/daemon/gateway ./pkg/... | grep -vE '/pkg/($(SEQUENTIAL))(/|$$)')

# Runs every property test with CHECKS random cases, and then repeats those of the queueing
# policies for EXPLORE_TIME seconds. A failing case is saved in testdata/rapid of its package.
CHECKS ?= 3000
EXPLORE_TIME ?= 600
explore: all checks ## run property tests with CHECKS random cases for EXPLORE_TIME seconds
	$(GO) test -timeout 0 $$(grep -rl --include='*_test.go' pgregory.net/rapid pkg hook examples | xargs -n1 dirname | sort -u | sed 's,^,./,') -rapid.checks=$(CHECKS)
	@end=$$(($$(date +%s) + $(EXPLORE_TIME))); round=0; while [ $$(date +%s) -lt $$end ]; do \
	  round=$$((round + 1)); echo "./pkg/policy/queue, round $$round of $(CHECKS) cases, $$((end - $$(date +%s))) s left"; \
	  $(GO) test -count=1 -timeout 0 ./pkg/policy/queue -rapid.checks=$(CHECKS) || exit 1; done

# Runs each fuzz target for FUZZTIME.
FUZZTIME ?= 10s
FUZZED ?= ./pkg/... ./hook/...
fuzz: all checks ## run each fuzz target for FUZZTIME
	GO='$(GO)' pkg/fuzz.sh $(FUZZTIME) $(FUZZED)

# Runs CUDA programs of other projects on the simulated GPU, without and with slices. They
# are installed with apt; if that fails, a message says so.
.PHONY: clients clients-fetched
clients: all ## run CUDA programs of other projects on the simulated GPU
	timeout 110 hook/clients/run.sh $(BUILD)
clients-fetched:
	hook/clients/run.sh $(BUILD) fetch

# Tests that are too long for CI: KILLS commands and daemons are killed at random, and for
# SOAK a gateway and a token daemon run under load while their processes are killed.
KILLS ?= 2000
SOAK ?= 30m
soak: all checks ## kill processes at random under load, for SOAK (30m)
	GFAAS_KILLS=$(KILLS) GFAAS_SOAK=$(SOAK) $(GO) test -count=1 -v -timeout 180m ./pkg/command/gfaas ./hook/hooktest -run '^(TestKills|TestGatewaySoak|TestStrangerSwaps|TestSoak)$$'

# Compares a gateway that replays a trace with gfaas-sim, RUNS times for each setting. It takes
# eleven minutes a run and needs an idle machine.
RUNS ?= 3
.PHONY: locality
locality: all checks ## compare a gateway with gfaas-sim on a trace
	GFAAS_LOCALITY=$(RUNS) $(GO) test -count=1 -v -timeout 60m ./pkg/command/gfaas -run '^TestLocality$$'

# Compares the instances of a gateway's scalers with gfaas-sim scale, RUNS times. A run takes
# four minutes.
.PHONY: scaling
scaling: all checks ## compare a gateway's scalers with gfaas-sim
	GFAAS_SCALING=$(RUNS) $(GO) test -count=1 -v -timeout 60m ./pkg/command/gfaas -run '^TestScaling$$'

# Compares Dilu's vertical scaling with instances that keep their requests, RUNS times. A run
# takes a minute.
.PHONY: vertical
vertical: all checks ## compare Dilu's limits with requests alone, on a simulated GPU
	GFAAS_VERTICAL=$(RUNS) $(GO) test -count=1 -v -timeout 60m ./pkg/command/gfaas -run '^TestVertical$$'

# Runs the scripts that reproduce figures of papers (docs/papers.md), and fails if a result has
# moved. PAPERS selects scripts. The pictures and CSV files are in build/papers.
PAPERS ?= $(filter-out lib,$(basename $(notdir $(wildcard examples/papers/*.sh))))
.PHONY: papers
papers: $(addprefix $(BUILD)/bin/,$(DEMO_BINARIES) gfaas-kerneld) $(BUILD)/lib/gfaas-kernel-executor libs examples ## reproduce the figures of papers in docs/papers.md
	@failed=; for p in $(PAPERS); do \
	  PATH='$(abspath $(BUILD))/bin':"$$PATH" examples/papers/$$p.sh $(BUILD)/papers || failed="$$failed $$p"; echo; done; \
	  [ -z "$$failed" ] || { echo "papers: failed:$$failed"; exit 1; }

# Checks that plans satisfy their demand: runs DEMANDS random plans under load for a minute
# each. It needs an idle machine.
DEMANDS ?= 50
.PHONY: promise
promise: all checks ## run DEMANDS random plans under load
	GFAAS_DEMANDS=$(DEMANDS) $(GO) test -count=1 -v -timeout 180m ./pkg/command/gfaas -run '^TestPromise$$'

# Starts swarms of two and three Docker Engines on this machine, and checks the runtime of swarms and the gateway on
# them. It needs root, debootstrap and, the first time, Debian's package archive.
.PHONY: fleet-check
fleet-check: $(addprefix $(BUILD)/bin/,gfaas gfaas-tokend) libs checks examples ## run gfaas serve --swarm on three Docker Engines
	testdata/fleet/check 3 $(BUILD)
	testdata/fleet/service $(BUILD)
	testdata/fleet/conformance $(BUILD)

# Measures starts, quotas and the replay of the record on three Docker Engines. It needs an idle machine.
.PHONY: fleet-figures
fleet-figures: $(addprefix $(BUILD)/bin/,gfaas gfaas-tokend gfaas-sim) libs examples ## measure gfaas serve --swarm on three Docker Engines
	testdata/fleet/figures $(BUILD)
	testdata/fleet/replay $(BUILD)

# Checks that exported manifests decode into Kubernetes' own types, in a separate module that
# requires those types.
KUBETYPES := pkg/command/place/manifest/kubetypes
.PHONY: kube-check
kube-check: ## decode exported manifests into Kubernetes types
	GFAAS_KUBETYPES=1 $(GO) test -vet=off -count=1 ./$(KUBETYPES)/.. -run '^TestKubernetesTypes$$'

# Calls a gateway through the official Go clients of OpenAI, Anthropic and Ollama, which are in a separate module.
.PHONY: api-clients
api-clients: all ## call a gateway through the clients of OpenAI, Anthropic and Ollama
	GFAAS_API_CLIENTS=1 $(GO) test -vet=off -count=1 -v ./examples -run '^TestAPIClients$$'

# Applies the example changes of CONTRIBUTING.md to copies of the tree and tests them.
.PHONY: contributing-check
contributing-check: ## try the changes that CONTRIBUTING.md shows
	GFAAS_CONTRIBUTING=1 $(GO) test -vet=off -count=1 -timeout 20m ./pkg -run '^TestContributing'

# cgocall opens cgo files by the path that Go's cache holds. With -trimpath, the entry may come
# from another copy of the tree, which may be gone. A flag of the compiler that contains this
# folder keeps apart the entries of these packages, but not those of all that they import.
CGO_PACKAGES = $(shell $(GO) list -f '{{if .CgoFiles}}{{.ImportPath}}{{end}}' ./...)
lint: ## run gofmt, vet and staticcheck
	@test -z "$$(gofmt -l cmd pkg hook examples)" || { gofmt -l cmd pkg hook examples; echo 'gofmt: the files above differ'; exit 1; }
	$(GO) vet -cgocall=false ./...
	$(GO) vet -cgocall $(foreach p,$(CGO_PACKAGES),-gcflags='$p=-D=$(CURDIR)') $(CGO_PACKAGES)
	cd $(KUBETYPES) && $(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

# Generates man/ and completions/ from the commands, and tables in docs/ from the registries.
docs: ## generate man pages, completions and tables in docs/
	$(GO) run ./pkg/command/gendocs man completions pkg/command/cli/settings.txt docs

drift: ## check that generated files are up to date
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && mkdir $$dir/man $$dir/completions $$dir/docs && \
	  $(GO) run ./pkg/command/gendocs $$dir/man $$dir/completions $$dir/settings.txt $$dir/docs && \
	  diff -r man $$dir/man && diff -r completions $$dir/completions && diff pkg/command/cli/settings.txt $$dir/settings.txt && \
	  for page in $$dir/docs/*; do diff docs/$${page##*/} $$page || exit; done && \
	  $(GO) run ./pkg/wire/gen $$dir/wire.h && diff hook/wire.h $$dir/wire.h && git diff --exit-code -- $(CUDA_HEADERS)

# Looks for known vulnerabilities of Go and of the modules that our code can reach. Without
# network access, set VULNDB=file:///FOLDER to a copy of the database
# (https://go.dev/doc/security/vuln/database).
VULNDB ?= https://vuln.go.dev
.PHONY: vulncheck licences licences-drift
vulncheck: ## look for known vulnerabilities (network, or VULNDB)
	GOBIN=$(abspath $(BUILD))/tools $(GO) install $(GOVULNCHECK)
	pkg/vulncheck.sh '$(VULNDB)' $(BUILD)/tools/govulncheck

# Lists the modules that are linked into the programs, with their licences. go-licenses
# needs GOROOT, because -trimpath removes it from the tool; without it, the tool takes all
# packages for Go's own. Its warnings concern addresses of licences, which are not listed.
LICENCES_OF = GOROOT=$$($(GO) env GOROOT) $(BUILD)/tools/go-licenses
$(BUILD)/tools/go-licenses: Makefile
	GOBIN=$(abspath $(@D)) $(GO) install $(GO_LICENSES)
	touch $@
define list-licences
@mkdir -p $(BUILD) && printf 'package,version,licence\n{{range .}}{{.Name}},{{.Version}},{{.LicenseName}}\n{{end}}' >$(BUILD)/licences.tpl
@$(LICENCES_OF) report ./cmd/... --ignore github.com/gfaas/gfaas --template $(BUILD)/licences.tpl >$(1) 2>$(BUILD)/licences.log || { cat $(BUILD)/licences.log; exit 1; }
endef
licences: $(BUILD)/tools/go-licenses ## list the linked modules and their licences
	$(call list-licences,docs/licences.csv)

licences-drift: $(BUILD)/tools/go-licenses
	$(call list-licences,$(BUILD)/licences.csv)
	@diff docs/licences.csv $(BUILD)/licences.csv || { echo 'docs/licences.csv is out of date: run make licences and review the changes'; exit 1; }

bench: all checks ## run all benchmarks
	$(GO) test -run '^$$' -bench . -benchtime 1s ./...

# gpu-check-folder makes a folder that can be copied to any machine with an NVIDIA GPU;
# gpu-check runs it on this machine.
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

gpu-check: gpu-check-folder ## check this machine's NVIDIA GPU
	$(GPU_CHECK)/run.sh

# Installs all files that packages contain. It starts no systemd service and creates no
# user; packages do (packaging/).
install: $(BINARIES) libs examples install-sim ## install below PREFIX (/usr/local), DESTDIR
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/man/man7 \
	  $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
	  $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d $(DESTDIR)$(PREFIX)/share/doc/gfaas/docs $(DESTDIR)$(PREFIX)/lib/systemd/system
	install -m 755 $(BINARIES) $(DESTDIR)$(PREFIX)/bin
	install -m 755 $(BUILD)/lib/libgfaas.so $(BUILD)/lib/gfaas-kernel-executor $(DESTDIR)$(PREFIX)/lib/gfaas
	install -m 755 $(BUILD)/lib/libgfaas-model.so $(DESTDIR)$(PREFIX)/lib/gfaas
	install -d $(DESTDIR)$(PREFIX)/lib/gfaas/python
	install -m 644 $(MODEL_PYTHON) $(BUILD)/lib/python/gfaas_kernel.py $(DESTDIR)$(PREFIX)/lib/gfaas/python
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

# Removes the files that install would write, and folders that belong to gfaas alone.
uninstall: ## remove installed files
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && $(MAKE) -s install DESTDIR=$$dir && \
	  (cd $$dir && find . ! -type d -print0) | (cd '$(DESTDIR)/' && xargs -0 rm -fv) && \
	  (cd $$dir && find . -type d -name gfaas -print0) | (cd '$(DESTDIR)/' && xargs -0 sh -c 'for d; do [ ! -d "$$d" ] || find "$$d" -depth -type d -empty -delete; done' -)

clean: ## remove build/
	rm -rf $(BUILD)
