# The executor of gfaas-kerneld. It loads the driver at run time.
EXECUTOR := $(BUILD)/lib/gfaas-kernel-executor

$(EXECUTOR): $(wildcard hook/kernel/*.c) hook/kernel/executor.h hook/cuda.h hook/symbols.def hook/kernel/kernel.mk
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra -Werror -fPIE -pie $(HARDEN) $(CFLAGS) -Ihook -o $@.tmp $(wildcard hook/kernel/*.c) \
	  $(HARDEN_LD) -Wl,--no-as-needed -lpthread -ldl
	mv $@.tmp $@

# The client for Python.
KERNEL_PYTHON := $(BUILD)/lib/python/gfaas_kernel.py

$(KERNEL_PYTHON): hook/kernel/gfaas_kernel.py
	@mkdir -p $(@D)
	cp $< $@

libs: $(EXECUTOR) $(KERNEL_PYTHON)
