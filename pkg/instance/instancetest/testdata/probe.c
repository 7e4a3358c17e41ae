/*
 * The instance that the conformance suite starts: a server on $PORT that
 * answers GET /env/NAME with that variable of its environment (404 when it is
 * not set) and anything else with "ok".
 *
 * PROBE_STUBBORN=1 ignores SIGTERM
 * PROBE_CHILD=1    has a child that ignores SIGTERM and keeps the port open
 * PROBE_EXIT=N     prints "exiting" and ends at once with status N
 * PROBE_LONG=N     prints a line of N times x before that
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void on_term(int sig)
{
	(void)sig;
	ssize_t n = write(1, "bye\n", 4);
	(void)n;
	_exit(0);
}

static int listen_on(int port)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
	int one = 1;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	addr.sin_addr.s_addr = htonl(INADDR_ANY);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
	    bind(fd, (struct sockaddr *)&addr, sizeof addr) || listen(fd, 16)) {
		perror("listen");
		exit(1);
	}
	return fd;
}

static void answer(int fd)
{
	static const char prefix[] = "GET /env/";
	char request[4096], name[256];
	const char *body = "ok", *status = "200 OK";
	ssize_t n = read(fd, request, sizeof request - 1);

	if (n <= 0)
		return;
	request[n] = 0;
	if (!strncmp(request, prefix, sizeof prefix - 1)) {
		snprintf(name, sizeof name, "%.*s", (int)strcspn(request + sizeof prefix - 1, " \r\n"),
			 request + sizeof prefix - 1);
		body = getenv(name);
		if (!body) {
			body = "unset";
			status = "404 Not Found";
		}
	}
	dprintf(fd, "HTTP/1.1 %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s", status, strlen(body), body);
}

int main(void)
{
	const char *port = getenv("PORT"), *status = getenv("PROBE_EXIT");
	int fd = listen_on(port ? atoi(port) : 0);

	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGTERM, getenv("PROBE_STUBBORN") ? SIG_IGN : on_term);
	if (getenv("PROBE_CHILD") && fork() == 0) {
		signal(SIGTERM, SIG_IGN);
		for (;;)
			pause();
	}
	for (int n = getenv("PROBE_LONG") ? atoi(getenv("PROBE_LONG")) : 0; n > 0; n--)
		fputs(n > 1 ? "x" : "x\n", stdout);
	if (status) {
		puts("exiting");
		return atoi(status);
	}
	for (int i = 1; i <= 20; i++)
		printf("line %d\n", i);
	puts("listening");
	for (;;) {
		int client = accept(fd, NULL, NULL);
		if (client < 0)
			continue;
		answer(client);
		close(client);
	}
}
