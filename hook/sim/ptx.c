/* ptx.c: reads PTX text as far as the simulator needs it: the kernels with the
 * layout of their parameters, the variables, and what comments say of a kernel's
 * cost and effect,
 *
 *   // gfaas-sim: NAME block_us=100 op=vadd_f32
 *
 * anywhere in the text, one setting or both on a line. */
#include "sim.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PRAGMA "gfaas-sim:"
#define DEFAULT_BLOCK_NS 10000u

struct parser {
    struct module *m;
    char *text, *at; /* without comments */
    char tok[256];   /* the token read last */
    char *msg;
    size_t len;
    bool failed, version;
};

/* ---- PTX text as tokens ---- */

/* Notes the first thing that is wrong, with its line. */
static void __attribute__((format(printf, 2, 3))) fail(struct parser *p, const char *fmt, ...)
{
    if (p->failed)
        return;
    p->failed = true;
    int line = 1;
    for (const char *c = p->text; c < p->at; c++)
        line += *c == '\n';
    int n = snprintf(p->msg, p->len, "line %d: ", line);
    va_list ap;
    va_start(ap, fmt);
    if (n > 0 && (size_t)n < p->len)
        vsnprintf(p->msg + n, p->len - (size_t)n, fmt, ap);
    va_end(ap);
}

static bool word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%';
}

/* Reads the next token into p->tok: a word with its dots, a string, or one other
 * character; false at the end. */
static bool next(struct parser *p)
{
    while (isspace((unsigned char)*p->at))
        p->at++;
    size_t n = 0;
    p->tok[0] = 0;
    if (!*p->at)
        return false;
    if (*p->at == '"') {
        p->at++;
        while (*p->at && *p->at != '"')
            p->at++;
        p->at += *p->at == '"';
        strcpy(p->tok, "\"");
        return true;
    }
    if (!word_char(*p->at)) {
        p->tok[n++] = *p->at++;
    } else {
        for (; word_char(*p->at); p->at++)
            if (n < sizeof p->tok - 1)
                p->tok[n++] = *p->at;
    }
    p->tok[n] = 0;
    return true;
}

static bool is(const struct parser *p, const char *s)
{
    return !strcmp(p->tok, s);
}

/* Puts spaces for comments; lines stay where they are. */
static void blank_comments(char *s)
{
    while (*s) {
        bool line = s[0] == '/' && s[1] == '/', block = s[0] == '/' && s[1] == '*';
        if (!line && !block) {
            s++;
            continue;
        }
        while (*s && !(line && *s == '\n')) {
            bool end = block && s[0] == '*' && s[1] == '/';
            if (*s != '\n')
                *s = ' ';
            s++;
            if (end) {
                *s++ = ' ';
                break;
            }
        }
    }
}

/* ---- what a kernel costs and does, from comments ---- */

static struct func *kernel_named(struct module *m, const char *name)
{
    for (struct func *f = m->funcs; f; f = f->next)
        if (!strcmp(f->name, name))
            return f;
    return NULL;
}

/* One KEY=VALUE of a comment. */
static void setting(struct parser *p, struct func *f, char *word)
{
    char *value = strchr(word, '=');
    if (value)
        *value++ = 0;
    if (value && !strcmp(word, "block_us")) {
        char *end;
        double us = strtod(value, &end);
        if (end == value || *end || !(us >= 0 && us <= 1e9))
            fail(p, "block_us=%s: expected microseconds", value);
        f->block_ns = (uint64_t)(us * 1000 + 0.5);
    } else if (value && !strcmp(word, "op")) {
        f->op = ops_find(value);
        if (f->op == OP_NONE)
            fail(p, "op=%s: expected vadd_f32, saxpy_f32, sgemm_f32 or fault", value);
        else if (!ops_fits(f->op, f))
            fail(p, "kernel %s does not have the parameters of %s", f->name, value);
    } else {
        fail(p, "%s: expected block_us=N or op=NAME", word);
    }
}

/* One comment about a kernel. */
static void pragma(struct parser *p, const char *line, size_t n)
{
    char buf[512], *save = NULL;
    snprintf(buf, sizeof buf, "%.*s", (int)(n < 511 ? n : 511), line);
    char *word = strtok_r(buf, " \t\r", &save);
    struct func *f = word ? kernel_named(p->m, word) : NULL;
    if (!f) {
        fail(p, "gfaas-sim: no kernel called %s", word ? word : "(nothing)");
        return;
    }
    while ((word = strtok_r(NULL, " \t\r", &save)) && !p->failed)
        setting(p, f, word);
}

/* Calls pragma for each comment that is one; p->at stays at the same place in the
 * text without comments, which has the same length. */
static void pragmas(struct parser *p, const char *text)
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

/* ---- kernels and variables ---- */

/* Bytes of a scalar type; 0 when there is none of that name. */
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
    for (; p->tok[0] == '.'; next(p)) {
        size_t size = type_size(p->tok);
        if (is(p, ".align")) {
            next(p);
            size_t align = strtoul(p->tok, NULL, 10);
            d->align = d->elem ? d->align : align; /* after .ptr it is of what is pointed to */
            if (!align || (align & (align - 1)) || align > 1024)
                return false;
        } else if (size) {
            d->elem = size;
            snprintf(d->type, sizeof d->type, "%.15s", p->tok);
        }
    }
    if (!d->elem || !word_char(p->tok[0]))
        return false;
    strcpy(d->name, p->tok);
    next(p);
    while (is(p, "[")) {
        next(p);
        char *end;
        unsigned long n = strtoul(p->tok, &end, 10);
        if (!n || *end || n > (1ul << 30) || d->count > (1ul << 34) / n)
            return false;
        d->count *= n;
        next(p);
        if (!is(p, "]"))
            return false;
        next(p);
    }
    if (d->align < d->elem)
        d->align = d->elem;
    return true;
}

/* A kernel's parameter list: the place and size of each. */
static void parameters(struct parser *p, struct func *f)
{
    struct decl d;
    size_t offset = 0;
    next(p);
    while (!p->failed && !is(p, ")")) {
        if (!is(p, ".param") || !declaration(p, &d)) {
            fail(p, "kernel %s: bad parameter list", f->name);
            return;
        }
        offset = (offset + d.align - 1) & ~(d.align - 1);
        size_t size = d.elem * d.count;
        if (f->nparams == SIM_MAX_PARAMS || offset + size > SIM_PARAM_BYTES) {
            fail(p, "kernel %s: more than %d parameters or %d bytes of them", f->name, SIM_MAX_PARAMS, SIM_PARAM_BYTES);
            return;
        }
        f->offset[f->nparams] = (unsigned short)offset;
        f->size[f->nparams++] = (unsigned short)size;
        offset += size;
        f->bytes = (unsigned)offset;
        if (is(p, ","))
            next(p);
        else if (!is(p, ")"))
            fail(p, "kernel %s: expected , or ) after parameter %s", f->name, d.name);
    }
    next(p);
}

/* Skips what is between braces. */
static void skip_body(struct parser *p)
{
    int depth = 0;
    do {
        depth += is(p, "{") - is(p, "}");
    } while (depth > 0 && next(p));
    if (depth)
        fail(p, "} missing");
}

/* A kernel: its name, its parameters, and nothing of its body. */
static void entry(struct parser *p)
{
    if (!next(p) || !(isalpha((unsigned char)p->tok[0]) || strchr("_$%", p->tok[0]))) {
        fail(p, "expected a name after .entry");
        return;
    }
    struct func *f = kernel_named(p->m, p->tok);
    bool declared = f != NULL;
    struct func again = {0};
    if (declared) {
        again.name = f->name; /* a declaration came before: read past this one's parameters */
        f = &again;
    } else {
        f = calloc(1, sizeof *f);
        if (!f || !(f->name = strdup(p->tok))) {
            free(f);
            fail(p, "out of memory");
            return;
        }
        f->module = p->m;
        f->block_ns = DEFAULT_BLOCK_NS;
        f->max_dynamic = 49152;
        f->carveout = -1;
        f->next = p->m->funcs;
        p->m->funcs = f;
    }
    next(p);
    if (is(p, "("))
        parameters(p, f);
    while (!p->failed && !is(p, "{") && !is(p, ";"))
        if (!next(p))
            fail(p, "kernel %s: no body", f->name);
    if (!p->failed && is(p, "{"))
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

/* An address as a value: sym, sym+8, generic(sym), generic(sym)+8. Stops at the
 * token after it. */
static bool put_address(struct parser *p, struct global *g, size_t at)
{
    struct address *a = calloc(1, sizeof *a);
    bool generic = is(p, "generic");
    if (!a)
        return false;
    a->next = g->addresses;
    g->addresses = a;
    a->at = at;
    if (generic && !(next(p) && is(p, "(") && next(p)))
        return false;
    a->symbol = strdup(p->tok);
    if (!a->symbol || !next(p) || (generic && !(is(p, ")") && next(p))))
        return false;
    if (is(p, "+")) {
        next(p);
        char *end;
        a->plus = strtoull(p->tok, &end, 0);
        if (!isdigit((unsigned char)p->tok[0]) || *end)
            return false;
        next(p);
    }
    return true;
}

/* The values of a variable, however they are grouped. */
static bool initialiser(struct parser *p, const struct decl *d, struct global *g)
{
    size_t i = 0;
    for (next(p); p->tok[0] && !is(p, ";");) {
        if (is(p, "{") || is(p, "}") || is(p, ",")) {
            next(p);
            continue;
        }
        bool minus = is(p, "-");
        if (minus)
            next(p);
        const size_t at = i * d->elem;
        if (i++ == d->count)
            return false;
        if (isalpha((unsigned char)p->tok[0]) || strchr("_$%", p->tok[0])) {
            if (minus || d->elem != 8 || !put_address(p, g, at))
                return false;
            continue;
        }
        char text[300];
        snprintf(text, sizeof text, "%s%s", minus ? "-" : "", p->tok);
        if (!put_value(text, d, g->init + at))
            return false;
        next(p);
    }
    return is(p, ";");
}

/* A variable of the module. */
static void variable(struct parser *p)
{
    struct decl d;
    if (!declaration(p, &d)) {
        fail(p, "bad variable");
        return;
    }
    struct global *g = calloc(1, sizeof *g);
    if (!g || !(g->name = strdup(d.name))) {
        free(g);
        fail(p, "out of memory");
        return;
    }
    g->size = d.elem * d.count;
    g->next = p->m->globals;
    p->m->globals = g;
    if (is(p, "=")) {
        g->init = calloc(1, g->size);
        if (!g->init || !initialiser(p, &d, g))
            fail(p, "variable %s: unsupported initialiser", d.name);
    } else if (!is(p, ";")) {
        fail(p, "variable %s: expected ;", d.name);
    }
}

/* A device function: nothing of it matters. */
static void skip_function(struct parser *p)
{
    while (!is(p, "{") && !is(p, ";") && next(p))
        ;
    if (is(p, "{"))
        skip_body(p);
}

/* The whole text, one directive after the other. */
static void unit(struct parser *p)
{
    bool external = false;
    while (!p->failed && next(p)) {
        if (is(p, ".version"))
            p->version = next(p) && isdigit((unsigned char)p->tok[0]);
        else if (is(p, ".extern"))
            external = true;
        else if (is(p, ".entry"))
            entry(p);
        else if (is(p, ".func"))
            skip_function(p);
        else if ((is(p, ".global") || is(p, ".const")) && !external)
            variable(p);
        else if (is(p, "{"))
            skip_body(p);
        if (is(p, ";") || is(p, "}"))
            external = false;
    }
}

/* ptxas takes no other characters, not in comments either. */
static void ascii(struct parser *p)
{
    char *start = p->at;
    while (*p->at && (unsigned char)*p->at < 0x80)
        p->at++;
    if (*p->at)
        fail(p, "a character that is not ASCII");
    p->at = start;
}

CUresult ptx_parse(struct module *m, const char *text, char *msg, size_t len)
{
    struct parser p = {.m = m, .msg = msg, .len = len, .text = strdup(text)};
    if (!p.text)
        return CUDA_ERROR_OUT_OF_MEMORY;
    p.at = p.text;
    ascii(&p);
    blank_comments(p.text);
    unit(&p);
    bool other = !p.failed && !p.version;
    if (other)
        fail(&p, "not PTX: no .version");
    pragmas(&p, text);
    free(p.text);
    if (other)
        return CUDA_ERROR_INVALID_IMAGE;
    return p.failed ? CUDA_ERROR_INVALID_PTX : CUDA_SUCCESS;
}
