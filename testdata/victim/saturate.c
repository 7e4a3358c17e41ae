/* saturate SECONDS [BLOCK_US [BLOCKS [SYNC_EVERY [GRAPH [THREADS]]]]]: launches a kernel at the
 * highest possible rate and prints the results as one JSON object. It is an ordinary CUDA driver
 * program. SIGTERM ends it early. SATURATE_BEGIN, a time of CLOCK_MONOTONIC in seconds, lets several
 * programs begin at the same moment, after their preparations.
 *
 *   SECONDS     how long to launch
 *   BLOCK_US    time of one block (100)
 *   BLOCKS      blocks of a kernel (80)
 *   SYNC_EVERY  launches between two synchronisations (8); 0: only at the end
 *   GRAPH       kernels of a graph that is launched in place of one kernel (0)
 *   THREADS     threads of a block (32); with 1024, an SM has room for few blocks
 *
 *   launches    kernels that were launched and have completed
 *   elapsed_s   from the beginning to the end of the last kernel
 *   kernel_ms   the shortest time of a single kernel, by events on its stream
 *   gpu_ms      launches times kernel_ms
 *   share       gpu_ms divided by elapsed_s, 0 to 1
 *   settled_launches, settled_s
 *               the launches after the first second, and the whole seconds that they
 *               took: the rate without the start, because at both ends the same
 *               amount of work is in flight */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cuda.h>

#define PROBES 8
#define SETTLE_S 1

/* A block spins until its time is over, by the GPU's own clock. For the simulated GPU, the comment
 * in the text gives the time. */
static const char module_text[] =
	"// gfaas-sim: spin block_us=%lu\n"
	".version 7.0\n"
	".target sm_50\n"
	".address_size 64\n"
	".visible .entry spin(.param .u64 ns)\n"
	"{\n"
	".reg .pred %%p<2>;\n"
	".reg .b64 %%rd<5>;\n"
	"ld.param.u64 %%rd1, [ns];\n"
	"mov.u64 %%rd2, %%globaltimer;\n"
	"again:\n"
	"mov.u64 %%rd3, %%globaltimer;\n"
	"sub.s64 %%rd4, %%rd3, %%rd2;\n"
	"setp.lt.u64 %%p1, %%rd4, %%rd1;\n"
	"@%%p1 bra again;\n"
	"ret;\n"
	"}\n";

static volatile sig_atomic_t stopped;

static void on_term(int sig)
{
	(void)sig;
	stopped = 1;
}

static void check(CUresult result, const char *what)
{
	const char *text = "unknown error";

	if (!result)
		return;
	cuGetErrorString(result, &text);
	fprintf(stderr, "saturate: %s: %s (%d)\n", what, text, (int)result);
	exit(1);
}

#define CHECK(call) check(call, #call)

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Returns the time from which the program counts. Sleeps until then. */
static double awaited_begin(void)
{
	const char *text = getenv("SATURATE_BEGIN");
	struct timespec t;
	double begin;

	if (!text)
		return now();
	begin = strtod(text, NULL);
	t.tv_sec = (time_t)begin;
	t.tv_nsec = (long)((begin - (double)t.tv_sec) * 1e9);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR && !stopped)
		;
	return begin;
}

static unsigned long number(int argc, char **argv, int i, unsigned long otherwise, unsigned long least)
{
	unsigned long value;
	char *end;

	if (i >= argc)
		return otherwise;
	value = strtoul(argv[i], &end, 10);
	if (end == argv[i] || *end || *argv[i] == '-' || value < least || value > 1000000000) {
		fprintf(stderr, "saturate: argument %d: %s: expected a whole number, at least %lu\n", i, argv[i], least);
		exit(2);
	}
	return value;
}

/* The kernel or graph that is launched repeatedly, and its stream. */
static struct {
	CUfunction kernel;
	CUstream stream;
	unsigned blocks, threads;
	unsigned long ns;
	CUgraphExec graph; /* NULL: single kernels */
} work;

static void launch(void)
{
	void *args[] = {&work.ns};

	CHECK(cuLaunchKernel(work.kernel, work.blocks, 1, 1, work.threads, 1, 1, 0, work.stream, args, NULL));
}

static void prepare_graph(unsigned long kernels)
{
	CUgraph graph;

	CHECK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	while (kernels-- > 0)
		launch();
	CHECK(cuStreamEndCapture(work.stream, &graph));
	CHECK(cuGraphInstantiate(&work.graph, graph, 0));
	CHECK(cuGraphDestroy(graph));
}

static void prepare(unsigned long block_us)
{
	char text[sizeof module_text + 32];
	CUcontext context;
	CUmodule module;
	CUdevice device;

	snprintf(text, sizeof text, module_text, block_us);
	work.ns = block_us * 1000;
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuModuleLoadData(&module, text));
	CHECK(cuModuleGetFunction(&work.kernel, module, "spin"));
	CHECK(cuStreamCreate(&work.stream, CU_STREAM_NON_BLOCKING));
}

/* Returns the shortest of several times: other launches may have waited for the GPU. */
static double kernel_ms(void)
{
	CUevent begin, end;
	float best = 0, ms;

	CHECK(cuEventCreate(&begin, CU_EVENT_DEFAULT));
	CHECK(cuEventCreate(&end, CU_EVENT_DEFAULT));
	for (int i = 0; i < PROBES && !stopped; i++) {
		CHECK(cuEventRecord(begin, work.stream));
		launch();
		CHECK(cuEventRecord(end, work.stream));
		CHECK(cuEventSynchronize(end));
		CHECK(cuEventElapsedTime(&ms, begin, end));
		if (i == 0 || ms < best)
			best = ms;
	}
	CHECK(cuEventDestroy(begin));
	CHECK(cuEventDestroy(end));
	return (double)best;
}

int main(int argc, char **argv)
{
	unsigned long seconds, block_us, sync_every, in_graph, turns = 0, first = 0, settled, launches;
	double one, begin, elapsed, at;

	if (argc < 2 || argc > 7) {
		fprintf(stderr, "usage: saturate SECONDS [BLOCK_US [BLOCKS [SYNC_EVERY [GRAPH [THREADS]]]]]\n");
		return 2;
	}
	seconds = number(argc, argv, 1, 0, 1);
	block_us = number(argc, argv, 2, 100, 1);
	work.blocks = (unsigned)number(argc, argv, 3, 80, 1);
	sync_every = number(argc, argv, 4, 8, 0);
	in_graph = number(argc, argv, 5, 0, 0);
	work.threads = (unsigned)number(argc, argv, 6, 32, 1);
	signal(SIGTERM, on_term);
	prepare(block_us);
	if (in_graph)
		prepare_graph(in_graph);
	one = kernel_ms();
	begin = awaited_begin();
	while (!stopped && (at = now() - begin) < (double)seconds) {
		if (at < SETTLE_S)
			first = turns + 1;
		if (work.graph)
			CHECK(cuGraphLaunch(work.graph, work.stream));
		else
			launch();
		if (++turns % (sync_every ? sync_every : -1ul) == 0)
			CHECK(cuStreamSynchronize(work.stream));
	}
	settled = seconds > SETTLE_S && !stopped ? turns - first : 0;
	CHECK(cuStreamSynchronize(work.stream));
	elapsed = now() - begin;
	launches = turns * (in_graph ? in_graph : 1);
	settled *= in_graph ? in_graph : 1;
	printf("{\"launches\":%lu,\"elapsed_s\":%.6f,\"kernel_ms\":%.6f,\"gpu_ms\":%.3f,\"share\":%.5f,"
	       "\"settled_launches\":%lu,\"settled_s\":%lu}\n",
	       launches, elapsed, one, (double)launches * one, (double)launches * one / 1000 / elapsed,
	       settled, settled ? seconds - SETTLE_S : 0);
	return 0;
}
