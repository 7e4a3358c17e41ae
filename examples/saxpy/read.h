/* Reading HTTP requests from a connection. */
#ifndef SAXPY_READ_H
#define SAXPY_READ_H

#include "http.h"

struct reader {
	int fd;
	size_t start, end; /* the unread part of the buffer */
	char buffer[4096];
};

/* Reads one request. The caller frees its body, whatever the result. Returns 0 if there is a
 * request, -1 if the connection ended, or the HTTP status with which to refuse it. */
int read_request(struct reader *r, struct http_request *request);

#endif
