/* names.h: the symbols of symbols.def. */
#ifndef GFAAS_CHECK_NAMES_H
#define GFAAS_CHECK_NAMES_H

static const char *const names[] = {
#define CU_SYMBOL(symbol, since, hook, params, args) #symbol,
#include "symbols.def"
};

#endif
