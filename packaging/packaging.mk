# `make packages` writes a deb, an rpm and a tarball of the installed files, a list of the
# linked modules (CycloneDX), and checksums into build/dist. Included by the top Makefile.
#
# Builds are reproducible: times are those of the last commit, owners are root, and archives
# are sorted. `make packages-check` checks this, and installs, tries and removes the deb in a
# container.
NFPM := github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.0
CYCLONEDX := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.9.0
ifndef SOURCE_DATE_EPOCH
export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || echo 1767225600)
endif

# The version in the order of dpkg and rpm: v1.2.3 becomes 1.2.3, and three commits later it
# is 1.2.3+3.g0123abc. Without a tag, the version contains the time of the commit.
PACKAGE_VERSION = $(shell echo '$(VERSION)' | sed -E 's/^v//; s/-([0-9]+)-g/+\1.g/; s/-dirty$$/+dirty/; s/-/~/g; \
  /^[0-9]+\./!s/^/0~'$$(date -u -d @$(SOURCE_DATE_EPOCH) +%Y%m%d%H%M%S)'./')
DIST := $(BUILD)/dist
STAGED := $(BUILD)/package
TARBALL = gfaas-$(PACKAGE_VERSION)-linux-amd64
# The texts of the linked modules' licences, which most licences require in a distribution.
LICENCE_TEXTS := $(BUILD)/licences

.PHONY: packages packages-check
packages: $(BINARIES) libs examples $(LICENCE_TEXTS) ## build a deb, an rpm and a tarball
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
# The program gfaas links every module that any other program links.
	$(GO) run $(CYCLONEDX) bin -json -noserial -std -version '$(PACKAGE_VERSION)' -output - $(BUILD)/bin/gfaas | \
	  sed "s/\"timestamp\": .*/\"timestamp\": \"$$(date -u -d @$(SOURCE_DATE_EPOCH) +%Y-%m-%dT%H:%M:%SZ)\",/" >$(DIST)/gfaas-$(PACKAGE_VERSION).cdx.json
	cd $(DIST) && sha256sum * >SHA256SUMS
	ls -l $(DIST)

$(LICENCE_TEXTS): go.sum $(BUILD)/tools/go-licenses
	rm -rf $@
	$(LICENCES_OF) save ./cmd/... --ignore github.com/gfaas/gfaas --save_path $@ >$(BUILD)/licence-texts.log 2>&1 || { cat $(BUILD)/licence-texts.log; exit 1; }
	chmod -R u+w $@
	touch $@

packages-check: packages victims ## check the packages, and install one in a container
	@for b in $(BINARIES); do $(GO) version -m $$b; done | awk '$$1 == "dep" { print $$2 }' | sort -u | while read -r module; do \
	  grep -q "\"name\": \"$$module\"" $(DIST)/*.cdx.json || { echo "$$module is linked but not listed"; exit 1; }; done
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && $(MAKE) -s install DESTDIR=$$dir PREFIX=/usr && touch $$dir/usr/bin/other && \
	  $(MAKE) -s uninstall DESTDIR=$$dir PREFIX=/usr >/dev/null && test "$$(cd $$dir && find . ! -type d -o -name gfaas)" = ./usr/bin/other || \
	  { echo 'make uninstall left files or removed files of others'; exit 1; }
	packaging/reproducible.sh $(BUILD)
	packaging/installed.sh $(BUILD)
