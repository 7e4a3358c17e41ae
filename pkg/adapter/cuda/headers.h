/* Written by make: a sum of hook/cuda.h and hook/symbols.def. */
#define GFAAS_HEADERS 0x4b3b2ab20220756f
