/* names.h: the symbols of symbols.def. */
#pragma once

static const char *const names[] = {
#define CU_SYMBOL(symbol, since, hook, params, args) #symbol,
#include "symbols.def"
};
