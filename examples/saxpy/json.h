/* Reading flat JSON objects of numbers. */
#ifndef SAXPY_JSON_H
#define SAXPY_JSON_H

struct json_field {
	const char *name;
	double *value; /* kept when the object does not have it */
};

/* Reads an object whose values are numbers; nothing but blanks is an empty
 * one, names that are not asked for are skipped. 0, or -1 when it is malformed. */
int json_read(const char *text, const struct json_field *fields, int count);

#endif
