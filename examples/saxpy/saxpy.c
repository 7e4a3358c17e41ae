/* saxpy: a function that is an ordinary CUDA driver program, without any knowledge of gfaas. It
 * listens on $PORT, reports on GET /healthz whether it is ready, and answers POST / with {"n":
 * 4096, "a": 2.0} by computing y = a * x + y on device 0 and returning the sum of y.
 *
 *   PORT            port to listen on (8080)
 *   HOST            address to listen on (127.0.0.1; in a container 0.0.0.0)
 *   SAXPY_BLOCKS    blocks of a kernel (320)
 *   SAXPY_LAUNCHES  kernels per request (5)
 *   SAXPY_STREAMS   requests on the device at once (2)
 *   SAXPY_HOLDS     MiB of device memory that it holds in addition, as a model's
 *                   weights would be
 *   SAXPY_PTX       file with the kernel, in place of the built-in kernel */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "http.h"
#include "json.h"
#include "workload.h"

#define MOST_ELEMENTS (1u << 24) /* floats hold every count up to here */
#define MOST_BATCH 256

__asm__(".section .rodata\n"
	".global built_in_ptx\n"
	"built_in_ptx: .incbin \"saxpy.ptx\"\n"
	".byte 0\n"
	".previous\n");
extern const char built_in_ptx[];

static struct gpu_settings settings;

static void fail(struct http_response *response, int status, const char *message)
{
	response->status = status;
	snprintf(response->body, sizeof response->body, "{\"error\":\"%s\"}\n", message);
}

static void invoke(const struct http_request *request, struct http_response *response)
{
	double n = DEFAULT_N, a = (double)DEFAULT_A;
	struct json_field fields[] = {{"n", &n}, {"a", &a}};
	struct gpu_result result = {0};
	const char *problem;

	if (json_read(request->body, fields, 2)) {
		fail(response, 400, "expected an object of numbers like {'n': 4096, 'a': 2.0}");
		return;
	}
	if (request->batch < 1 || request->batch > MOST_BATCH) {
		fail(response, 400, "X-Gfaas-Batch: expected 1 to 256");
		return;
	}
	if (!(n >= 1 && n <= MOST_ELEMENTS / (double)request->batch) || n != floor(n) || !isfinite((float)a)) {
		fail(response, 400, "expected a whole n, at most 16777216 over the batch, and a finite a");
		return;
	}
	problem = gpu_saxpy((size_t)n, (float)a, (size_t)request->batch, &result);
	if (problem) {
		fail(response, 500, problem);
		return;
	}
	response->status = 200;
	snprintf(response->headers, sizeof response->headers, "Server-Timing: gpu;dur=%.3f\r\n", (double)result.ms);
	snprintf(response->body, sizeof response->body,
		 "{\"n\":%.0f,\"a\":%.9g,\"batch\":%ld,\"launches\":%d,\"sum\":%.17g}\n",
		 n, (double)(float)a, request->batch, settings.launches, result.sum);
}

static void answer(const struct http_request *request, struct http_response *response)
{
	int get = !strcmp(request->method, "GET") || !strcmp(request->method, "HEAD");

	if (!strcmp(request->path, "/healthz") && get) {
		response->status = 200;
		response->type = "text/plain";
		strcpy(response->body, "ok\n");
	} else if (strcmp(request->path, "/") != 0) {
		fail(response, 404, "not found: POST / or GET /healthz");
	} else if (strcmp(request->method, "POST") != 0) {
		strcpy(response->headers, "Allow: POST\r\n");
		fail(response, 405, "method not allowed: POST / or GET /healthz");
	} else {
		invoke(request, response);
	}
}

/* Returns a whole number from the environment, between least and most. */
static int setting(const char *name, int otherwise, int least, int most)
{
	const char *text = getenv(name);
	char *end;
	long value;

	if (!text || !*text)
		return otherwise;
	value = strtol(text, &end, 10);
	if (*end || value < least || value > most) {
		fprintf(stderr, "saxpy: %s=%s: expected %d to %d\n", name, text, least, most);
		exit(2);
	}
	return (int)value;
}

static const char *read_file(const char *path)
{
	static char text[1 << 20];
	FILE *f = fopen(path, "r");
	size_t n;

	if (!f) {
		fprintf(stderr, "saxpy: %s: %s\n", path, strerror(errno));
		exit(2);
	}
	n = fread(text, 1, sizeof text - 1, f);
	text[n] = 0;
	fclose(f);
	return text;
}

int main(void)
{
	const char *host = getenv("HOST"), *file = getenv("SAXPY_PTX"), *problem;
	int port = setting("PORT", 8080, 1, 65535), left;
	sigset_t ends;

	setvbuf(stdout, NULL, _IOLBF, 0);
	settings.blocks = setting("SAXPY_BLOCKS", 320, 1, INT_MAX / MOST_BATCH);
	settings.launches = setting("SAXPY_LAUNCHES", 5, 1, 100000);
	settings.lanes = setting("SAXPY_STREAMS", 2, 1, 64);
	settings.holds = (size_t)setting("SAXPY_HOLDS", 0, 0, 1 << 20) << 20;
	settings.ptx = file && *file ? read_file(file) : built_in_ptx;
	/* Before the driver starts threads of its own, which must not get these signals. */
	sigemptyset(&ends);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGINT);
	sigprocmask(SIG_BLOCK, &ends, NULL);
	problem = gpu_open(&settings);
	if (problem) {
		fprintf(stderr, "saxpy: %s\n", problem);
		return 1;
	}
	left = http_serve(host && *host ? host : "127.0.0.1", port, answer);
	if (left > 0) /* a thread is still inside the driver, so nothing can be freed */
		_Exit(0);
	if (left == 0)
		gpu_close();
	return left < 0;
}
