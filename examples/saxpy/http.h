/* A small HTTP/1.1 server: one thread for each connection, keep-alive, bodies
 * with a length or in chunks. */
#ifndef SAXPY_HTTP_H
#define SAXPY_HTTP_H

#include <stddef.h>

#define HTTP_MAX_BODY (1u << 20)

struct http_request {
	char method[8];
	char path[256]; /* without the query */
	long batch;     /* X-Gfaas-Batch; 1 if absent, 0 if it is not a number */
	char *body;     /* ends in a zero byte */
	size_t length;
	int keep_alive;
	int expects; /* the client waits for 100 Continue */
};

struct http_response {
	int status;
	const char *type;  /* of the body */
	char headers[256]; /* further header lines, each ending in \r\n */
	char body[1024];
};

/* Fills in a response. Called from many threads at once. */
typedef void http_handler(const struct http_request *request, struct http_response *response);

/* Serves on host:port until SIGTERM or SIGINT, which must be blocked in every thread. Returns 0
 * after a signal if all answers were sent, 1 if that took longer than half a second, or -1 with a
 * message if it cannot listen. */
int http_serve(const char *host, int port, http_handler *handler);

#endif
