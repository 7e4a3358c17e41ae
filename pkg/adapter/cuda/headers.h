/* Written by make: a sum of hook/cuda.h and hook/symbols.def. */
#define GFAAS_HEADERS 0x99ed5f3354f85cf0
