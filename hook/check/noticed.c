/* noticed: checks that a wait for the GPU (hook/terminate.c) notices every signal that asks the program
 * to end, whenever the signal arrives.
 *
 *   noticed plain|stack|others|int|fork SIGNALS
 *
 * Another process sends SIGNALS signals, each at a random time after the handler of the previous
 * one has run. "stack" gives the handler its own stack, "others" adds alarms, and "int" sends
 * SIGINT. In "fork", the handler of the alarms starts processes, which must not inherit the blocked
 * signals of the wait. It prints how many signals were handled, how many of them the wait missed,
 * and how many times the wait reported a signal that had not arrived. */
#define SLEEP_MS 1
#define DELAY_MS 1
#include "../terminate.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>

struct gf_device gf_devices[GF_DEVICES + 1];
uint64_t gf_now_ns(void) { return 1; }
void gf_say(unsigned kind, const char *format, ...) { (void)kind, (void)format; }
void gf_futex_wait(uint32_t *word, uint32_t expected, unsigned ms) { (void)word, (void)expected, (void)ms; }

static unsigned *ran; /* shared by both processes */

static void count(int signal)
{
    (void)signal;
    __atomic_add_fetch(ran, 1, __ATOMIC_SEQ_CST);
}

static void ignore(int signal) { (void)signal; }

static bool inherits; /* a child inherited a signal that is blocked only for the wait */

static void start(int signal)
{
    int status = 1;
    (void)signal;
    pid_t child = fork();
    if (child == 0) {
        uint64_t mask = 0;
        set_mask(SIG_BLOCK, 0, &mask);
        _exit((mask & end_signals) != 0);
    }
    inherits |= child < 0 || waitpid(child, &status, 0) != child || status != 0;
}

static void send_all(pid_t to, int signal, unsigned signals)
{
    for (unsigned n = 0; n < signals; n++) {
        struct timespec random = {0, rand() % 2500 * 1000};
        nanosleep(&random, NULL);
        kill(to, signal);
        while (__atomic_load_n(ran, __ATOMIC_SEQ_CST) == n && getppid() == to)
            sched_yield();
    }
}

int main(int argc, char **argv)
{
    unsigned signals = argc == 3 ? (unsigned)atoi(argv[2]) : 0, last = 0, missed = 0, false_alarms = 0;
    bool stack = argc == 3 && !strcmp(argv[1], "stack");
    int signal = argc == 3 && !strcmp(argv[1], "int") ? SIGINT : SIGTERM;
    if (!signals)
        return 2;
    ran = mmap(NULL, sizeof *ran, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    stack_t own = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART | (stack ? SA_ONSTACK : 0)}, alarms = {.sa_handler = ignore};
    struct itimerval often = {{0, 700}, {0, 700}}, seldom = {{0, 20000}, {0, 20000}};
    bool forks = argc == 3 && !strcmp(argv[1], "fork");
    if (forks)
        alarms.sa_handler = start;
    if (ran == MAP_FAILED || (stack && sigaltstack(&own, NULL) != 0) || sigaction(signal, &action, NULL) != 0 || sigaction(SIGALRM, &alarms, NULL) != 0)
        return 1;
    pthread_atfork(NULL, NULL, gf_terminate_fork_child);
    struct gf_patience patience = {0};
    gf_patience_begin(&patience);
    pid_t self = getpid(), sender = fork();
    if (sender == 0) {
        send_all(self, signal, signals);
        _exit(0);
    }
    if (forks || !strcmp(argv[1], "others"))
        setitimer(ITIMER_REAL, forks ? &seldom : &often, NULL);
    for (uint32_t word = 0; last < signals;) {
        bool asked = sleep_on(&patience, &word, 0);
        unsigned now = __atomic_load_n(ran, __ATOMIC_SEQ_CST);
        uint64_t pending = 0;
        syscall(SYS_rt_sigpending, &pending, sizeof pending);
        missed += asked ? 0 : now - last;
        false_alarms += asked && now == last && !(pending & end_signals);
        last = now;
    }
    gf_patience_end(&patience);
    printf("%u handled, %u missed, %u false\n", last, missed, false_alarms);
    if (inherits)
        printf("a child inherits what the wait blocks\n");
    return missed || false_alarms || inherits;
}
