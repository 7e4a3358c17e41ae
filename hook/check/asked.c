/* asked: a program that is asked to end while it waits for the GPU.
 *
 *   asked CASE [start PROGRAM | open FILE]
 *
 * flag   launches until a handler of SIGTERM has noted it
 * sync   the same, with copies that are over when they return
 * graph  the same, with a graph
 * memory allocates, before anything else
 * exit   a handler of SIGTERM calls exit, and what that calls copies
 * within the same, and the first signal comes before anything waits
 * other  as flag, and it handles SIGALRM, which comes every 5 ms, and SIGUSR1
 *
 * Before that it starts a program and awaits its end, or has a file of its own where
 * standard error was. Prints "ready" when it begins, "asked" and the number of the error that it saw
 * when it ends. Each line on its input lets it do one more piece of work; at the
 * input's end it goes on without. A call that fails before it was asked, or more
 * than once, is an error. */
#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t asked;
static CUdeviceptr block;
static CUfunction nop;
static CUgraphExec graph;
static char host_bytes[4096];

static void note(int signal)
{
    (void)signal;
    asked = 1;
}

static void ignore(int signal) { (void)signal; }
static void end(int signal)
{
    (void)signal;
    exit(0);
}

static void say(const char *what, CUresult result)
{
    printf("%s %d\n", what, (int)result);
    fflush(stdout);
}

static void last_copy(void) { say("asked", cuMemcpyDtoH(host_bytes, block, sizeof host_bytes)); }

static void handle(int signal, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    ENSURE(sigaction(signal, &action, NULL) == 0);
}

static CUresult launch(void) { return cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); }
static CUresult copy(void) { return cuMemcpyDtoH(host_bytes, block, sizeof host_bytes); }
static CUresult send(void) { return cuGraphLaunch(graph, NULL); }
static CUresult take(void)
{
    CUdeviceptr more;
    return cuMemAlloc(&more, 1);
}

static void make_graph(void)
{
    CUgraph g;
    CUstream stream = new_stream();
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    MUST(cuStreamEndCapture(stream, &g));
    MUST(cuGraphInstantiate(&graph, g, 0));
}

static void alarms(void)
{
    struct itimerval often = {{0, 5000}, {0, 5000}};
    handle(SIGALRM, ignore);
    handle(SIGUSR1, ignore);
    ENSURE(setitimer(ITIMER_REAL, &often, NULL) == 0);
}

static void start(const char *program)
{
    int status;
    pid_t child = vfork();
    if (child == 0) {
        execl(program, program, (char *)NULL);
        _exit(127);
    }
    ENSURE(waitpid(child, &status, 0) == child && status == 0);
}

static void open_as_errors(const char *file)
{
    close(STDERR_FILENO);
    if (open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600) != STDERR_FILENO)
        exit(1);
}

int main(int argc, char **argv)
{
    static const struct { const char *name; CUresult (*work)(void); void (*handler)(int); } cases[] = {
        {"flag", launch, note}, {"sync", copy, note}, {"graph", send, note}, {"memory", take, note}, {"exit", launch, end},
        {"within", launch, end}, {"other", launch, note},
    };
    unsigned at = 0;
    while (at < sizeof cases / sizeof *cases && (argc < 2 || strcmp(argv[1], cases[at].name)))
        at++;
    if (at == sizeof cases / sizeof *cases)
        return 2;
    if (argc == 4 && !strcmp(argv[2], "start"))
        start(argv[3]);
    else if (argc == 4 && !strcmp(argv[2], "open"))
        open_as_errors(argv[3]);
    else if (argc != 2)
        return 2;
    handle(SIGTERM, cases[at].handler);
    own_context();
    if (cases[at].work != take) {
        nop = kernel(check_ptx, "nop");
        MUST(cuMemAlloc(&block, sizeof host_bytes));
    }
    if (cases[at].work == send)
        make_graph();
    if (cases[at].handler == end)
        atexit(last_copy);
    if (!strcmp(argv[1], "other"))
        alarms();
    printf("ready\n");
    fflush(stdout);
    if (!strcmp(argv[1], "within"))
        raise(SIGTERM);
    CUresult result = CUDA_SUCCESS;
    while (!asked) {
        ENSURE(result == CUDA_SUCCESS);
        result = cases[at].work();
        if (result == CUDA_SUCCESS && !asked) {
            say("sent", result);
            if (getchar() == EOF)
                usleep(1000);
        }
    }
    say("asked", result);
    return 0;
}
