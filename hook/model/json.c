/* json.c: reads JSON sequentially, without building a tree. */
#include "model.h"

#include <string.h>

#define MAX_DEPTH 32

bool json_fail(struct json *j, const char *why)
{
    if (!j->why)
        j->why = why;
    return false;
}

static void skip_space(struct json *j)
{
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\t' || *j->at == '\n' || *j->at == '\r'))
        j->at++;
}

/* Returns the next character that is not space; 0 at the end. */
static char peek(struct json *j)
{
    skip_space(j);
    return j->at < j->end && !j->why ? *j->at : 0;
}

/* Skips space and then the character c. Returns false, and skips only the space, if another one follows. */
static bool consume(struct json *j, char c)
{
    if (!c || peek(j) != c)
        return false;
    j->at++;
    return true;
}

bool json_enter(struct json *j, char open)
{
    if (!consume(j, open))
        return json_fail(j, open == '{' ? "expected an object" : "expected a list");
    return ++j->depth <= MAX_DEPTH || json_fail(j, "nested too deeply");
}

bool json_next(struct json *j, char close, bool *first)
{
    if (j->why)
        return false;
    if (consume(j, close)) {
        j->depth--;
        return false;
    }
    bool comma = *first || consume(j, ',');
    *first = false;
    return (comma && peek(j)) || json_fail(j, "expected a comma or the end of the object or list");
}

/* Parses four hexadecimal digits. */
static bool hex4(struct json *j, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        char c = j->at < j->end ? *j->at : 0;
        if (c >= '0' && c <= '9')
            v = v << 4 | (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            v = v << 4 | (uint32_t)((c | 32) - 'a' + 10);
        else
            return json_fail(j, "invalid escape sequence");
    }
    *out = v;
    return true;
}

/* Writes a code point and returns the address after it. A first byte that `more` bytes follow begins with more + 1 one
 * bits and a zero bit. */
static char *put_utf8(char *to, uint32_t c)
{
    if (c < 0x80) {
        *to++ = (char)c;
        return to;
    }
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    *to++ = (char)((0xff00 >> (more + 1) & 0xff) | c >> 6 * more);
    while (more--)
        *to++ = (char)(0x80 | (c >> 6 * more & 0x3f));
    return to;
}

/* Parses the rest of a \u escape. Half of a surrogate pair without the other half becomes U+FFFD. If as_c_string is
 * true, a zero byte is an error, since it would end the C string. */
static bool unicode(struct json *j, bool as_c_string)
{
    uint32_t c, low;
    if (!hex4(j, &c))
        return false;
    if (!c && as_c_string)
        return json_fail(j, "a zero byte in a string");
    if (c >= 0xd800 && c < 0xdc00 && j->end - j->at >= 6 && j->at[0] == '\\' && j->at[1] == 'u') {
        const char *second = j->at;
        j->at += 2;
        if (!hex4(j, &low))
            return false;
        if (low >= 0xdc00 && low < 0xe000)
            c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
        else
            j->at = second; /* a character of its own */
    }
    if (c >= 0xd800 && c < 0xe000)
        c = 0xfffd;
    j->room = put_utf8(j->room, c);
    return true;
}

/* Parses the rest of an escape sequence, after the backslash. */
static bool escape(struct json *j, bool as_c_string)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = j->at < j->end ? *j->at++ : 0;
    if (c == 'u')
        return unicode(j, as_c_string);
    const char *at = c ? strchr(from, c) : NULL;
    if (!at)
        return json_fail(j, "invalid escape sequence");
    *j->room++ = to[at - from];
    return true;
}

static bool string(struct json *j, const char **out, bool as_c_string)
{
    if (!consume(j, '"'))
        return json_fail(j, "expected a string");
    *out = j->room;
    while (j->at < j->end && *j->at != '"') {
        char c = *j->at++;
        if ((unsigned char)c < ' ')
            return json_fail(j, "a control character in a string");
        if (c != '\\')
            *j->room++ = c;
        else if (!escape(j, as_c_string))
            return false;
    }
    if (j->at == j->end)
        return json_fail(j, "unterminated string");
    j->at++;
    *j->room++ = 0; /* it replaces a quote, so there is space */
    return true;
}

bool json_string(struct json *j, const char **out) { return string(j, out, true); }

static bool key(struct json *j, const char **out, bool as_c_string)
{
    return string(j, out, as_c_string) && (consume(j, ':') || json_fail(j, "expected a colon"));
}

bool json_key(struct json *j, const char **out) { return key(j, out, true); }

/* Skips one character of the set. Returns false if none follows. */
static bool consume_one_of(struct json *j, const char *set)
{
    if (j->at == j->end || !*j->at || !strchr(set, *j->at))
        return false;
    j->at++;
    return true;
}

/* Skips digits. Returns false if there is none. */
static bool skip_digits(struct json *j)
{
    const char *began = j->at;
    while (consume_one_of(j, "0123456789"))
        continue;
    return j->at > began;
}

static bool skip_number(struct json *j)
{
    consume_one_of(j, "-");
    bool valid = consume_one_of(j, "0") || skip_digits(j);
    if (valid && consume_one_of(j, "."))
        valid = skip_digits(j);
    if (valid && consume_one_of(j, "eE")) {
        consume_one_of(j, "+-");
        valid = skip_digits(j);
    }
    return valid || json_fail(j, "expected a value");
}

bool json_integer(struct json *j, uint64_t *out)
{
    if (peek(j) < '0' || *j->at > '9')
        return json_fail(j, "expected a number, 0 or more");
    *out = 0;
    if (consume_one_of(j, "0"))
        return true; /* the next read fails if another digit follows */
    for (; j->at < j->end && *j->at >= '0' && *j->at <= '9'; j->at++) {
        uint64_t digit = (uint64_t)(*j->at - '0');
        if (*out > (INT64_MAX - digit) / 10)
            return json_fail(j, "the number is too large");
        *out = 10 * *out + digit;
    }
    return true;
}

/* Skips space and then the word. Returns false if another one follows. */
static bool consume_word(struct json *j, const char *text)
{
    size_t n = strlen(text);
    if (peek(j) && (size_t)(j->end - j->at) >= n && !memcmp(j->at, text, n)) {
        j->at += n;
        return true;
    }
    return false;
}

bool json_boolean(struct json *j, bool *out)
{
    *out = consume_word(j, "true");
    return *out || consume_word(j, "false") || json_fail(j, "expected true or false");
}

/* Skips the members of the object or list that was entered. */
static bool skip_all(struct json *j, char close)
{
    const char *name;
    for (bool first = true; json_next(j, close, &first);)
        if ((close == '}' && !key(j, &name, false)) || !json_skip(j))
            return false;
    return !j->why;
}

bool json_skip(struct json *j)
{
    char c = peek(j), *room = j->room;
    const char *text;
    bool boolean, valid;
    if (c == '{' || c == '[')
        valid = json_enter(j, c) && skip_all(j, c == '{' ? '}' : ']');
    else if (c == '"')
        valid = string(j, &text, false);
    else if (c == 't' || c == 'f')
        valid = json_boolean(j, &boolean);
    else if (c == 'n')
        valid = consume_word(j, "null") || json_fail(j, "expected a value");
    else
        valid = skip_number(j);
    j->room = room; /* the skipped strings are not needed */
    return valid;
}

bool json_end(struct json *j)
{
    skip_space(j);
    return !j->why && (j->at == j->end || json_fail(j, "expected only one value"));
}
