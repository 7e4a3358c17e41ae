#define _GNU_SOURCE
#include "http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "read.h"

#define MOST_CONNECTIONS 512
#define IDLE_SECONDS 120

/* Counts connections and answers in progress, for the limit and for a clean end. */
static struct {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	int connections;
	int answering;
	int closing; /* no further requests are answered */
} load = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static http_handler *handle;

static void count(int *what, int change)
{
	pthread_mutex_lock(&load.mutex);
	*what += change;
	pthread_cond_broadcast(&load.changed);
	pthread_mutex_unlock(&load.mutex);
}

/* Begins an answer. Returns 0 if the server is closing. */
static int begin_answer(void)
{
	int open;

	pthread_mutex_lock(&load.mutex);
	open = !load.closing;
	load.answering += open;
	pthread_mutex_unlock(&load.mutex);
	return open;
}

static const char *reason(int status)
{
	switch (status) {
	case 200: return "OK";
	case 400: return "Bad Request";
	case 404: return "Not Found";
	case 405: return "Method Not Allowed";
	case 413: return "Content Too Large";
	case 431: return "Request Header Fields Too Large";
	case 501: return "Not Implemented";
	case 503: return "Service Unavailable";
	default: return "Internal Server Error";
	}
}

static int send_response(int fd, const struct http_request *request, const struct http_response *response)
{
	char text[2048];
	int head = strcmp(request->method, "HEAD") == 0;
	int n = snprintf(text, sizeof text, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s%s\r\n%s",
			 response->status, reason(response->status), response->type, strlen(response->body),
			 response->headers, request->keep_alive ? "" : "Connection: close\r\n", head ? "" : response->body);

	for (const char *at = text; n > 0;) {
		ssize_t sent = send(fd, at, (size_t)n, MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			return -1;
		at += sent;
		n -= (int)sent;
	}
	return 0;
}

static void *serve_connection(void *arg)
{
	struct reader *r = arg;
	struct http_request request;
	struct http_response response;
	int going = 1;

	while (going) {
		memset(&response, 0, sizeof response);
		response.type = "application/json";
		int status = read_request(r, &request);
		if (status < 0 || !begin_answer()) {
			free(request.body);
			break;
		}
		if (status) {
			request.keep_alive = 0; /* the start of the next request is unknown */
			response.status = status;
			snprintf(response.body, sizeof response.body, "{\"error\":\"%s\"}\n", reason(status));
		} else {
			handle(&request, &response);
		}
		going = send_response(r->fd, &request, &response) == 0 && request.keep_alive;
		count(&load.answering, -1);
		free(request.body);
	}
	close(r->fd);
	free(r);
	count(&load.connections, -1);
	return NULL;
}

/* Starts a thread for a connection. Takes ownership of the descriptor. */
static void start_connection(int fd)
{
	struct timeval idle = {.tv_sec = IDLE_SECONDS};
	struct reader *r = calloc(1, sizeof *r);
	pthread_attr_t attr;
	pthread_t thread;
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &idle, sizeof idle);
	if (!r) {
		close(fd);
		return;
	}
	r->fd = fd;
	count(&load.connections, 1);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attr, serve_connection, r)) {
		close(fd);
		free(r);
		count(&load.connections, -1);
	}
	pthread_attr_destroy(&attr);
}

static int listen_on(const char *host, int port)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int one = 1, fd;

	if (inet_pton(AF_INET, host, &addr.sin_addr) != 1) {
		fprintf(stderr, "%s is not an IPv4 address\n", host);
		return -1;
	}
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
	    bind(fd, (struct sockaddr *)&addr, sizeof addr) || listen(fd, 128)) {
		fprintf(stderr, "listen on %s:%d: %s\n", host, port, strerror(errno));
		if (fd >= 0)
			close(fd);
		return -1;
	}
	return fd;
}

/* Waits until the count is at most limit. Returns -1 if the deadline passes first; NULL is no
 * deadline. */
static int wait_for(const int *what, int limit, const struct timespec *deadline)
{
	int failed = 0;

	pthread_mutex_lock(&load.mutex);
	while (*what > limit && !failed)
		failed = deadline ? pthread_cond_timedwait(&load.changed, &load.mutex, deadline)
				  : pthread_cond_wait(&load.changed, &load.mutex);
	pthread_mutex_unlock(&load.mutex);
	return failed ? -1 : 0;
}

int http_serve(const char *host, int port, http_handler *handler)
{
	const long half_a_second = 500000000;
	struct timespec deadline;
	sigset_t ends;
	int fd, signals;

	handle = handler;
	sigemptyset(&ends);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGINT);
	signals = signalfd(-1, &ends, SFD_CLOEXEC);
	fd = listen_on(host, port);
	if (fd < 0 || signals < 0)
		return -1;
	printf("saxpy: serving on %s:%d\n", host, port);
	for (;;) {
		struct pollfd fds[] = {{.fd = signals, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
		if (poll(fds, 2, -1) < 0)
			continue;
		if (fds[0].revents)
			break;
		int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
		if (client < 0)
			continue;
		start_connection(client);
		wait_for(&load.connections, MOST_CONNECTIONS, NULL);
	}
	close(fd);
	count(&load.closing, 1);
	clock_gettime(CLOCK_REALTIME, &deadline);
	deadline.tv_nsec += half_a_second;
	deadline.tv_sec += deadline.tv_nsec / 1000000000;
	deadline.tv_nsec %= 1000000000;
	return wait_for(&load.answering, 0, &deadline) ? 1 : 0;
}
