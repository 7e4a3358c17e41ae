/* Reading flat JSON objects of numbers. */
#ifndef SAXPY_JSON_H
#define SAXPY_JSON_H

struct json_field {
	const char *name;
	double *value; /* unchanged if the object lacks the name */
};

/* Reads an object whose values are numbers. Blank text counts as an empty object, and unknown names
 * are skipped. Returns 0, or -1 if the text is malformed. */
int json_read(const char *text, const struct json_field *fields, int count);

#endif
