/* Written by make: a sum of hook/cuda.h and hook/symbols.def. */
#define GFAAS_HEADERS 0x825320e9b3ef9bca
