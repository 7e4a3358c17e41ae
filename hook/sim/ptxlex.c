/* ptxlex.c: PTX text as tokens. */
#include "ptx.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void ptx_fail(struct parser *p, const char *fmt, ...)
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

bool ptx_word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%';
}

/* Reads the next token: a word with its dots, a string, or one other character. */
bool ptx_next(struct parser *p)
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
    if (!ptx_word_char(*p->at)) {
        p->tok[n++] = *p->at++;
    } else {
        for (; ptx_word_char(*p->at); p->at++)
            if (n < sizeof p->tok - 1)
                p->tok[n++] = *p->at;
    }
    p->tok[n] = 0;
    return true;
}

bool ptx_is(const struct parser *p, const char *s)
{
    return !strcmp(p->tok, s);
}

void ptx_blank_comments(char *s)
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
