/* model_client: uses the model library as a program would, and prints the results on standard
 * output. It links no driver.
 *
 *   model_client show NAME [FILE]     opens the model and prints a line for each tensor, with
 *                                     its bytes as read back from the GPU; then waits for the
 *                                     end of its input, and closes the model
 *   model_client serve                opens the model that each line of its input names, and
 *                                     prints the result code and the error
 *   model_client threads NAME T N     T threads open and close it N times
 *   model_client fork NAME            opens it and forks: the child closes it, prints "child"
 *                                     and waits for the end of the input; the parent closes
 *                                     it, prints "parent" and waits
 *   model_client loading NAME         another thread opens it; prints "waits", and after a line
 *                                     on its input forks while that thread still waits: the
 *                                     child prints "child" and lives on, the parent prints
 *                                     "parent" when the daemon has answered
 *   model_client context NAME         checks that the thread's context stays as it was
 *   model_client holds NAME           reads its first tensor, prints "held", waits for a line,
 *                                     and reads the tensor again
 *   model_client writes NAME          tries to write to its first tensor, and prints the errors
 *                                     with which the driver refuses
 *   model_client reused NAME          opens it, replaces its connection by a file, and checks
 *                                     that closing the model, here and in a child, leaves the
 *                                     file open
 *   model_client leaks NAME           checks that no descriptor stays open, whether or not the
 *                                     model opens */
#define _GNU_SOURCE
#define CUDA_EXACT_NAMES
#include "check.h"

#include <fcntl.h>
#include <sys/stat.h>

static void wait_for_end(void)
{
    fflush(stdout);
    while (getchar() != EOF)
        continue;
}

/* ---- show ---- */

/* Reads the bytes in the primary context, which the library uses and keeps while a model is open. */
static void show_bytes(const gfaas_tensor *t)
{
    unsigned char *b = malloc(t->bytes + 1);
    primary(true);
    ASSERT(!t->bytes || !CUDA(cuMemcpyDtoH_v2)(b, t->ptr, t->bytes));
    primary(false);
    for (uint64_t i = 0; i < t->bytes && i < 32; i++)
        printf("%02x", b[i]);
    free(b);
}

static int show(const char *name, const char *file)
{
    gfaas_model *m;
    gfaas_tensor t, same;
    int code = gfaas_model_open(name, file, &m);
    if (code) {
        ASSERT(!m);
        printf("%d %s\n", code, gfaas_model_error());
        return 0;
    }
    printf("0 %s %zu\n", gfaas_model_sha256(m), gfaas_model_count(m));
    for (size_t i = 0; i < gfaas_model_count(m); i++) {
        ASSERT(!gfaas_model_tensor(m, i, &t));
        ASSERT(!gfaas_model_find(m, t.name, &same) && same.ptr == t.ptr && same.shape == t.shape);
        printf("%s %s [", t.name, t.dtype);
        for (int32_t k = 0; k < t.ndim; k++)
            printf(k ? ",%lld" : "%lld", (long long)t.shape[k]);
        printf("] %llu %llu ", (unsigned long long)(t.ptr % 256), (unsigned long long)t.bytes);
        show_bytes(&t);
        puts("");
    }
    ASSERT(gfaas_model_tensor(m, gfaas_model_count(m), &t) == GFAAS_MODEL_USAGE);
    ASSERT(gfaas_model_find(m, "no such tensor", &t) == GFAAS_MODEL_ABSENT);
    ASSERT(strstr(gfaas_model_error(), "no such tensor"));
    wait_for_end();
    gfaas_model_close(m);
    return 0;
}

static int serve(void)
{
    char line[1024];
    gfaas_model *m;
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        int code = gfaas_model_open(line, NULL, &m);
        gfaas_model_close(m);
        printf("%d %s\n", code, code ? gfaas_model_error() : "");
        fflush(stdout);
    }
    return 0;
}

/* ---- threads ---- */

static const char *the_name;
static int rounds;

static void *open_and_close(void *arg)
{
    gfaas_model *m, *none;
    gfaas_tensor t;
    for (int i = 0; i < rounds; i++) {
        ASSERT(!gfaas_model_open(the_name, NULL, &m));
        ASSERT(!gfaas_model_tensor(m, (size_t)i % gfaas_model_count(m), &t) && !gfaas_model_find(m, t.name, &t));
        /* The error message belongs to the thread. */
        ASSERT(gfaas_model_open(arg, NULL, &none) == GFAAS_MODEL_USAGE && !none && strstr(gfaas_model_error(), arg));
        gfaas_model_close(m);
    }
    return NULL;
}

static int threads(int n)
{
    pthread_t t[64];
    char wrong[64][16];
    ASSERT(n <= 64);
    for (int i = 0; i < n; i++) {
        snprintf(wrong[i], sizeof wrong[i], "?%d", i);
        ASSERT(!pthread_create(&t[i], NULL, open_and_close, wrong[i]));
    }
    for (int i = 0; i < n; i++)
        pthread_join(t[i], NULL);
    return 0;
}

/* ---- the rest ---- */

static int forks(const char *name)
{
    gfaas_model *m;
    int status = 1;
    ASSERT(!gfaas_model_open(name, NULL, &m));
    pid_t child = fork();
    if (child == 0) {
        gfaas_model_close(m);
        ASSERT(gfaas_model_open(name, NULL, &m)); /* CUDA does not work in the child */
        puts("child");
        wait_for_end();
        fflush(stdout);
        _exit(0);
    }
    gfaas_model_close(m);
    puts("parent");
    wait_for_end();
    return waitpid(child, &status, 0) != child || status;
}

static void *opens(void *name)
{
    gfaas_model *m;
    gfaas_model_open(name, NULL, &m);
    gfaas_model_close(m);
    return NULL;
}

static int loading(char *name)
{
    pthread_t t;
    int status = 1;
    ASSERT(!pthread_create(&t, NULL, opens, name));
    puts("waits");
    fflush(stdout);
    getchar();
    pid_t child = fork();
    if (child == 0) {
        puts("child");
        wait_for_end();
        _exit(0);
    }
    pthread_join(t, NULL);
    puts("parent");
    wait_for_end();
    return waitpid(child, &status, 0) != child || status;
}

static int context(const char *name)
{
    gfaas_model *m;
    CUcontext c, own;
    CUdevice dev;
    unsigned flags;
    int active;
    ASSERT(!gfaas_model_open(name, NULL, &m));
    ASSERT(!CUDA(cuCtxGetCurrent)(&c) && !c);
    ASSERT(!CUDA(cuDeviceGet)(&dev, 0));
    ASSERT(!CUDA(cuDevicePrimaryCtxGetState)(dev, &flags, &active) && active);
    gfaas_model_close(m);
    ASSERT(!CUDA(cuDevicePrimaryCtxGetState)(dev, &flags, &active) && !active);
    ASSERT(!CUDA(cuCtxCreate_v2)(&own, 0, dev));
    ASSERT(!gfaas_model_open(name, NULL, &m));
    ASSERT(!CUDA(cuCtxGetCurrent)(&c) && c == own);
    /* the library used the program's context */
    ASSERT(!CUDA(cuDevicePrimaryCtxGetState)(dev, &flags, &active) && !active);
    gfaas_tensor t;
    ASSERT(!gfaas_model_tensor(m, 0, &t));
    ASSERT(CUDA(cuMemsetD8_v2)(t.ptr, 1, 1) || CUDA(cuCtxSynchronize)()); /* it is read-only */
    gfaas_model_close(m);
    return 0;
}

static int holds(const char *name)
{
    gfaas_model *m;
    gfaas_tensor t;
    primary(true);
    ASSERT(!gfaas_model_open(name, NULL, &m) && !gfaas_model_tensor(m, 0, &t));
    char *before = malloc(t.bytes + 1), *after = malloc(t.bytes + 1);
    ASSERT(before && after && !CUDA(cuMemcpyDtoH_v2)(before, t.ptr, t.bytes));
    puts("held");
    fflush(stdout);
    getchar();
    ASSERT(!CUDA(cuMemcpyDtoH_v2)(after, t.ptr, t.bytes) && !memcmp(before, after, t.bytes));
    gfaas_model_close(m);
    return 0;
}

/* Checks that writes fail. A driver may refuse at once, or fault when the work runs, which ends
 * only this process's use of the GPU. */
static int writes(const char *name)
{
    gfaas_model *m;
    gfaas_tensor t;
    primary(true);
    ASSERT(!gfaas_model_open(name, NULL, &m) && !gfaas_model_tensor(m, 0, &t));
    char text[] = "written";
    CUresult copied = CUDA(cuMemcpyHtoD_v2)(t.ptr, text, sizeof text);
    CUresult set = CUDA(cuMemsetD8_v2)(t.ptr, 0x5a, t.bytes);
    if (!set)
        set = CUDA(cuCtxSynchronize)();
    printf("error %d for a copy, %d for a memset\n", (int)copied, (int)set);
    return copied && set ? 0 : 1;
}

static int leaks(const char *name)
{
    gfaas_model *m;
    int before = -1;
    for (int i = 0; i < 20; i++) {
        gfaas_model_open(name, "/dev/zero", &m);
        gfaas_model_close(m);
        if (i == 2)
            before = descriptors(); /* by now the driver has opened its own */
    }
    ASSERT(descriptors() == before);
    return 0;
}

/* Replaces every socket by a file. Returns the last descriptor, or -1. */
static int reuse(struct stat *is)
{
    int last = -1, file = open("/dev/null", O_RDWR | O_CLOEXEC);
    DIR *d = opendir("/proc/self/fd");
    ASSERT(d && file >= 0);
    for (struct dirent *e; (e = readdir(d));) {
        char link[16] = "";
        if (readlinkat(dirfd(d), e->d_name, link, sizeof link - 1) < 0 || strncmp(link, "socket:", 7))
            continue;
        last = atoi(e->d_name);
        ASSERT(last >= 256 && dup2(file, last) == last);
    }
    closedir(d);
    ASSERT(last < 0 || fstat(last, is) == 0);
    return last;
}

static bool still(int fd, const struct stat *is)
{
    struct stat now;
    return fstat(fd, &now) == 0 && now.st_ino == is->st_ino && now.st_dev == is->st_dev;
}

static int reused(const char *name)
{
    gfaas_model *m;
    struct stat is;
    int status;
    ASSERT(gfaas_model_open(name, NULL, &m) == 0);
    int fd = reuse(&is);
    ASSERT(fd >= 0);
    pid_t child = fork();
    if (child == 0)
        _exit(still(fd, &is) ? 0 : 1);
    ASSERT(waitpid(child, &status, 0) == child && status == 0);
    gfaas_model_close(m);
    ASSERT(still(fd, &is));
    return 0;
}

int main(int argc, char **argv)
{
    const char *name = argc > 2 ? argv[2] : NULL;
    ASSERT(!gfaas_model_error()[0]);
    if (argc == 2 && !strcmp(argv[1], "serve"))
        return serve();
    if (!name)
        return 2;
    if (!strcmp(argv[1], "show"))
        return show(name, argc > 3 ? argv[3] : NULL);
    if (!strcmp(argv[1], "threads") && argc > 4) {
        the_name = name;
        rounds = atoi(argv[4]);
        return threads(atoi(argv[3]));
    }
    return !strcmp(argv[1], "fork")      ? forks(name)
           : !strcmp(argv[1], "loading") ? loading(argv[2])
           : !strcmp(argv[1], "context") ? context(name)
           : !strcmp(argv[1], "holds")   ? holds(name)
           : !strcmp(argv[1], "writes")  ? writes(name)
           : !strcmp(argv[1], "reused")  ? reused(name)
           : !strcmp(argv[1], "leaks")   ? leaks(name)
                                         : 2;
}
