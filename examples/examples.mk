# The example functions, built into build/examples/NAME. The top Makefile includes this
# file; `all` builds the files in EXAMPLES.
BUILD ?= build
CC ?= gcc
EXAMPLE_CFLAGS ?= -std=gnu11 -O2 -g -Wall -Wextra -Werror -ffp-contract=off

SAXPY_SRC := examples/saxpy
SAXPY_OUT := $(BUILD)/examples/saxpy
SAXPY_C := $(addprefix $(SAXPY_SRC)/,saxpy.c gpu.c http.c read.c json.c)
SAXPY_FILES := $(addprefix $(SAXPY_OUT)/,function.yaml function-docker.yaml check.sh image.sh)

LINEAR_SRC := examples/linear
LINEAR_OUT := $(BUILD)/examples/linear
LINEAR_FILES := $(addprefix $(LINEAR_OUT)/,server.py linear.ptx make_weights.py function.yaml)

KERNELS_SRC := examples/kernels
KERNELS_OUT := $(BUILD)/examples/kernels
KERNELS_FILES := $(patsubst $(KERNELS_SRC)/%,$(KERNELS_OUT)/%,$(wildcard $(KERNELS_SRC)/*.json $(KERNELS_SRC)/*.ptx $(KERNELS_SRC)/*.py))

EXAMPLES := $(SAXPY_OUT)/saxpy $(SAXPY_OUT)/saxpy-check $(SAXPY_FILES) $(LINEAR_FILES) $(KERNELS_FILES)

# An ordinary CUDA program: it includes cuda.h (ours, in hook/), links with the driver's
# library, and the loader finds the driver at run time.
$(SAXPY_OUT)/saxpy: $(SAXPY_C) $(wildcard $(SAXPY_SRC)/*.h) $(SAXPY_SRC)/saxpy.ptx hook/cuda.h hook/symbols.def $(BUILD)/lib/sim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(EXAMPLE_CFLAGS) -Ihook -Wa,-I$(SAXPY_SRC) -o $@ $(SAXPY_C) -pthread -lm -L$(BUILD)/lib/sim -l:libcuda.so.1

$(SAXPY_OUT)/saxpy-check: $(SAXPY_SRC)/check.c $(SAXPY_SRC)/json.c $(SAXPY_SRC)/json.h $(SAXPY_SRC)/workload.h
	@mkdir -p $(@D)
	$(CC) $(EXAMPLE_CFLAGS) -o $@ $(SAXPY_SRC)/check.c $(SAXPY_SRC)/json.c

$(SAXPY_FILES): $(SAXPY_OUT)/%: $(SAXPY_SRC)/%
	@mkdir -p $(@D)
	cp $< $@

$(LINEAR_FILES): $(LINEAR_OUT)/%: $(LINEAR_SRC)/%
	@mkdir -p $(@D)
	cp $< $@

$(KERNELS_FILES): $(KERNELS_OUT)/%: $(KERNELS_SRC)/%
	@mkdir -p $(@D)
	cp $< $@

.PHONY: examples
examples: $(EXAMPLES)
