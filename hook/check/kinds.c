/* kinds: allocates every kind of memory up to the limit, and checks that no more can be allocated.
 *
 *   kinds fill [KIND|mixed]        each kind alone, then all mixed; or a single choice
 *   kinds race PROCESSES THREADS   all kinds at once, repeatedly
 *
 * It prints a line for each kind that passes in this driver. */
#include "kinds.h"

#include <sys/mman.h>
#include <unistd.h>

enum { ROUNDS = 60 };

static const struct kind *kinds[KINDS];
static unsigned there;

static void begin(void)
{
    use_device();
    for (unsigned i = 0; i < KINDS; i++)
        if (driver_has(&all_kinds[i]))
            kinds[there++] = &all_kinds[i];
        else
            printf("%s: not in this driver\n", all_kinds[i].name);
    fflush(stdout);
}

static CUresult get(const struct kind *k, struct held *h)
{
    *h = (struct held){.bytes = the_chunk};
    return k->get(h);
}

/* Fills the limit with chunks of `count` kinds in turn, starting with kind `first`. */
static void fill(unsigned first, unsigned count)
{
    struct held held[CHUNKS], extra;
    const struct kind *of[CHUNKS];
    for (unsigned i = 0; i < CHUNKS; i++) {
        ASSERT_FREE(the_limit - i * the_chunk);
        of[i] = kinds[first + i % count];
        ASSERT_SUCCESS(get(of[i], &held[i]));
    }
    for (unsigned i = 0; i < count; i++) {
        ASSERT_FREE(0);
        ASSERT(get(kinds[first + i], &extra) == CUDA_ERROR_OUT_OF_MEMORY);
    }
    for (unsigned i = 0; i < CHUNKS; i++) {
        of[i]->put(&held[i]);
        ASSERT_FREE(the_chunk);
        of[i] = kinds[first + (i + 1) % count];
        ASSERT_SUCCESS(get(of[i], &held[i]));
        ASSERT_FREE(0);
    }
    for (unsigned i = 0; i < CHUNKS; i++)
        of[i]->put(&held[i]);
    ASSERT_FREE(the_limit);
}

/* Refused calls (a byte too many, invalid arguments) change nothing. */
static void refused(void)
{
    CUdeviceptr at = 7, rest;
    size_t pitch = 7;
    ASSERT_SUCCESS(cuMemAlloc(&rest, the_limit - 1));
    ASSERT(cuMemAlloc(&at, 2) == CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT(cuMemAlloc(&at, SIZE_MAX) == CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT(cuMemAllocPitch(&at, &pitch, 1, 2, 4) == CUDA_ERROR_OUT_OF_MEMORY);
    ASSERT(at == 7 && pitch == 7);
    ASSERT(cuMemAlloc(NULL, 1) == CUDA_ERROR_INVALID_VALUE && cuMemAlloc(&at, 0) == CUDA_ERROR_INVALID_VALUE);
    ASSERT(cuMemFree(rest + 8) == CUDA_ERROR_INVALID_VALUE);
    ASSERT_FREE(1);
    ASSERT_SUCCESS(cuMemAlloc(&at, 1));
    ASSERT_FREE(0);
    ASSERT_SUCCESS(cuMemFree(at));
    ASSERT_SUCCESS(cuMemFree(rest));
    ASSERT_FREE(the_limit);
}

/* Memory that ends with its context becomes available again. */
static void contexts(void)
{
    CUcontext other;
    ASSERT_SUCCESS(cuCtxCreate(&other, 0, the_device));
    new_memory(the_limit);
    ASSERT_SUCCESS(cuCtxDestroy(other));
    ASSERT_FREE(the_limit);
}

/* Runs the named part, or all parts if `only` is NULL. */
static int fill_all(const char *only)
{
    if (only && strcmp(only, "mixed") != 0) {
        for (unsigned i = 0; i < there; i++)
            if (!strcmp(kinds[i]->name, only)) {
                fill(i, 1);
                return 0;
            }
        return 77;
    }
    refused();
    contexts();
    for (unsigned i = 0; i < there && !only; i++) {
        fill(i, 1);
        printf("%s: right\n", kinds[i]->name);
    }
    fill(0, there);
    printf("mixed: right\n");
    return 0;
}

static unsigned *holding; /* lower bound of the chunks held by all processes: counted late, uncounted early */

static void *racer(void *arg)
{
    unsigned turn = (unsigned)(uintptr_t)arg, got = 0;
    primary_of(the_device);
    for (unsigned i = 0; i < ROUNDS || !got; i++) {
        struct held held[3];
        unsigned have = 0;
        for (const struct kind *k = kinds[turn++ % there]; have < 3; have++) {
            CUresult result = get(k, &held[have]);
            if (result == CUDA_ERROR_OUT_OF_MEMORY)
                break;
            ASSERT_SUCCESS(result);
            ASSERT(__atomic_add_fetch(holding, 1, __ATOMIC_SEQ_CST) <= CHUNKS);
        }
        got += have;
        for (const struct kind *k = kinds[(turn - 1) % there]; have > 0;) {
            __atomic_sub_fetch(holding, 1, __ATOMIC_SEQ_CST);
            k->put(&held[--have]);
        }
    }
    return NULL;
}

static int race(int process, int threads)
{
    pthread_t all[64];
    ASSERT(threads <= 64);
    begin();
    for (int i = 0; i < threads; i++)
        all[i] = start_thread(racer, (void *)(uintptr_t)(process * 3 + i));
    for (int i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    return 0;
}

int main(int argc, char **argv)
{
    int status, failed = 0;
    if ((argc == 2 || argc == 3) && !strcmp(argv[1], "fill")) {
        begin();
        return fill_all(argv[2]);
    }
    if (argc != 4 || strcmp(argv[1], "race"))
        return 2;
    holding = mmap(NULL, sizeof *holding, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT(holding != MAP_FAILED);
    for (int i = 0; i < atoi(argv[2]); i++)
        if (fork() == 0)
            exit(race(i, atoi(argv[3]))); /* the driver is first used after the fork */
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}
