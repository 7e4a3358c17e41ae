# The preload library. Functions are aligned to cache lines: a launch costs half as much
# again if the linker happens to place it across one more line.
HOOK_SRC := $(wildcard hook/*.c)
HOOK_CFLAGS := -std=gnu11 -O2 -g -fPIC -fvisibility=hidden -Wall -Wextra -Werror -fno-plt -falign-functions=64 $(HARDEN)

# Before glibc 2.34, libpthread and libdl contain threads and dlopen; later versions ship
# empty libraries with these names.
$(BUILD)/lib/libgfaas.so: $(HOOK_SRC) $(wildcard hook/*.h) hook/symbols.def hook/nvml.def hook/gfaas.map hook/hook.mk
	@mkdir -p $(@D)
	$(CC) $(HOOK_CFLAGS) $(CFLAGS) -shared -Wl,-z,defs $(HARDEN_LD) -Wl,-soname,libgfaas.so \
	  -Wl,--version-script=hook/gfaas.map -Wl,--no-as-needed -o $@.tmp $(HOOK_SRC) \
	  $$($(CC) -print-file-name=libpthread.so.0) $$($(CC) -print-file-name=libdl.so.2)
	mv $@.tmp $@

# Programs that check the library and a driver.
HOOK_CHECKS := $(patsubst hook/check/%.c,$(BUILD)/check/%,$(wildcard hook/check/*.c))
HOOK_PLUGINS := $(patsubst hook/check/plugin/%.c,$(BUILD)/check/plugin/%.so,$(wildcard hook/check/plugin/*.c))
checks: $(HOOK_CHECKS) $(HOOK_PLUGINS) $(BUILD)/check/route_wrapped
.PHONY: checks c-check

# lookup must start without a driver, so it is not linked with one.
CHECK_DRIVER = -L$(BUILD)/lib/sim -l:libcuda.so.1
$(BUILD)/check/lookup: CHECK_DRIVER =
$(BUILD)/check/%: hook/check/%.c $(wildcard hook/check/*.h) hook/cuda.h hook/symbols.def hook/nvml.h hook/nvml.def $(BUILD)/lib/sim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra -Werror $(CFLAGS) -iquote hook -o $@ $< -Wl,--no-as-needed $(CHECK_DRIVER) -lpthread -ldl

$(BUILD)/check/noticed: hook/terminate.c $(wildcard hook/*.h)

# The program route, with its own wrapper for each function.
$(BUILD)/check/route_wrapped: hook/check/route.c hook/check/plugin/wrapper.c $(BUILD)/check/route
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra -Werror $(CFLAGS) -iquote hook -o $@ hook/check/route.c hook/check/plugin/wrapper.c -rdynamic \
	  -Wl,--no-as-needed $(CHECK_DRIVER) -lpthread -ldl

$(BUILD)/check/plugin/%.so: hook/check/plugin/%.c hook/cuda.h hook/symbols.def $(BUILD)/lib/sim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra -Werror -fPIC -shared $(CFLAGS) -iquote hook -o $@ $< -Wl,--no-as-needed -L$(BUILD)/lib/sim -l:libcuda.so.1 -ldl

# Checks the built preload library: it loads without a driver, needs at most glibc 2.17 and
# exports only wrappers. Checks that all C libraries are hardened.
c-check: libs ## check the built C libraries
	hook/check/library.sh $(BUILD)/lib/libgfaas.so
	hook/check/hardened.sh $(BUILD)/lib/libgfaas.so $(BUILD)/lib/sim/libcuda.so.1 $(BUILD)/lib/sim/libnvidia-ml.so.1 \
	  $(BUILD)/lib/libgfaas-model.so $(EXECUTOR)

# On arm64, under an emulator: runs the simulated driver's conformance programs, and looks up
# each function in each way under gfaas run. It needs Debian's packages
# gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user-binfmt (which also emulates
# programs that execute themselves again).
ARM64 := $(abspath $(BUILD))/arm64
ARM64_ROOT ?= /usr/aarch64-linux-gnu
ARM64_WAYS = $(shell sed -n 's/^\tfor way in \(.*\); do$$/\1/p' hook/gpucheck/run.sh)
ARM64_RUN := qemu-aarch64 -L $(ARM64_ROOT) -E LD_LIBRARY_PATH=$(ARM64)/lib/sim
.PHONY: arm64-check
arm64-check: $(BINARIES) libs ## check the C libraries on arm64, under an emulator
	$(MAKE) BUILD=$(ARM64) CC=aarch64-linux-gnu-gcc libs checks
	@test -e /proc/sys/fs/binfmt_misc/qemu-aarch64 || { echo 'arm64-check: qemu-user-binfmt has registered no qemu-aarch64'; exit 1; }
	@set -e; export QEMU_LD_PREFIX=$(ARM64_ROOT); for check in $(ARM64)/check/sim_*; do echo $$check; $(ARM64_RUN) $$check >/dev/null; done
	@set -e; ways='$(ARM64_WAYS)'; test -n "$$ways"; for way in $$ways; do echo $$way; \
	  $(BUILD)/bin/gfaas run -q -- env -u LD_PRELOAD -u LD_LIBRARY_PATH \
	  $(ARM64_RUN) -E LD_PRELOAD=$(ARM64)/lib/libgfaas.so $(ARM64)/check/route $$way all 3 >/dev/null; done

# Runs the simulated driver's conformance programs with a driver built with the address and
# undefined-behavior sanitizers, and programs under gfaas run with a preload library built
# with these and then with the thread sanitizer. Each sanitizer must first find a planted
# fault. If valgrind is installed, one program runs in it with the driver as built.
#
# gfaas run preloads the library before the sanitizer's, so verify_asan_link_order is off.
# The thread sanitizer does not support all randomized address layouts, hence setarch -R.
SANITIZED := $(abspath $(BUILD))/sanitize
UNDEFINED := undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1
SANITIZE := -fsanitize=address,$(UNDEFINED)
SANITIZE_ENV = GFAAS_SIM_DIR=$(SANITIZED)/run GFAAS_SIM_GPU=mem=1GiB UBSAN_OPTIONS=print_stacktrace=1 \
  ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0:handle_segv=0:handle_sigbus=0 TSAN_OPTIONS=exitcode=66
SANITIZE_RUN = $(SANITIZE_ENV) $(BUILD)/bin/gfaas run -q --
BEHIND = sh -c 'export LD_PRELOAD="$$LD_PRELOAD:$$0"; exec "$$@"'
ASAN_RUN = GFAAS_LIB_DIR=$(SANITIZED)/hook/lib $(SANITIZE_RUN) $(BEHIND) $$($(CC) -print-file-name=libasan.so)
TSAN_RUN = GFAAS_LIB_DIR=$(SANITIZED)/races/lib $(SANITIZE_RUN) $$(setarch -R true 2>/dev/null && echo setarch -R) $(BEHIND) $$($(CC) -print-file-name=libtsan.so)
ASAN_CHECKS := 'chaos 1 2000' 'memory 16 2' nulls 'ends reset' 'ends detach' 'ends capture' 'stress 4 2'
TSAN_CHECKS := 'route link all 3' 'route proc2 all 3' 'ends reset' 'ends beside' 'chaos 1 2000' 'stress 8 5'
.PHONY: sanitize
sanitize: $(BINARIES) libs checks ## run C checks under sanitizers
	$(MAKE) -j$$(nproc) BUILD=$(SANITIZED) HARDEN= CFLAGS='$(SANITIZE)' LDFLAGS='$(SANITIZE)' $(SANITIZED)/lib/sim/libcuda.so.1
	$(MAKE) BUILD=$(SANITIZED)/hook HARDEN= CFLAGS='$(SANITIZE)' $(SANITIZED)/hook/lib/libgfaas.so
	$(MAKE) BUILD=$(SANITIZED)/races HARDEN= CFLAGS='-fsanitize=thread -fno-omit-frame-pointer -O1' $(SANITIZED)/races/lib/libgfaas.so
	ln -sfn $(abspath $(BUILD))/lib/sim $(SANITIZED)/hook/lib/sim
	ln -sfn $(abspath $(BUILD))/lib/sim $(SANITIZED)/races/lib/sim
	$(CC) -w -O1 -g -fsanitize=address -o $(SANITIZED)/heap hook/check/faulty/faulty.c -lpthread
	$(CC) -w -O1 -g -fsanitize=thread -o $(SANITIZED)/race hook/check/faulty/faulty.c -lpthread
	@set -e; for check in $(BUILD)/check/sim_*; do echo $$check; \
	  $(SANITIZE_ENV) LD_LIBRARY_PATH=$(SANITIZED)/lib/sim LD_PRELOAD=$$($(CC) -print-file-name=libasan.so) $$check >/dev/null; done
	@if $(ASAN_RUN) $(SANITIZED)/heap heap >$(SANITIZED)/found 2>&1 || ! grep -q use-after-free $(SANITIZED)/found; then cat $(SANITIZED)/found; echo 'sanitize: the planted use-after-free was not found'; exit 1; fi
	@set -e; for way in link dlsym default next proc2; do echo "memory: route $$way"; $(ASAN_RUN) $(BUILD)/check/route $$way all 3 </dev/null >/dev/null; done
	@set -e; for check in $(ASAN_CHECKS); do echo "memory: $$check"; $(ASAN_RUN) $(BUILD)/check/$$check </dev/null >/dev/null; done
	@if $(TSAN_RUN) $(SANITIZED)/race race >$(SANITIZED)/found 2>&1 || ! grep -q 'data race' $(SANITIZED)/found; then cat $(SANITIZED)/found; echo 'sanitize: the planted data race was not found'; exit 1; fi
	@set -e; for check in $(TSAN_CHECKS); do echo "races: $$check"; $(TSAN_RUN) $(BUILD)/check/$$check </dev/null >/dev/null; done
	@if command -v valgrind >/dev/null; then echo valgrind sim_memory; GFAAS_SIM_DIR=$(SANITIZED)/run LD_LIBRARY_PATH=$(BUILD)/lib/sim \
	  valgrind -q --error-exitcode=9 $(BUILD)/check/sim_memory >/dev/null; else echo 'valgrind is not installed: skipped'; fi
