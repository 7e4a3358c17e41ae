/* names.h: the functions of symbols.def, each with its twin. */
#ifndef GFAAS_CHECK_NAMES_H
#define GFAAS_CHECK_NAMES_H

static const char *const names[] = {
#define NAME_NONE(name) #name,
#define NAME_PTSZ(name) #name, #name "_ptsz",
#define NAME_PTDS(name) #name, #name "_ptds",
#define CU(name, since, variant, hook, sim, stream, params, args) NAME_##variant(name)
#include "symbols.def"
};

#endif
