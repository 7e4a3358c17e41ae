/* ptx.c: parses PTX as far as the simulator needs it: kernels with the layout of their parameters, variables,
 * and comments that set the cost and the operation of a kernel,
 *
 *   // gfaas-sim: NAME block_us=100 op=vadd_f32
 *
 * anywhere in the text, with one setting or both. */
#include "module.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PRAGMA "gfaas-sim:"

struct parser {
    struct module *m;
    char *text, *at; /* the text without comments, and the current position */
    char tok[256];   /* the last token */
    char *msg;
    size_t len;
    bool failed, version;
};

/* ---- tokens ---- */

/* Stores the first error, with its line. */
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

/* Reads the next token into p->tok: a word with its dots, a string, or another character. Returns false at
 * the end. */
static bool next_token(struct parser *p)
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

static bool token_is(const struct parser *p, const char *s)
{
    return !strcmp(p->tok, s);
}

/* Replaces comments by spaces, without moving lines. */
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

/* ---- cost and operation of kernels, from comments ---- */

struct func *module_func(const struct module *m, const char *name)
{
    for (struct func *f = m->funcs; f; f = f->next)
        if (!strcmp(f->name, name))
            return f;
    return NULL;
}

/* Parses one KEY=VALUE of a comment. */
static void parse_setting(struct parser *p, struct func *f, char *word)
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
            fail(p, "op=%s: expected vadd_f32, saxpy_f32, sgemm_f32, dgemm_f64, cgemm_c64, jacobi_f32, distances_f32, nearest_f32, relu_f32 or fault", value);
        else if (!ops_fits(f->op, f))
            fail(p, "kernel %s does not have the parameters of %s", f->name, value);
    } else {
        fail(p, "%s: expected block_us=N or op=NAME", word);
    }
}

/* Parses one comment about a kernel. */
static void parse_comment(struct parser *p, const char *line, size_t n)
{
    char buf[512], *save = NULL;
    snprintf(buf, sizeof buf, "%.*s", (int)(n < 511 ? n : 511), line);
    char *word = strtok_r(buf, " \t\r", &save);
    struct func *f = word ? module_func(p->m, word) : NULL;
    if (!f) {
        fail(p, "gfaas-sim: no kernel called %s", word ? word : "(nothing)");
        return;
    }
    while ((word = strtok_r(NULL, " \t\r", &save)) && !p->failed)
        parse_setting(p, f, word);
}

/* Calls pragma for each comment of that form. p->at points to the same place in the text without comments,
 * which has the same length. */
static void parse_comments(struct parser *p, const char *text)
{
    for (const char *c = text; (c = strstr(c, "//")) && !p->failed; ) {
        size_t n = strcspn(c, "\n");
        const char *body = c + 2;
        while (*body == ' ' || *body == '\t')
            body++;
        p->at = p->text + (c - text);
        if (!strncmp(body, PRAGMA, strlen(PRAGMA)))
            parse_comment(p, body + strlen(PRAGMA), n - (size_t)(body + strlen(PRAGMA) - c));
        c += n;
    }
}

/* ---- kernels and variables ---- */

/* Returns the bytes of a scalar type, or 0 if the type is unknown. */
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

/* Parses ".align 8 .b8 name[16]" and stops at the token after it. */
static bool parse_declaration(struct parser *p, struct decl *d)
{
    memset(d, 0, sizeof *d);
    d->count = 1;
    for (; p->tok[0] == '.'; next_token(p)) {
        size_t size = type_size(p->tok);
        if (token_is(p, ".align")) {
            next_token(p);
            size_t align = strtoul(p->tok, NULL, 10);
            d->align = d->elem ? d->align : align; /* after .ptr, the alignment of the target */
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
    next_token(p);
    while (token_is(p, "[")) {
        next_token(p);
        char *end;
        unsigned long n = strtoul(p->tok, &end, 10);
        if (!n || *end || n > (1ul << 30) || d->count > (1ul << 34) / n)
            return false;
        d->count *= n;
        next_token(p);
        if (!token_is(p, "]"))
            return false;
        next_token(p);
    }
    if (d->align < d->elem)
        d->align = d->elem;
    return true;
}

/* Parses a kernel's parameter list: the offset and the size of each parameter. */
static void parse_parameters(struct parser *p, struct func *f)
{
    struct decl d;
    size_t offset = 0;
    next_token(p);
    while (!p->failed && !token_is(p, ")")) {
        if (!token_is(p, ".param") || !parse_declaration(p, &d)) {
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
        if (token_is(p, ","))
            next_token(p);
        else if (!token_is(p, ")"))
            fail(p, "kernel %s: expected , or ) after parameter %s", f->name, d.name);
    }
    next_token(p);
}

/* Skips a body in braces. */
static void skip_body(struct parser *p)
{
    int depth = 0;
    do {
        depth += token_is(p, "{") - token_is(p, "}");
    } while (depth > 0 && next_token(p));
    if (depth)
        fail(p, "} missing");
}

/* Parses a kernel's name and parameters, and skips its body. */
static void parse_entry(struct parser *p)
{
    if (!next_token(p) || !(isalpha((unsigned char)p->tok[0]) || strchr("_$%", p->tok[0]))) {
        fail(p, "expected a name after .entry");
        return;
    }
    struct func *f = module_func(p->m, p->tok);
    bool declared = f != NULL;
    struct func again = {0};
    if (declared) {
        again.name = f->name; /* declared before: skip the parameters of this declaration */
        f = &again;
    } else {
        f = module_add_func(p->m, p->tok);
        if (!f) {
            fail(p, "out of memory");
            return;
        }
    }
    next_token(p);
    if (token_is(p, "("))
        parse_parameters(p, f);
    while (!p->failed && !token_is(p, "{") && !token_is(p, ";"))
        if (!next_token(p))
            fail(p, "kernel %s: no body", f->name);
    if (!p->failed && token_is(p, "{"))
        skip_body(p);
}

/* Parses one value of an initializer into the type's bytes. */
static bool parse_value(const char *tok, const struct decl *d, unsigned char *out)
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

/* Parses an address as a value: sym, sym+8, generic(sym), generic(sym)+8. Stops at the token after it. */
static bool parse_address(struct parser *p, struct global *g, size_t at)
{
    struct address *a = calloc(1, sizeof *a);
    bool generic = token_is(p, "generic");
    if (!a)
        return false;
    a->next = g->addresses;
    g->addresses = a;
    a->at = at;
    if (generic && !(next_token(p) && token_is(p, "(") && next_token(p)))
        return false;
    a->symbol = strdup(p->tok);
    if (!a->symbol || !next_token(p) || (generic && !(token_is(p, ")") && next_token(p))))
        return false;
    if (token_is(p, "+")) {
        next_token(p);
        char *end;
        a->plus = strtoull(p->tok, &end, 0);
        if (!isdigit((unsigned char)p->tok[0]) || *end)
            return false;
        next_token(p);
    }
    return true;
}

/* Parses the values of a variable, in any grouping. */
static bool parse_initialiser(struct parser *p, const struct decl *d, struct global *g)
{
    size_t i = 0;
    for (next_token(p); p->tok[0] && !token_is(p, ";");) {
        if (token_is(p, "{") || token_is(p, "}") || token_is(p, ",")) {
            next_token(p);
            continue;
        }
        bool minus = token_is(p, "-");
        if (minus)
            next_token(p);
        const size_t at = i * d->elem;
        if (i++ == d->count)
            return false;
        if (isalpha((unsigned char)p->tok[0]) || strchr("_$%", p->tok[0])) {
            if (minus || d->elem != 8 || !parse_address(p, g, at))
                return false;
            continue;
        }
        char text[300];
        snprintf(text, sizeof text, "%s%s", minus ? "-" : "", p->tok);
        if (!parse_value(text, d, g->init + at))
            return false;
        next_token(p);
    }
    return token_is(p, ";");
}

/* Parses a variable of the module. */
static void parse_variable(struct parser *p)
{
    struct decl d;
    if (!parse_declaration(p, &d)) {
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
    if (token_is(p, "=")) {
        g->init = calloc(1, g->size);
        if (!g->init || !parse_initialiser(p, &d, g))
            fail(p, "variable %s: unsupported initialiser", d.name);
    } else if (!token_is(p, ";")) {
        fail(p, "variable %s: expected ;", d.name);
    }
}

/* Skips a device function. */
static void skip_function(struct parser *p)
{
    while (!token_is(p, "{") && !token_is(p, ";") && next_token(p))
        ;
    if (token_is(p, "{"))
        skip_body(p);
}

/* Parses the whole text, directive by directive. */
static void parse_unit(struct parser *p)
{
    bool external = false;
    while (!p->failed && next_token(p)) {
        if (token_is(p, ".version"))
            p->version = next_token(p) && isdigit((unsigned char)p->tok[0]);
        else if (token_is(p, ".extern"))
            external = true;
        else if (token_is(p, ".entry"))
            parse_entry(p);
        else if (token_is(p, ".func"))
            skip_function(p);
        else if ((token_is(p, ".global") || token_is(p, ".const")) && !external)
            parse_variable(p);
        else if (token_is(p, "{"))
            skip_body(p);
        if (token_is(p, ";") || token_is(p, "}"))
            external = false;
    }
}

/* Like ptxas, refuses characters other than ASCII, also in comments. */
static void check_ascii(struct parser *p)
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
    check_ascii(&p);
    blank_comments(p.text);
    parse_unit(&p);
    bool other = !p.failed && !p.version;
    if (other)
        fail(&p, "not PTX: no .version");
    parse_comments(&p, text);
    free(p.text);
    if (other)
        return CUDA_ERROR_INVALID_IMAGE;
    return p.failed ? CUDA_ERROR_INVALID_PTX : CUDA_SUCCESS;
}
