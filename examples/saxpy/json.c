#include "json.h"

#include <stdlib.h>
#include <string.h>

static const char *skip(const char *s)
{
	return s + strspn(s, " \t\r\n");
}

/* Reads one "name": number. Returns NULL if it is malformed. */
static const char *read_field(const char *s, const struct json_field *fields, int count)
{
	const char *name = s + 1, *shut;
	char *end;
	double value;

	if (*s != '"' || !(shut = strchr(name, '"')))
		return NULL;
	s = skip(shut + 1);
	if (*s != ':')
		return NULL;
	s = skip(s + 1);
	if (!strchr("-0123456789", *s) || !*s)
		return NULL;
	value = strtod(s, &end);
	if (end == s)
		return NULL;
	for (int i = 0; i < count; i++)
		if (strlen(fields[i].name) == (size_t)(shut - name) && !memcmp(fields[i].name, name, (size_t)(shut - name)))
			*fields[i].value = value;
	return skip(end);
}

int json_read(const char *text, const struct json_field *fields, int count)
{
	const char *s = skip(text);

	if (!*s)
		return 0;
	if (*s++ != '{')
		return -1;
	s = skip(s);
	if (*s == '}')
		return *skip(s + 1) ? -1 : 0;
	for (;;) {
		s = read_field(s, fields, count);
		if (!s)
			return -1;
		if (*s == '}')
			return *skip(s + 1) ? -1 : 0;
		if (*s != ',')
			return -1;
		s = skip(s + 1);
	}
}
