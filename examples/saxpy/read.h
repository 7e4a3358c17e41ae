/* Reading HTTP requests from a connection. */
#ifndef SAXPY_READ_H
#define SAXPY_READ_H

#include "http.h"

struct reader {
	int fd;
	size_t start, end; /* what is unread in the buffer */
	char buffer[4096];
};

/* Reads one request; its body is to be freed, whatever the result. 0 when it
 * is there, -1 when the connection ended, else the status to refuse it with. */
int read_request(struct reader *r, struct http_request *request);

#endif
