/* sigterm: uses the GPU until a test sends SIGTERM, which arrives while a call waits for the GPU.
 *
 *   sigterm CASE [start PROGRAM | open FILE]
 *
 * flag    launches kernels; the SIGTERM handler sets a flag, which ends the program
 * sync    the same with synchronous copies
 * graph   the same with launches of a graph
 * memory  the same with allocations, before any other use of the GPU
 * exit    launches kernels; the SIGTERM handler calls exit, and an exit handler copies
 * within  as exit, but the program first sends SIGTERM to itself, so that only the copy waits
 * other   as flag, and the program also handles SIGUSR1, and a SIGALRM every 5 ms
 *
 * Before that, "start" runs PROGRAM and waits for its end, and "open" replaces standard error by
 * FILE. The program prints "ready" when it begins, "sent 0" after each successful call, and "ended N"
 * at the end, where N is the result of the last call (of the copy, with an exit handler). After each
 * "sent 0", it waits for a line on its input before the next call; after the end of the input, it
 * continues by itself. It fails if a call fails before the signal, or a second time. */
#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t terminated;
static CUdeviceptr block;
static CUfunction nop;
static CUgraphExec graph;
static char host_bytes[4096];

static void set_flag(int signal)
{
    (void)signal;
    terminated = 1;
}

static void ignore(int signal) { (void)signal; }
static void call_exit(int signal)
{
    (void)signal;
    exit(0);
}

static void print_result(const char *event, CUresult result)
{
    printf("%s %d\n", event, (int)result);
    fflush(stdout);
}

static void copy_at_exit(void) { print_result("ended", cuMemcpyDtoH(host_bytes, block, sizeof host_bytes)); }

static void handle(int signal, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    ASSERT(sigaction(signal, &action, NULL) == 0);
}

static CUresult launch_kernel(void) { return cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); }
static CUresult copy(void) { return cuMemcpyDtoH(host_bytes, block, sizeof host_bytes); }
static CUresult launch_graph(void) { return cuGraphLaunch(graph, NULL); }
static CUresult allocate(void)
{
    CUdeviceptr more;
    return cuMemAlloc(&more, 1);
}

static void make_graph(void)
{
    CUgraph g;
    CUstream stream = new_stream();
    ASSERT_SUCCESS(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch_block(nop, stream);
    ASSERT_SUCCESS(cuStreamEndCapture(stream, &g));
    ASSERT_SUCCESS(cuGraphInstantiate(&graph, g, 0));
}

/* Handles SIGUSR1 and SIGALRM, and starts a timer that sends SIGALRM every 5 ms. */
static void handle_other_signals(void)
{
    struct itimerval interval = {{0, 5000}, {0, 5000}};
    handle(SIGALRM, ignore);
    handle(SIGUSR1, ignore);
    ASSERT(setitimer(ITIMER_REAL, &interval, NULL) == 0);
}

static void run_program(const char *program)
{
    pid_t child = vfork();
    if (child == 0) {
        execl(program, program, (char *)NULL);
        _exit(127);
    }
    ends_well(child);
}

static void replace_stderr(const char *file)
{
    close(STDERR_FILENO);
    if (open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600) != STDERR_FILENO)
        exit(1);
}

int main(int argc, char **argv)
{
    static const struct { const char *name; CUresult (*work)(void); void (*handler)(int); } cases[] = {
        {"flag", launch_kernel, set_flag}, {"sync", copy, set_flag}, {"graph", launch_graph, set_flag},
        {"memory", allocate, set_flag}, {"exit", launch_kernel, call_exit}, {"within", launch_kernel, call_exit},
        {"other", launch_kernel, set_flag},
    };
    unsigned i = 0;
    while (i < sizeof cases / sizeof *cases && (argc < 2 || strcmp(argv[1], cases[i].name)))
        i++;
    if (i == sizeof cases / sizeof *cases)
        return 2;
    if (argc == 4 && !strcmp(argv[2], "start"))
        run_program(argv[3]);
    else if (argc == 4 && !strcmp(argv[2], "open"))
        replace_stderr(argv[3]);
    else if (argc != 2)
        return 2;
    handle(SIGTERM, cases[i].handler);
    own_context();
    if (cases[i].work != allocate) {
        nop = kernel(check_ptx, "nop");
        ASSERT_SUCCESS(cuMemAlloc(&block, sizeof host_bytes));
    }
    if (cases[i].work == launch_graph)
        make_graph();
    if (cases[i].handler == call_exit)
        atexit(copy_at_exit);
    if (!strcmp(argv[1], "other"))
        handle_other_signals();
    say_line("ready");
    if (!strcmp(argv[1], "within"))
        raise(SIGTERM);
    CUresult result = CUDA_SUCCESS;
    while (!terminated) {
        ASSERT(result == CUDA_SUCCESS);
        result = cases[i].work();
        if (result == CUDA_SUCCESS && !terminated) {
            print_result("sent", result);
            if (getchar() == EOF)
                usleep(1000);
        }
    }
    print_result("ended", result);
    return 0;
}
