/* ptx.c: reads PTX text as far as the simulator needs it: the kernels with the
 * layout of their parameters, and the variables. */
#include "ptx.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_BLOCK_NS 10000u

static size_t type_size(const char *t)
{
    static const struct {
        const char *name;
        size_t size;
    } types[] = {{".b8", 1},  {".u8", 1},    {".s8", 1},    {".b16", 2}, {".u16", 2}, {".s16", 2}, {".f16", 2},
                 {".b32", 4}, {".u32", 4},   {".s32", 4},   {".f32", 4}, {".b64", 8}, {".u64", 8}, {".s64", 8},
                 {".f64", 8}, {".bf16", 2}, {".f16x2", 4}, {".b128", 16}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(t, types[i].name))
            return types[i].size;
    return 0;
}

struct decl {
    char name[256];
    char type[16];
    size_t elem, count, align;
};

/* Reads ".align 8 .b8 name[16]" and stops at the token after it. */
static bool declaration(struct parser *p, struct decl *d)
{
    memset(d, 0, sizeof *d);
    d->count = 1;
    for (; p->tok[0] == '.'; ptx_next(p)) {
        size_t size = type_size(p->tok);
        if (ptx_is(p, ".align")) {
            ptx_next(p);
            size_t align = strtoul(p->tok, NULL, 10);
            d->align = d->elem ? d->align : align; /* after .ptr it is of what is pointed to */
            if (!align || (align & (align - 1)) || align > 1024)
                return false;
        } else if (size) {
            d->elem = size;
            snprintf(d->type, sizeof d->type, "%.15s", p->tok);
        }
    }
    if (!d->elem || !ptx_word_char(p->tok[0]))
        return false;
    strcpy(d->name, p->tok);
    ptx_next(p);
    while (ptx_is(p, "[")) {
        ptx_next(p);
        char *end;
        unsigned long n = strtoul(p->tok, &end, 10);
        if (!n || *end || n > (1ul << 30) || d->count > (1ul << 34) / n)
            return false;
        d->count *= n;
        ptx_next(p);
        if (!ptx_is(p, "]"))
            return false;
        ptx_next(p);
    }
    if (d->align < d->elem)
        d->align = d->elem;
    return true;
}

static void parameters(struct parser *p, struct func *f)
{
    struct decl d;
    size_t offset = 0;
    ptx_next(p);
    while (!p->failed && !ptx_is(p, ")")) {
        if (!ptx_is(p, ".param") || !declaration(p, &d)) {
            ptx_fail(p, "kernel %s: bad parameter list", f->name);
            return;
        }
        offset = (offset + d.align - 1) & ~(d.align - 1);
        size_t size = d.elem * d.count;
        if (f->nparams == SIM_MAX_PARAMS || offset + size > SIM_PARAM_BYTES) {
            ptx_fail(p, "kernel %s: more than %d parameters or %d bytes of them", f->name, SIM_MAX_PARAMS, SIM_PARAM_BYTES);
            return;
        }
        f->offset[f->nparams] = (unsigned short)offset;
        f->size[f->nparams++] = (unsigned short)size;
        offset += size;
        f->bytes = (unsigned)offset;
        if (ptx_is(p, ","))
            ptx_next(p);
        else if (!ptx_is(p, ")"))
            ptx_fail(p, "kernel %s: expected , or ) after parameter %s", f->name, d.name);
    }
    ptx_next(p);
}

static void skip_body(struct parser *p)
{
    int depth = 0;
    do {
        depth += ptx_is(p, "{") - ptx_is(p, "}");
    } while (depth > 0 && ptx_next(p));
    if (depth)
        ptx_fail(p, "} missing");
}

struct func *ptx_find(struct module *m, const char *name)
{
    for (struct func *f = m->funcs; f; f = f->next)
        if (!strcmp(f->name, name))
            return f;
    return NULL;
}

static void entry(struct parser *p)
{
    if (!ptx_next(p) || !(isalpha((unsigned char)p->tok[0]) || strchr("_$%", p->tok[0]))) {
        ptx_fail(p, "expected a name after .entry");
        return;
    }
    struct func *f = ptx_find(p->m, p->tok);
    bool declared = f != NULL;
    struct func again = {0};
    if (declared) {
        again.name = f->name; /* a declaration came before: read past this one's parameters */
        f = &again;
    } else {
        f = calloc(1, sizeof *f);
        if (!f || !(f->name = strdup(p->tok))) {
            free(f);
            ptx_fail(p, "out of memory");
            return;
        }
        f->module = p->m;
        f->block_ns = DEFAULT_BLOCK_NS;
        f->max_dynamic = 49152;
        f->carveout = -1;
        f->next = p->m->funcs;
        p->m->funcs = f;
    }
    ptx_next(p);
    if (ptx_is(p, "("))
        parameters(p, f);
    while (!p->failed && !ptx_is(p, "{") && !ptx_is(p, ";"))
        if (!ptx_next(p))
            ptx_fail(p, "kernel %s: no body", f->name);
    if (!p->failed && ptx_is(p, "{"))
        skip_body(p);
}

/* One value of an initialiser, written as the type has it. */
static bool put_value(const char *tok, const struct decl *d, unsigned char *out)
{
    char *end;
    uint64_t bits;
    if (tok[0] == '0' && (tok[1] == 'f' || tok[1] == 'F' || tok[1] == 'd' || tok[1] == 'D')) {
        bits = strtoull(tok + 2, &end, 16);
    } else if (d->type[1] == 'f') {
        double v = strtod(tok, &end);
        float narrow = (float)v;
        if (d->elem == 4) {
            uint32_t b;
            memcpy(&b, &narrow, 4);
            bits = b;
        } else {
            memcpy(&bits, &v, 8);
        }
    } else {
        errno = 0;
        bits = strtoull(tok, &end, 0);
        if (*end == 'U' || *end == 'u')
            end++;
    }
    memcpy(out, &bits, d->elem < 8 ? d->elem : 8);
    return end != tok && !*end;
}

static bool initialiser(struct parser *p, const struct decl *d, unsigned char *out)
{
    size_t i = 0;
    bool minus = false;
    for (ptx_next(p); p->tok[0] && !ptx_is(p, ";"); ptx_next(p)) {
        if (ptx_is(p, "{") || ptx_is(p, "}") || ptx_is(p, ","))
            continue;
        if (ptx_is(p, "-")) {
            minus = true;
            continue;
        }
        char text[300];
        snprintf(text, sizeof text, "%s%s", minus ? "-" : "", p->tok);
        minus = false;
        if (i == d->count || !put_value(text, d, out + i++ * d->elem))
            return false;
    }
    return ptx_is(p, ";");
}

static void variable(struct parser *p)
{
    struct decl d;
    if (!declaration(p, &d)) {
        ptx_fail(p, "bad variable");
        return;
    }
    struct global *g = calloc(1, sizeof *g);
    if (!g || !(g->name = strdup(d.name))) {
        free(g);
        ptx_fail(p, "out of memory");
        return;
    }
    g->size = d.elem * d.count;
    g->next = p->m->globals;
    p->m->globals = g;
    if (ptx_is(p, "=")) {
        g->init = calloc(1, g->size);
        if (!g->init || !initialiser(p, &d, g->init))
            ptx_fail(p, "variable %s: unsupported initialiser", d.name);
    } else if (!ptx_is(p, ";")) {
        ptx_fail(p, "variable %s: expected ;", d.name);
    }
}

/* A device function: nothing of it matters. */
static void skip_function(struct parser *p)
{
    while (!ptx_is(p, "{") && !ptx_is(p, ";") && ptx_next(p))
        ;
    if (ptx_is(p, "{"))
        skip_body(p);
}

static void unit(struct parser *p)
{
    bool external = false;
    while (!p->failed && ptx_next(p)) {
        if (ptx_is(p, ".version"))
            p->version = ptx_next(p) && isdigit((unsigned char)p->tok[0]);
        else if (ptx_is(p, ".extern"))
            external = true;
        else if (ptx_is(p, ".entry"))
            entry(p);
        else if (ptx_is(p, ".func"))
            skip_function(p);
        else if ((ptx_is(p, ".global") || ptx_is(p, ".const")) && !external)
            variable(p);
        else if (ptx_is(p, "{"))
            skip_body(p);
        if (ptx_is(p, ";") || ptx_is(p, "}"))
            external = false;
    }
}

CUresult ptx_parse(struct module *m, const char *text, char *msg, size_t len)
{
    struct parser p = {.m = m, .msg = msg, .len = len, .text = strdup(text)};
    if (!p.text)
        return CUDA_ERROR_OUT_OF_MEMORY;
    p.at = p.text;
    ptx_blank_comments(p.text);
    unit(&p);
    if (!p.version)
        ptx_fail(&p, "not PTX: no .version");
    ptx_pragmas(&p, text);
    free(p.text);
    return p.failed ? CUDA_ERROR_INVALID_PTX : CUDA_SUCCESS;
}
