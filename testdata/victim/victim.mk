# Ordinary CUDA programs that tests run with the preload library.
VICTIMS := $(patsubst testdata/victim/%.c,$(BUILD)/victim/%,$(wildcard testdata/victim/*.c))

$(BUILD)/victim/%: testdata/victim/%.c hook/cuda.h hook/symbols.def $(BUILD)/lib/sim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra -Werror $(CFLAGS) -Ihook -o $@ $< -L$(BUILD)/lib/sim -l:libcuda.so.1

.PHONY: victims
victims: $(VICTIMS)
