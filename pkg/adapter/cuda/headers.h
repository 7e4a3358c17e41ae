/* Written by make: a sum of hook/cuda.h and hook/symbols.def. */
#define GFAAS_HEADERS 0x2e6e45b8146c6446
