/* Written by make: a sum of hook/cuda.h and hook/symbols.def. */
#define GFAAS_HEADERS 0x5feb08c46994199c
