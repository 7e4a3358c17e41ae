/* fork: a program of several processes. In each CASE, parent and child do what such programs
 * usually do, and the parent's GPU work must continue.
 *
 *   fork CASE
 *
 * before  forks before the driver is used; both processes use it
 * exec    forks after the driver was used; the child executes another GPU program
 * quiet   forks after the driver was used; the child ends without using the GPU
 * shell   calls popen and system while threads launch; no descriptor is passed on
 *
 * All processes use all devices. The parent prints how many kernels it has launched on all of them, and
 * then waits for the end of its standard input. */
#include "check.h"

#include <unistd.h>

enum { DEVICES = 16 };

static int devices;
static CUcontext context[DEVICES];
static CUfunction nop[DEVICES];
static unsigned long launches;

static void begin(void)
{
    ASSERT_SUCCESS(cuInit(0));
    ASSERT_SUCCESS(cuDeviceGetCount(&devices));
    ASSERT(devices > 0 && devices <= DEVICES);
    for (int i = 0; i < devices; i++) {
        ASSERT_SUCCESS(cuCtxCreate(&context[i], 0, i));
        nop[i] = kernel(check_ptx, "nop");
    }
}

/* Launches that many kernels on each device, and waits until they have ended. */
static void launch(int times)
{
    for (int i = 0; i < devices; i++) {
        ASSERT_SUCCESS(cuCtxSetCurrent(context[i]));
        for (int j = 0; j < times; j++)
            launch_block(nop[i], CU_STREAM_PER_THREAD);
        ASSERT_SUCCESS(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        __atomic_add_fetch(&launches, (unsigned long)times, __ATOMIC_RELAXED);
    }
}

static void before(void)
{
    pid_t child = fork();
    begin();
    launch(10);
    if (child == 0)
        exit(0);
    ends_well(child);
}

static void exec_other(const char *self)
{
    char path[4096];
    snprintf(path, sizeof path, "%.*sroute", (int)(strrchr(self, '/') + 1 - self), self);
    begin();
    launch(10);
    pid_t child = fork();
    if (child == 0) {
        close(0); /* the program reads its input to the end */
        execl(path, path, "dlsym", "cuLaunchKernel", "3", (char *)NULL);
        _exit(127);
    }
    launch(10);
    ends_well(child);
}

static void quiet(void)
{
    begin();
    launch(10);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0)
            exit(0); /* runs every handler and destructor */
        launch(1);
        ends_well(child);
    }
}

static int stop;

static void *launch_on(void *unused)
{
    (void)unused;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
        launch(1);
    return NULL;
}

static void shell(void)
{
    begin();
    pthread_t thread[3];
    for (int i = 0; i < 3; i++)
        thread[i] = start_thread(launch_on, NULL);
    for (int i = 0; i < 10; i++) {
        char line[512];
        ASSERT(system("exit 3") == 3 << 8);
        FILE *list = popen("ls -l /proc/self/fd", "r");
        ASSERT(list);
        while (fgets(line, sizeof line, list))
            ASSERT(!strstr(line, "socket:") && !strstr(line, "eventpoll") && !strstr(line, "eventfd") &&
                   !strstr(line, "memfd"));
        ASSERT(pclose(list) == 0);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    if (!strcmp(argv[1], "before"))
        before();
    else if (!strcmp(argv[1], "exec"))
        exec_other(argv[0]);
    else if (!strcmp(argv[1], "quiet"))
        quiet();
    else if (!strcmp(argv[1], "shell"))
        shell();
    else
        return 2;
    launch(5);
    printf("launched %lu\n", launches);
    fflush(stdout);
    await_end();
    return 0;
}
