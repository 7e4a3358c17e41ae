/* ptx.h: the parts of the PTX reader. */
#ifndef GFAAS_SIM_PTX_H
#define GFAAS_SIM_PTX_H

#include "sim.h"

struct parser {
    struct module *m;
    char *text, *at;   /* without comments */
    char tok[256];
    char *msg;
    size_t len;
    bool failed, version;
};

/* ptxlex.c */
void ptx_fail(struct parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool ptx_next(struct parser *p);            /* reads the next token into p->tok; false at the end */
bool ptx_is(const struct parser *p, const char *s);
bool ptx_word_char(char c);
void ptx_blank_comments(char *s);           /* in place, lines kept */

/* ptx.c */
struct func *ptx_find(struct module *m, const char *name);

/* pragma.c */
void ptx_pragmas(struct parser *p, const char *text); /* text: with its comments */

#endif
