/* An HTTP function that multiplies numbers on a GPU.
 *
 *   POST /         takes numbers, separated by blanks: "2 1 2 3" is answered with "2 4 6",
 *                  the first number times each of the others
 *   GET /healthz   200 when the device is ready
 *
 * It has no knowledge of gfaas: it listens on $PORT and uses the GPU that the driver shows. Every
 * request has its own connection and thread. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "gpu.h"

#define MOST_BYTES (16 << 20) /* of a body */
#define IDLE_SECONDS 30
#define NUMBER_CHARS 16 /* a float as text, with the blank after it */

struct request {
	char head[16384]; /* the first line and the headers */
	char *body;       /* followed by a zero byte */
	size_t length;
};

static const char *reason(int status)
{
	switch (status) {
	case 200: return "OK";
	case 400: return "Bad Request";
	case 404: return "Not Found";
	case 411: return "Length Required";
	case 413: return "Content Too Large";
	case 431: return "Request Header Fields Too Large";
	default: return "Internal Server Error";
	}
}

static int send_all(int fd, const char *at, size_t n)
{
	while (n) {
		ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			return -1;
		at += sent;
		n -= (size_t)sent;
	}
	return 0;
}

static void answer(int fd, int status, const char *text)
{
	char head[256];
	int n = snprintf(head, sizeof head,
			 "HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
			 status, reason(status), strlen(text));

	if (send_all(fd, head, (size_t)n) == 0)
		send_all(fd, text, strlen(text));
}

static ssize_t receive(int fd, char *to, size_t n)
{
	ssize_t got;

	do
		got = recv(fd, to, n, 0);
	while (got < 0 && errno == EINTR);
	return got;
}

/* Returns the length of the body according to the header, or -1 if there is none. */
static long long content_length(const char *head)
{
	const char *line = strcasestr(head, "\r\nContent-Length:");
	char *end;

	if (!line)
		return -1;
	errno = 0;
	long long n = strtoll(strchr(line, ':') + 1, &end, 10);
	return errno || n < 0 || *end != '\r' ? -1 : n;
}

/* Reads the body. Its first `came` bytes arrived with the head, at `begin`. */
static int read_body(int fd, struct request *r, const char *begin, size_t came)
{
	long long length = content_length(r->head);

	if (length < 0)
		return 411;
	if (length > MOST_BYTES)
		return 413;
	r->length = (size_t)length;
	r->body = calloc(1, r->length + 1);
	if (!r->body)
		return 500;
	if (came > r->length)
		came = r->length;
	memcpy(r->body, begin, came);
	while (came < r->length) {
		ssize_t n = receive(fd, r->body + came, r->length - came);
		if (n <= 0)
			return -1;
		came += (size_t)n;
	}
	return 0;
}

/* Returns 0, the HTTP status of an error, or -1 if the caller has disconnected. */
static int read_request(int fd, struct request *r)
{
	size_t n = 0;
	char *end;

	do {
		if (n == sizeof r->head - 1)
			return 431;
		ssize_t got = receive(fd, r->head + n, sizeof r->head - 1 - n);
		if (got <= 0)
			return -1;
		n += (size_t)got;
		r->head[n] = 0;
		end = strstr(r->head, "\r\n\r\n");
	} while (!end);
	const char *begin = end + 4;
	end[2] = 0; /* keeps the line end of the last header */
	return strncmp(r->head, "POST ", 5) ? 0 : read_body(fd, r, begin, n - (size_t)(begin - r->head));
}

/* Reads the numbers of a text. Returns their count, or -1 if the text has anything else. */
static long read_numbers(const char *text, float *to)
{
	long n = 0;

	for (;;) {
		text += strspn(text, " \t\r\n");
		if (!*text)
			return n;
		char *end;
		float v = strtof(text, &end);
		if (end == text || !isfinite(v) || (*end && !strchr(" \t\r\n", *end)))
			return -1;
		to[n++] = v;
		text = end;
	}
}

/* Returns the answer to a body: numbers as text, which the caller frees. On an error it returns
 * NULL and sets status and fault. */
static char *scale(const char *body, size_t length, int *status, const char **fault)
{
	float *x = malloc((length / 2 + 1) * sizeof *x), *y = malloc((length / 2 + 1) * sizeof *y);
	long n = x && y ? read_numbers(body, x) : 0;
	char *text = NULL, *at;

	*status = 400;
	*fault = "expected two numbers or more, like 2 1 2 3\n";
	if (n >= 2) {
		*status = 500;
		*fault = gpu_scale(x[0], x + 1, y, (unsigned)(n - 1));
		if (!*fault && (at = text = malloc((size_t)n * NUMBER_CHARS)))
			for (long i = 0; i < n - 1; i++)
				at += sprintf(at, "%.9g%c", y[i], i < n - 2 ? ' ' : '\n');
	}
	free(x);
	free(y);
	return text;
}

static void *serve(void *arg)
{
	const int fd = (int)(intptr_t)arg;
	struct request *r = calloc(1, sizeof *r);
	int status = r ? read_request(fd, r) : -1;

	if (status > 0) {
		answer(fd, status, "");
	} else if (status == 0 && !strncmp(r->head, "POST / ", 7)) {
		const char *fault;
		char *text = scale(r->body, r->length, &status, &fault);
		answer(fd, text ? 200 : status, text ? text : fault ? fault : "out of memory");
		free(text);
	} else if (status == 0) {
		int ready = !strncmp(r->head, "GET /healthz ", 13);
		answer(fd, ready ? 200 : 404, ready ? "ready\n" : "expected POST / or GET /healthz\n");
	}
	if (r)
		free(r->body);
	free(r);
	close(fd);
	return NULL;
}

static int listen_on(const char *host, int port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	if (inet_pton(AF_INET, host, &at.sin_addr) != 1)
		errno = EINVAL;
	else if (fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) &&
		 !bind(fd, (struct sockaddr *)&at, sizeof at) && !listen(fd, 128))
		return fd;
	fprintf(stderr, "listen on %s:%d: %s\n", host, port, strerror(errno));
	return -1;
}

int main(void)
{
	const char *host = getenv("HOST"), *port = getenv("PORT"), *fault = gpu_open();
	const struct timeval idle = {.tv_sec = IDLE_SECONDS};
	pthread_attr_t detached;

	if (fault) {
		fprintf(stderr, "no GPU: %s\n", fault);
		return 1;
	}
	int listener = listen_on(host ? host : "127.0.0.1", port ? atoi(port) : 8080);
	if (listener < 0)
		return 1;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	for (;;) {
		pthread_t thread;
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0)
			continue;
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &idle, sizeof idle);
		if (pthread_create(&thread, &detached, serve, (void *)(intptr_t)fd))
			close(fd);
	}
}
