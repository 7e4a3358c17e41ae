# model.mk builds the model client for C and Python. The top Makefile includes it.
MODEL_DIR := hook/model
MODEL_SRC := $(wildcard $(MODEL_DIR)/*.c)
MODEL_HDR := $(wildcard $(MODEL_DIR)/*.h) hook/cuda.h hook/descriptor.h hook/symbols.def hook/symver.h

$(BUILD)/lib/libgfaas-model.so: $(MODEL_SRC) $(MODEL_HDR) $(MODEL_DIR)/model.map hook/model/model.mk
	@mkdir -p $(@D)
	$(CC) $(HOOK_CFLAGS) $(CFLAGS) -shared -Wl,-z,defs $(HARDEN_LD) -Wl,-soname,libgfaas-model.so \
	  -Wl,--version-script=$(MODEL_DIR)/model.map -Wl,--no-as-needed -o $@.tmp $(MODEL_SRC) \
	  $$($(CC) -print-file-name=libpthread.so.0) $$($(CC) -print-file-name=libdl.so.2)
	mv $@.tmp $@

$(BUILD)/include/gfaas_model.h: $(MODEL_DIR)/gfaas_model.h
	@mkdir -p $(@D)
	cp $< $@

MODEL_PYTHON := $(patsubst $(MODEL_DIR)/%,$(BUILD)/lib/python/%,$(wildcard $(MODEL_DIR)/*.py))
$(MODEL_PYTHON): $(BUILD)/lib/python/%: $(MODEL_DIR)/%
	@mkdir -p $(@D)
	cp $< $@

.PHONY: model
model: $(BUILD)/lib/libgfaas-model.so $(BUILD)/include/gfaas_model.h $(MODEL_PYTHON)

# Programs that check the model client. They are ordinary users of it and link no driver.
MODEL_CHECKS := $(patsubst $(MODEL_DIR)/check/%.c,$(BUILD)/check/%,$(wildcard $(MODEL_DIR)/check/*.c))
MODEL_PYTHON_CHECKS := $(patsubst $(MODEL_DIR)/check/%,$(BUILD)/check/%,$(wildcard $(MODEL_DIR)/check/*.py))
checks: $(MODEL_CHECKS) $(MODEL_PYTHON_CHECKS)
$(MODEL_PYTHON_CHECKS): $(BUILD)/check/%: $(MODEL_DIR)/check/%
	@mkdir -p $(@D)
	cp $< $@
$(MODEL_CHECKS): $(BUILD)/check/%: $(MODEL_DIR)/check/%.c $(wildcard $(MODEL_DIR)/check/*.h) $(BUILD)/lib/libgfaas-model.so $(BUILD)/include/gfaas_model.h hook/cuda.h
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra -Werror $(CFLAGS) -Ihook -I$(BUILD)/include -o $@ $< \
	  -L$(BUILD)/lib -lgfaas-model '-Wl,-rpath,$$ORIGIN/../lib' -lpthread -ldl
