# sim.mk builds the simulated driver and its conformance programs below $(BUILD). The top
# Makefile includes it, and it can be used alone (make -f hook/sim/sim.mk sim).
BUILD ?= build
CC ?= gcc
PREFIX ?= /usr/local

SIM_DIR := hook/sim
SIM_OUT := $(BUILD)/lib/sim
SIM_OBJ := $(BUILD)/obj/sim
SIM_SRC := $(wildcard $(SIM_DIR)/*.c)
SIM_HDR := $(wildcard $(SIM_DIR)/*.h) hook/cuda.h hook/symbols.def hook/symver.h $(SIM_DIR)/sim.mk
SIM_CFLAGS := -O2 -g -std=gnu11 -fPIC -fvisibility=hidden -ftls-model=initial-exec -Wall -Wextra -Werror -Wno-unused-parameter $(HARDEN)
# -Bsymbolic: the driver's calls of its own functions bypass a preloaded library.
# nodelete: its threads continue after a dlclose.
SIM_LDFLAGS = -shared -Wl,-soname,$(notdir $@) -Wl,-Bsymbolic -Wl,-z,nodelete -Wl,-z,defs $(HARDEN_LD) \
	-Wl,--version-script=$(filter %.map,$^)

.PHONY: sim
sim: $(SIM_OUT)/libcuda.so.1 $(SIM_OUT)/libcuda.so $(SIM_OUT)/libnvidia-ml.so.1 ## build the simulated driver

$(SIM_OBJ)/%.o: $(SIM_DIR)/%.c $(SIM_HDR)
	@mkdir -p $(@D)
	$(CC) $(SIM_CFLAGS) $(CFLAGS) -c -o $@ $<

# -O3 vectorizes the arithmetic of simulated kernels.
$(SIM_OBJ)/ops.o: SIM_CFLAGS += -O3

$(SIM_OUT)/libcuda.so.1: $(patsubst $(SIM_DIR)/%.c,$(SIM_OBJ)/%.o,$(SIM_SRC)) $(SIM_DIR)/sim.map
	@mkdir -p $(@D)
	$(CC) $(SIM_LDFLAGS) $(LDFLAGS) -o $@.tmp $(filter %.o,$^) \
	  -Wl,--no-as-needed $$($(CC) -print-file-name=libpthread.so.0)
	mv $@.tmp $@

$(SIM_OUT)/libcuda.so: $(SIM_OUT)/libcuda.so.1
	ln -sfn libcuda.so.1 $@

# The management library (NVML), which reads the same files.
SIM_NVML_SRC := $(wildcard $(SIM_DIR)/nvml/*.c) $(SIM_DIR)/config.c $(SIM_DIR)/folder.c
$(patsubst $(SIM_DIR)/%.c,$(SIM_OBJ)/%.o,$(wildcard $(SIM_DIR)/nvml/*.c)): $(SIM_DIR)/nvml/library.h hook/nvml.h hook/nvml.def

$(SIM_OUT)/libnvidia-ml.so.1: $(patsubst $(SIM_DIR)/%.c,$(SIM_OBJ)/%.o,$(SIM_NVML_SRC)) $(SIM_DIR)/nvml/nvml.map
	@mkdir -p $(@D)
	$(CC) $(SIM_LDFLAGS) $(LDFLAGS) -o $@.tmp $(filter %.o,$^) \
	  -Wl,--no-as-needed $$($(CC) -print-file-name=libpthread.so.0)
	mv $@.tmp $@

# Installs the driver outside the dynamic linker's search path, so that it replaces NVIDIA's
# driver only where LD_LIBRARY_PATH names it. The links are for -lcuda and -lnvidia-ml.
.PHONY: install-sim
install-sim: SIM_DEST = $(DESTDIR)$(PREFIX)/lib/gfaas/sim
install-sim: sim ## install the simulated driver alone
	install -d $(SIM_DEST)
	install -m 755 $(SIM_OUT)/libcuda.so.1 $(SIM_OUT)/libnvidia-ml.so.1 $(SIM_DEST)
	ln -sfn libcuda.so.1 $(SIM_DEST)/libcuda.so
	ln -sfn libnvidia-ml.so.1 $(SIM_DEST)/libnvidia-ml.so

# Programs that check the simulated driver, or a real one; `make test` runs them.
SIM_CHECKS := $(patsubst $(SIM_DIR)/check/%.c,$(BUILD)/check/%,$(wildcard $(SIM_DIR)/check/*.c))
.PHONY: checks
checks: sim $(SIM_CHECKS)

$(SIM_CHECKS): $(BUILD)/check/%: $(SIM_DIR)/check/%.c $(wildcard $(SIM_DIR)/check/*.h) hook/cuda.h hook/symbols.def $(SIM_OUT)/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) -O2 -g -std=gnu11 -Wall -Wextra -Werror -Ihook $(CFLAGS) -o $@ $< -L$(SIM_OUT) -l:libcuda.so.1 -lpthread -ldl

# turns includes sched.c, to test its internal functions.
$(BUILD)/check/turns: $(SIM_DIR)/sched.c $(SIM_DIR)/shared.h $(SIM_DIR)/sim.h
