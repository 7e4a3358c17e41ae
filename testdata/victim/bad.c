/* bad KIND: a function on $PORT that fails in the given way. It answers any request with 200,
 * except:
 *
 *   never    is never ready: 503
 *   errors   answers POST with 500
 *   dies     ends with status 9 at its 20th POST
 *   leaks    keeps 8 MiB of GPU memory for each POST, and answers 500 when no memory
 *            is free
 *   deaf     ignores SIGTERM
 *   loud     prints 1 MiB for each POST
 *   slow     takes an hour for a POST */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cuda.h>

#define LEAK (8u << 20)
#define LOUD (1u << 20)
#define LAST_POST 20

static const char *kind;
static CUcontext context;

static int is(const char *name) { return !strcmp(kind, name); }

static int leak(void)
{
	CUdeviceptr memory;

	if (cuCtxSetCurrent(context) == CUDA_SUCCESS && cuMemAlloc(&memory, LEAK) == CUDA_SUCCESS)
		return 200;
	fprintf(stderr, "bad: out of GPU memory\n");
	return 500;
}

static void shout(void)
{
	static char line[LOUD];

	memset(line, 'a', sizeof line);
	for (size_t i = 79; i < sizeof line; i += 80)
		line[i] = '\n';
	fwrite(line, 1, sizeof line, stderr);
}

static int post(void)
{
	static int posts;

	if (is("dies") && __atomic_add_fetch(&posts, 1, __ATOMIC_RELAXED) == LAST_POST) {
		fprintf(stderr, "bad: the end\n");
		_exit(9);
	}
	if (is("slow"))
		sleep(3600);
	if (is("loud"))
		shout();
	if (is("leaks"))
		return leak();
	usleep(2000);
	return is("errors") ? 500 : 200;
}

/* Serves one connection, whose requests arrive one after the other. The tests send only empty
 * bodies. */
static void *serve(void *arg)
{
	FILE *in = fdopen((int)(long)arg, "r");
	char line[4096], answer[128];

	while (in && fgets(line, sizeof line, in)) {
		int status, posted = !strncmp(line, "POST", 4);

		while (fgets(line, sizeof line, in) && strcmp(line, "\r\n"))
			;
		status = is("never") ? 503 : posted ? post() : 200;
		snprintf(answer, sizeof answer, "HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n", status);
		if (write(fileno(in), answer, strlen(answer)) < 0)
			break;
	}
	if (in)
		fclose(in);
	return NULL;
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	const char *port = getenv("PORT");
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	CUdevice device;

	if (argc != 2 || !port) {
		fprintf(stderr, "usage: PORT=N bad KIND\n");
		return 2;
	}
	kind = argv[1];
	signal(SIGPIPE, SIG_IGN);
	if (is("deaf"))
		signal(SIGTERM, SIG_IGN);
	if (cuInit(0) || cuDeviceGet(&device, 0) || cuCtxCreate(&context, 0, device)) {
		fprintf(stderr, "bad: no GPU\n");
		return 1;
	}
	at.sin_port = htons((unsigned short)atoi(port));
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 64)) {
		perror("bad");
		return 1;
	}
	for (;;) {
		pthread_t thread;
		int connection = accept(listener, NULL, NULL);

		if (connection >= 0 && !pthread_create(&thread, NULL, serve, (void *)(long)connection))
			pthread_detach(thread);
	}
}
