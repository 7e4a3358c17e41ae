/* Reading HTTP requests from a connection. */
#include "read.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

/* Makes at least one unread byte available. Returns 0 at the end of the connection. */
static int fill(struct reader *r)
{
	ssize_t n;

	if (r->start < r->end)
		return 1;
	do
		n = read(r->fd, r->buffer, sizeof r->buffer);
	while (n < 0 && errno == EINTR);
	r->start = 0;
	r->end = n > 0 ? (size_t)n : 0;
	return n > 0;
}

/* Reads a line without its end. Returns -1 if there is no line, or if it is too long. */
static int read_line(struct reader *r, char *line, size_t size)
{
	size_t n = 0;

	while (fill(r)) {
		char c = r->buffer[r->start++];
		if (c == '\n') {
			if (n && line[n - 1] == '\r')
				n--;
			line[n] = 0;
			return 0;
		}
		if (n + 1 == size)
			return -1;
		line[n++] = c;
	}
	return -1;
}

static int read_exactly(struct reader *r, char *to, size_t n)
{
	while (n) {
		if (!fill(r))
			return -1;
		size_t part = r->end - r->start < n ? r->end - r->start : n;
		memcpy(to, r->buffer + r->start, part);
		r->start += part;
		to += part;
		n -= part;
	}
	return 0;
}

/* Makes room for n more bytes of body and a zero byte. Returns 0 or an HTTP status. */
static int grow(struct http_request *request, size_t n)
{
	char *body;

	if (n > HTTP_MAX_BODY - request->length)
		return 413;
	body = realloc(request->body, request->length + n + 1);
	if (!body)
		return 503;
	request->body = body;
	request->body[request->length] = 0;
	return 0;
}

static int read_part(struct reader *r, struct http_request *request, size_t n)
{
	int status = grow(request, n);

	if (status)
		return status;
	if (read_exactly(r, request->body + request->length, n))
		return -1;
	request->length += n;
	request->body[request->length] = 0;
	return 0;
}

static int read_chunks(struct reader *r, struct http_request *request)
{
	char line[1024], *end;

	for (;;) {
		if (read_line(r, line, sizeof line))
			return -1;
		unsigned long n = strtoul(line, &end, 16);
		if (end == line || line[0] == '-')
			return 400;
		if (n == 0)
			break;
		int status = read_part(r, request, n);
		if (status)
			return status;
		if (read_line(r, line, sizeof line) || line[0])
			return 400;
	}
	do
		if (read_line(r, line, sizeof line))
			return -1;
	while (line[0]); /* trailers */
	return 0;
}

/* The framing of the body according to the headers. */
struct framing {
	unsigned long length;
	int chunked;
};

static int read_header(char *line, struct http_request *request, struct framing *framing)
{
	char *value = strchr(line, ':'), *end;

	if (!value)
		return 400;
	*value++ = 0;
	value += strspn(value, " \t");
	for (end = value + strlen(value); end > value && strchr(" \t", end[-1]); end--)
		end[-1] = 0;
	if (!strcasecmp(line, "Content-Length")) {
		framing->length = strtoul(value, &end, 10);
		if (end == value || *end || *value == '-')
			return 400;
	} else if (!strcasecmp(line, "Transfer-Encoding")) {
		framing->chunked = !strcasecmp(value, "chunked");
		if (!framing->chunked)
			return 501;
	} else if (!strcasecmp(line, "Connection")) {
		if (!strcasecmp(value, "close"))
			request->keep_alive = 0;
		else if (!strcasecmp(value, "keep-alive"))
			request->keep_alive = 1;
	} else if (!strcasecmp(line, "Expect")) {
		request->expects = !strcasecmp(value, "100-continue");
	} else if (!strcasecmp(line, "X-Gfaas-Batch")) {
		request->batch = strtol(value, &end, 10);
		if (end == value || *end || request->batch < 0)
			request->batch = 0;
	}
	return 0;
}

static int read_request_line(struct reader *r, struct http_request *request)
{
	char line[1024], version[16];
	int status = read_line(r, line, sizeof line);

	if (!status && !line[0]) /* some clients end a body with an empty line */
		status = read_line(r, line, sizeof line);
	if (status)
		return -1;
	if (sscanf(line, "%7s %255s %15s", request->method, request->path, version) != 3 ||
	    strncmp(version, "HTTP/1.", 7))
		return 400;
	request->path[strcspn(request->path, "?")] = 0;
	request->keep_alive = strcmp(version, "HTTP/1.0") != 0;
	return 0;
}

int read_request(struct reader *r, struct http_request *request)
{
	static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
	const int most_headers = 100;
	struct framing framing = {0};
	char line[8192];
	int status;

	memset(request, 0, sizeof *request);
	request->batch = 1;
	status = read_request_line(r, request);
	for (int i = 0; !status; i++) {
		if (read_line(r, line, sizeof line))
			return -1;
		if (!line[0])
			break;
		status = i < most_headers ? read_header(line, request, &framing) : 431;
	}
	if (!status)
		status = grow(request, 0);
	if (status)
		return status;
	if (request->expects && send(r->fd, go_on, sizeof go_on - 1, MSG_NOSIGNAL) < 0)
		return -1;
	if (framing.chunked)
		return read_chunks(r, request);
	return read_part(r, request, framing.length);
}
