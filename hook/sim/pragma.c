/* pragma.c: what a kernel costs and does, read from comments:
 *
 *   // gfaas-sim: NAME block_us=100 op=vadd_f32
 *
 * anywhere in the text, one setting or both on a line. */
#include "ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PRAGMA "gfaas-sim:"

static void setting(struct parser *p, struct func *f, char *word)
{
    char *value = strchr(word, '=');
    if (value)
        *value++ = 0;
    if (value && !strcmp(word, "block_us")) {
        char *end;
        double us = strtod(value, &end);
        if (end == value || *end || !(us >= 0 && us <= 1e9))
            ptx_fail(p, "block_us=%s: expected microseconds", value);
        f->block_ns = (uint64_t)(us * 1000 + 0.5);
    } else if (value && !strcmp(word, "op")) {
        f->op = ops_find(value);
        if (f->op == OP_NONE)
            ptx_fail(p, "op=%s: expected vadd_f32, saxpy_f32 or sgemm_f32", value);
        else if (!ops_fits(f->op, f))
            ptx_fail(p, "kernel %s does not have the parameters of %s", f->name, value);
    } else {
        ptx_fail(p, "%s: expected block_us=N or op=NAME", word);
    }
}

static void pragma(struct parser *p, const char *line, size_t n)
{
    char buf[512], *save = NULL;
    snprintf(buf, sizeof buf, "%.*s", (int)(n < 511 ? n : 511), line);
    char *word = strtok_r(buf, " \t\r", &save);
    struct func *f = word ? ptx_find(p->m, word) : NULL;
    if (!f) {
        ptx_fail(p, "gfaas-sim: no kernel called %s", word ? word : "(nothing)");
        return;
    }
    while ((word = strtok_r(NULL, " \t\r", &save)) && !p->failed)
        setting(p, f, word);
}

/* Calls pragma for each comment that is one; p->at stays at the same place in the
 * text without comments, which has the same length. */
void ptx_pragmas(struct parser *p, const char *text)
{
    for (const char *c = text; (c = strstr(c, "//")) && !p->failed; ) {
        size_t n = strcspn(c, "\n");
        const char *body = c + 2;
        while (*body == ' ' || *body == '\t')
            body++;
        p->at = p->text + (c - text);
        if (!strncmp(body, PRAGMA, strlen(PRAGMA)))
            pragma(p, body + strlen(PRAGMA), n - (size_t)(body + strlen(PRAGMA) - c));
        c += n;
    }
}
