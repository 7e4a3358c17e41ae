/*
 * The function that the scripts start: an HTTP server on $PORT, one request a
 * connection. GET /healthz is answered 200, unless NEVER_READY is set: then
 * 503. POST is answered with the body it came with and the status of the
 * header "X-Status", after as many milliseconds as "X-Sleep" says; "X-Die: N"
 * has it say so and end with status N; "X-Print: 1" prints the body; "X-Model: NAME"
 * is answered with the first tensor of that model, which then stays mapped, or 500
 * and why there is none.
 *
 * "X-Cut: N" has it end with status N in the midst of its answer.
 *
 * START_MS=N has it listen only then, WARM_MS=N is what X-Sleep is by default. With
 * STUBBORN set it does not end at SIGTERM.
 *
 * FAIL=N prints two lines and ends with status N instead of serving.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* As the first process of a container it would not end at SIGTERM unasked. */
static void on_term(int sig)
{
	(void)sig;
	_exit(0);
}

static char request[1 << 22];

static long header(const char *name, long otherwise)
{
	const char *at = strcasestr(request, name);

	return at ? atol(at + strlen(name)) : otherwise;
}

static long setting(const char *name)
{
	const char *value = getenv(name);

	return value ? atol(value) : 0;
}

/* Reads one request and returns where its body starts. */
static char *receive(int fd, long *length)
{
	size_t have = 0;
	char *body = NULL;

	*length = 0;
	while (have + 1 < sizeof request) {
		ssize_t n = read(fd, request + have, sizeof request - 1 - have);

		if (n <= 0)
			return NULL;
		have += (size_t)n;
		request[have] = 0;
		if (!body && (body = strstr(request, "\r\n\r\n"))) {
			body += 4;
			*length = header("\r\nContent-Length:", 0);
		}
		if (body && have - (size_t)(body - request) >= (size_t)*length)
			return body;
	}
	return NULL;
}

/* What the client library has of a model, as its header says. */
struct tensor {
	const char *name, *dtype;
	int32_t ndim;
	const int64_t *shape;
	uint64_t ptr, bytes;
};

/* Reads the first tensor of a model; or says why not, and the status is 500. */
static char *read_model(const char *name, long *length, long *status)
{
	static char why[512];
	void *driver = dlopen("libcuda.so.1", RTLD_NOW), *lib = dlopen("libgfaas-model.so", RTLD_NOW), *context, *model;
	struct tensor t;
	int r;

	*status = 500;
	snprintf(why, sizeof why, "%s", driver && lib ? "the driver fails" : dlerror());
	*length = (long)strlen(why);
	if (!driver || !lib || ((int (*)(unsigned))dlsym(driver, "cuInit"))(0) ||
	    ((int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0) ||
	    ((int (*)(void *))dlsym(driver, "cuCtxSetCurrent"))(context))
		return why;
	r = ((int (*)(const char *, const char *, void **))dlsym(lib, "gfaas_model_open"))(name, NULL, &model);
	if (r || (r = ((int (*)(void *, size_t, struct tensor *))dlsym(lib, "gfaas_model_tensor"))(model, 0, &t))) {
		*length = snprintf(why, sizeof why, "%d %s", r, ((const char *(*)(void))dlsym(lib, "gfaas_model_error"))());
		return why;
	}
	char *bytes = malloc(t.bytes);
	if (!bytes || ((int (*)(void *, uint64_t, size_t))dlsym(driver, "cuMemcpyDtoH_v2"))(bytes, t.ptr, t.bytes))
		return why;
	*length = (long)t.bytes;
	*status = 200;
	return bytes;
}

static void answer(int fd)
{
	char head[256], name[256];
	const char *wanted;
	long length, status = 200;
	char *body = receive(fd, &length);

	if (!body)
		return;
	if (!strncmp(request, "GET ", 4)) {
		status = getenv("NEVER_READY") ? 503 : 200;
		length = 0;
	} else {
		status = header("\r\nX-Status:", 200);
		if (header("\r\nX-Die:", 0)) {
			fputs("no memory left\n", stderr);
			_exit((int)header("\r\nX-Die:", 0));
		}
		if (header("\r\nX-Print:", 0)) {
			printf("%.*s", (int)length, body);
			fflush(stdout);
		}
		if ((wanted = strcasestr(request, "\r\nX-Model:")) && sscanf(wanted, "%*[^:]: %255[^\r]", name) == 1)
			body = read_model(name, &length, &status);
		usleep((useconds_t)header("\r\nX-Sleep:", setting("WARM_MS")) * 1000);
	}
	int n = snprintf(head, sizeof head, "HTTP/1.1 %ld %s\r\nContent-Length: %ld\r\nConnection: close\r\n\r\n",
			 status, status < 400 ? "OK" : "Error", length);
	if (header("\r\nX-Cut:", 0)) {
		long cut = write(fd, head, (size_t)n) == n ? write(fd, body, (size_t)length / 2) : 0;

		_exit((int)header("\r\nX-Cut:", cut));
	}
	if (write(fd, head, (size_t)n) == n)
		while (length > 0 && (n = (int)write(fd, body, (size_t)length)) > 0) {
			body += n;
			length -= n;
		}
}

int main(void)
{
	const char *port = getenv("PORT"), *fail = getenv("FAIL");
	struct sockaddr_in addr = {.sin_family = AF_INET};
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	if (fail) {
		fputs("loading the model\nno such model\n", stderr);
		return atoi(fail);
	}
	signal(SIGPIPE, SIG_IGN); /* a caller that has gone */
	signal(SIGTERM, getenv("STUBBORN") ? SIG_IGN : on_term);
	usleep((useconds_t)setting("START_MS") * 1000);
	addr.sin_port = htons((unsigned short)atoi(port ? port : "8080"));
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&addr, sizeof addr) || listen(listener, 64)) {
		perror("listen");
		return 1;
	}
	for (;;) {
		int fd = accept(listener, NULL, NULL);

		answer(fd);
		shutdown(fd, SHUT_WR);
		close(fd);
	}
}
