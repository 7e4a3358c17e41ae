/* model_store: stores models with the model library, as the lines of its input say, and prints a line for each: the
 * result code and, if that is not 0, the error.
 *
 *   store NAME TENSOR DTYPE SHAPE ...   begins a store; SHAPE is like 2,3 or, for a scalar, -
 *   with KEY VALUE                      sets a pair of metadata of the next store
 *   everyone                            makes the next store public
 *   wait MS                             sets the timeout of the next store
 *   reserved                            sets a reserved field of the next store's options
 *   put TENSOR HEX                      copies a tensor from the host
 *   gpu TENSOR HEX                      copies a tensor from other memory of the GPU
 *   write TENSOR HEX                    writes to the address of a tensor
 *   threads BYTE TENSOR ...             puts these tensors, of 1 MiB each, in a thread each
 *   touch, commit, abandon, close       abandon commits without keeping the model open; close closes store and model
 *   show                                prints the tensors of the committed model instead, in one line
 *   sealed                              checks that the driver refuses to write to the committed model
 *   other                               makes a second context current
 *   fork                                has a forked child put, commit and close
 *   replace                             puts another socket in the place of each connection
 *   untouched                           checks that nothing was sent through that socket
 *   descriptors                         prints the number of open descriptors instead */
#define _GNU_SOURCE
#define CUDA_EXACT_NAMES
#include "check.h"

#include <sys/socket.h>

#define MOST 64
#define MIB (1 << 20)

static gfaas_store *store;
static gfaas_model *model;
static char *words[3 * MOST + 3];
static int count;
static const char *metadata[2 * MOST + 1];
static int pairs;
static int other_end; /* of the socket that replaced a connection */
static gfaas_store_options options = {.metadata = metadata};
static const gfaas_store_options none = {.metadata = metadata};

static int begin(void)
{
    gfaas_tensor t[MOST];
    int64_t shapes[MOST][8], n = 0;
    for (int i = 2; i + 2 < count; i += 3, n++) {
        t[n] = (gfaas_tensor){.name = words[i], .dtype = words[i + 1], .shape = shapes[n]};
        if (strcmp(words[i + 2], "-") != 0)
            for (char *at = words[i + 2]; *at; at += *at == ',')
                shapes[n][t[n].ndim++] = strtoll(at, &at, 10);
    }
    gfaas_store_close(store);
    bool some = pairs || memcmp(&options, &none, sizeof none);
    int code = gfaas_model_store(words[1], t, (size_t)n, some ? &options : NULL, &store);
    ASSERT(!code == !!store);
    pairs = 0;
    options = none;
    memset(metadata, 0, sizeof metadata);
    return code;
}

/* Decodes the third word; returns memory with its bytes. */
static unsigned char *bytes(size_t *n)
{
    static unsigned char all[4096];
    const char *hex = count > 2 ? words[2] : "";
    *n = strlen(hex) / 2;
    ASSERT(*n <= sizeof all);
    for (size_t i = 0; i < *n; i++)
        sscanf(hex + 2 * i, "%2hhx", &all[i]);
    return all;
}

static int put(bool gpu)
{
    size_t n;
    unsigned char *host = bytes(&n);
    CUdeviceptr d = 0;
    if (!gpu)
        return gfaas_store_put(store, words[1], host, n);
    primary(true);
    ASSERT(!CUDA(cuMemAlloc_v2)(&d, n) && !CUDA(cuMemcpyHtoD_v2)(d, host, n));
    int code = gfaas_store_put(store, words[1], (const void *)(uintptr_t)d, n);
    ASSERT(!CUDA(cuMemFree_v2)(d));
    primary(false);
    return code;
}

static int write_to(void)
{
    gfaas_tensor t;
    size_t n;
    unsigned char *host = bytes(&n);
    int code = gfaas_store_find(store, words[1], &t);
    if (code)
        return code;
    ASSERT(t.bytes == n && t.ptr % 256 == 0);
    primary(true);
    ASSERT(!CUDA(cuMemcpyHtoD_v2)(t.ptr, host, n));
    primary(false);
    return 0;
}

static void *put_many(void *name)
{
    char *some = malloc(MIB);
    memset(some, atoi(words[1]), MIB);
    ASSERT(!gfaas_store_put(store, name, some, MIB));
    free(some);
    return NULL;
}

static int threads(void)
{
    pthread_t t[MOST];
    for (int i = 2; i < count; i++)
        ASSERT(!pthread_create(&t[i], NULL, put_many, words[i]));
    for (int i = 2; i < count; i++)
        pthread_join(t[i], NULL);
    return 0;
}

static void show(void)
{
    gfaas_tensor t;
    unsigned char some[32];
    ASSERT(model && !*gfaas_model_sha256(model));
    for (size_t i = 0; i < gfaas_model_count(model); i++) {
        ASSERT(!gfaas_model_tensor(model, i, &t));
        primary(true);
        ASSERT(!t.bytes || !CUDA(cuMemcpyDtoH_v2)(some, t.ptr, t.bytes < 32 ? t.bytes : 32));
        primary(false);
        printf("%s ", t.name);
        for (uint64_t k = 0; k < t.bytes && k < 32; k++)
            printf("%02x", some[k]);
        printf("; ");
    }
    puts("");
}

static int sealed(void)
{
    gfaas_tensor t;
    ASSERT(model && !gfaas_model_tensor(model, 0, &t));
    primary(true);
    ASSERT(CUDA(cuMemsetD8_v2)(t.ptr, 1, t.bytes) || CUDA(cuCtxSynchronize)());
    return 0;
}

static int forks(void)
{
    int status = 1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char some = 0;
        gfaas_tensor t;
        ASSERT(gfaas_store_put(store, words[1], &some, 1) == GFAAS_MODEL_USAGE && strstr(gfaas_model_error(), "parent"));
        ASSERT(gfaas_store_find(store, words[1], &t) == GFAAS_MODEL_USAGE && gfaas_store_touch(store) == GFAAS_MODEL_USAGE);
        ASSERT(gfaas_store_commit(store, &model) == GFAAS_MODEL_USAGE && !model);
        gfaas_store_close(store);
        _exit(0);
    }
    ASSERT(waitpid(child, &status, 0) == child);
    return status;
}

static int replace(void)
{
    int pair[2];
    DIR *d = opendir("/proc/self/fd");
    ASSERT(d);
    for (struct dirent *e; (e = readdir(d));) {
        char link[16] = "";
        if (readlinkat(dirfd(d), e->d_name, link, sizeof link - 1) <= 0 || strncmp(link, "socket:", 7) != 0)
            continue;
        ASSERT(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) && dup2(pair[0], atoi(e->d_name)) >= 0);
        close(pair[0]);
        other_end = pair[1];
        shutdown(other_end, SHUT_WR); /* so that the library would get no answer */
        break;
    }
    closedir(d);
    return 0;
}

static int untouched(void)
{
    char some;
    ASSERT(recv(other_end, &some, 1, MSG_DONTWAIT) < 0);
    return close(other_end);
}

static int other(void)
{
    CUcontext c;
    CUdevice dev;
    ASSERT(!CUDA(cuInit)(0) && !CUDA(cuDeviceGet)(&dev, 0) && !CUDA(cuCtxCreate_v2)(&c, 0, dev));
    return 0;
}

static int commit(bool keep)
{
    gfaas_model_close(model);
    model = NULL;
    int code = gfaas_store_commit(store, keep ? &model : NULL);
    ASSERT(!keep || !code == !!model);
    return code;
}

static int close_all(void)
{
    gfaas_store_close(store);
    gfaas_model_close(model);
    store = NULL;
    model = NULL;
    return 0;
}

static int obey(void)
{
    const char *w = words[0];
    if (!strcmp(w, "with")) {
        metadata[2 * pairs] = strdup(words[1]);
        metadata[2 * pairs++ + 1] = count > 2 ? strdup(words[2]) : NULL;
        return 0;
    }
    return !strcmp(w, "store")      ? begin()
           : !strcmp(w, "everyone") ? (options.everyone = 1, 0)
           : !strcmp(w, "wait")     ? (options.timeout_ms = atoi(words[1]), 0)
           : !strcmp(w, "reserved") ? (options.reserved[6] = 1, 0)
           : !strcmp(w, "put")      ? put(false)
           : !strcmp(w, "gpu")      ? put(true)
           : !strcmp(w, "write")    ? write_to()
           : !strcmp(w, "threads")  ? threads()
           : !strcmp(w, "touch")    ? gfaas_store_touch(store)
           : !strcmp(w, "commit")   ? commit(true)
           : !strcmp(w, "abandon")  ? commit(false)
           : !strcmp(w, "close")    ? close_all()
           : !strcmp(w, "sealed")   ? sealed()
           : !strcmp(w, "fork")     ? forks()
           : !strcmp(w, "other")    ? other()
           : !strcmp(w, "replace")  ? replace()
           : !strcmp(w, "untouched") ? untouched()
                                    : -1;
}

int main(void)
{
    static char line[1 << 16];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        count = 0;
        for (char *w = strtok(line, " "); w; w = strtok(NULL, " "))
            words[count++] = w;
        words[count] = NULL;
        if (!strcmp(words[0], "show")) {
            show();
        } else if (!strcmp(words[0], "descriptors")) {
            printf("%d\n", descriptors());
        } else {
            int code = obey();
            printf("%d %s\n", code, code ? gfaas_model_error() : "");
        }
        fflush(stdout);
    }
    close_all();
    return 0;
}
