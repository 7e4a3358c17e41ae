# `make packages`: a deb, an rpm and a tarball of what `make install` installs, a list of
# the modules that are linked, and checksums, in build/dist. Included by the top Makefile.
#
# The same source makes the same bytes, whoever builds it where: times are those of the
# last commit, owners are root, archives are sorted. So says `make packages-check`,
# which also installs the deb in a container, tries it and removes it.
NFPM := github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.0
CYCLONEDX := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.9.0
ifndef SOURCE_DATE_EPOCH
export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || echo 1767225600)
endif

# As dpkg and rpm order them: v1.2.3 is 1.2.3, three commits later it is 1.2.3+3.g0123abc,
# and where there is no tag they go by the time of the commit.
PACKAGE_VERSION = $(shell echo '$(VERSION)' | sed -E 's/^v//; s/-([0-9]+)-g/+\1.g/; s/-dirty$$/+dirty/; s/-/~/g; \
  /^[0-9]+\./!s/^/0~'$$(date -u -d @$(SOURCE_DATE_EPOCH) +%Y%m%d%H%M%S)'./')
DIST := $(BUILD)/dist
STAGED := $(BUILD)/package
TARBALL = gfaas-$(PACKAGE_VERSION)-linux-amd64
# The licences of what is linked, as those who wrote it want them to go along.
LICENCE_TEXTS := $(BUILD)/licences

.PHONY: packages packages-check
packages: $(BINARIES) libs examples $(LICENCE_TEXTS)
	rm -rf $(STAGED) $(DIST)
	install -d $(DIST)
	$(MAKE) -s install DESTDIR=$(STAGED)/usr PREFIX=/usr LICENCES=$(LICENCE_TEXTS)
	$(MAKE) -s install DESTDIR=$(STAGED)/local PREFIX=/usr/local LICENCES=$(LICENCE_TEXTS)
	find $(STAGED) -exec touch -h -d @$(SOURCE_DATE_EPOCH) {} +
	tar -C $(STAGED)/local/usr/local --sort=name --owner=0 --group=0 --numeric-owner --transform 's,^\.,$(TARBALL),RSh' -cf - . | \
	  gzip -n >$(DIST)/$(TARBALL).tar.gz
	@set -e; export PACKAGE_VERSION='$(PACKAGE_VERSION)' ROOT=$(STAGED)/usr; \
	export GLIBC=$$(find $$ROOT -type f -exec objdump -T {} + 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sed s/GLIBC_// | sort -Vu | tail -n 1); \
	umask 022; for kind in deb rpm; do $(GO) run $(NFPM) package -f packaging/nfpm.yaml -p $$kind -t $(DIST)/; done
# gfaas itself links every module that any of the programs does.
	$(GO) run $(CYCLONEDX) bin -json -noserial -std -version '$(PACKAGE_VERSION)' -output - $(BUILD)/bin/gfaas | \
	  sed "s/\"timestamp\": .*/\"timestamp\": \"$$(date -u -d @$(SOURCE_DATE_EPOCH) +%Y-%m-%dT%H:%M:%SZ)\",/" >$(DIST)/gfaas-$(PACKAGE_VERSION).cdx.json
	cd $(DIST) && sha256sum * >SHA256SUMS
	ls -l $(DIST)

$(LICENCE_TEXTS): go.sum $(BUILD)/tools/go-licenses
	rm -rf $@
	$(LICENCES_OF) save ./cmd/... --ignore github.com/gfaas/gfaas --save_path $@ >$(BUILD)/licence-texts.log 2>&1 || { cat $(BUILD)/licence-texts.log; exit 1; }
	chmod -R u+w $@
	touch $@

packages-check: packages victims
	@for b in $(BINARIES); do $(GO) version -m $$b; done | awk '$$1 == "dep" { print $$2 }' | sort -u | while read -r module; do \
	  grep -q "\"name\": \"$$module\"" $(DIST)/*.cdx.json || { echo "$$module is linked and not listed"; exit 1; }; done
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && $(MAKE) -s install DESTDIR=$$dir PREFIX=/usr && touch $$dir/usr/bin/other && \
	  $(MAKE) -s uninstall DESTDIR=$$dir PREFIX=/usr >/dev/null && test "$$(cd $$dir && find . ! -type d -o -name gfaas)" = ./usr/bin/other || \
	  { echo 'make uninstall leaves something, or takes too much'; exit 1; }
	packaging/reproducible.sh $(BUILD)
	packaging/installed.sh $(BUILD)
