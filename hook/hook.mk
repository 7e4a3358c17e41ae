# The preload library.
HOOK_SRC := $(wildcard hook/*.c)
HOOK_CFLAGS := -std=gnu11 -O2 -g -fPIC -fvisibility=hidden -Wall -Wextra -Werror -fno-plt

# The two libraries are named for glibc before 2.34, where threads and dlopen
# lived in them; later ones ship empty libraries of these names.
$(BUILD)/lib/libgfaas.so: $(HOOK_SRC) $(wildcard hook/*.h) hook/symbols.def hook/gfaas.map
	@mkdir -p $(@D)
	$(CC) $(HOOK_CFLAGS) $(CFLAGS) -shared -Wl,-z,defs -Wl,-z,relro,-z,now -Wl,-soname,libgfaas.so \
	  -Wl,--version-script=hook/gfaas.map -Wl,--no-as-needed -o $@.tmp $(HOOK_SRC) \
	  $$($(CC) -print-file-name=libpthread.so.0) $$($(CC) -print-file-name=libdl.so.2)
	mv $@.tmp $@

# Programs that check the library and the driver under it.
HOOK_CHECKS := $(patsubst hook/check/%.c,$(BUILD)/check/%,$(wildcard hook/check/*.c))
HOOK_PLUGINS := $(patsubst hook/check/plugin/%.c,$(BUILD)/check/plugin/%.so,$(wildcard hook/check/plugin/*.c))
checks: $(HOOK_CHECKS) $(HOOK_PLUGINS)
.PHONY: checks c-check

$(BUILD)/check/%: hook/check/%.c $(wildcard hook/check/*.h) hook/cuda.h hook/symbols.def $(BUILD)/lib/sim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra -Werror $(CFLAGS) -Ihook -o $@ $< -Wl,--no-as-needed -L$(BUILD)/lib/sim -l:libcuda.so.1 -lpthread -ldl

$(BUILD)/check/plugin/%.so: hook/check/plugin/%.c hook/cuda.h hook/symbols.def $(BUILD)/lib/sim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra -Werror -fPIC -shared $(CFLAGS) -Ihook -o $@ $< -Wl,--no-as-needed -L$(BUILD)/lib/sim -l:libcuda.so.1 -ldl

# What must be true of the built library: it needs no driver to load, no glibc
# after 2.17, and shows nothing but the wrappers.
c-check: libs
	hook/check/library.sh $(BUILD)/lib/libgfaas.so

# For arm64, under an emulator: the simulated driver's conformance programs, and
# every function found in every way under gfaas run. Debian's packages are
# gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user-binfmt, by which what
# starts itself anew is emulated too.
ARM64 := $(abspath $(BUILD))/arm64
ARM64_ROOT ?= /usr/aarch64-linux-gnu
ARM64_WAYS = $(shell sed -n 's/^\tfor way in \(.*\); do$$/\1/p' hook/gpucheck/run.sh)
ARM64_RUN := qemu-aarch64 -L $(ARM64_ROOT) -E LD_LIBRARY_PATH=$(ARM64)/lib/sim
.PHONY: arm64-check
arm64-check: $(BINARIES) libs
	$(MAKE) BUILD=$(ARM64) CC=aarch64-linux-gnu-gcc libs checks
	@test -e /proc/sys/fs/binfmt_misc/qemu-aarch64 || { echo 'arm64-check: qemu-user-binfmt has registered no qemu-aarch64'; exit 1; }
	@set -e; export QEMU_LD_PREFIX=$(ARM64_ROOT); for check in $(ARM64)/check/sim_*; do echo $$check; $(ARM64_RUN) $$check >/dev/null; done
	@set -e; ways='$(ARM64_WAYS)'; test -n "$$ways"; for way in $$ways; do echo $$way; \
	  $(BUILD)/bin/gfaas run -q -- env -u LD_PRELOAD -u LD_LIBRARY_PATH \
	  $(ARM64_RUN) -E LD_PRELOAD=$(ARM64)/lib/libgfaas.so $(ARM64)/check/route $$way all 3 >/dev/null; done
