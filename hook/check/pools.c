/* pools: threads free the last blocks of pools while other threads destroy these pools and import
 * pools, which may get the same addresses; COUNT times.
 *
 *   pools COUNT */
#include "check.h"

enum { PAIRS = 4 };

static const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static CUcontext context;
static void *shared;
static int count;

/* Two threads that share one pool. */
static struct pair {
    pthread_barrier_t turn;
    CUdeviceptr block;
} pairs[PAIRS];

static void *frees(void *arg)
{
    struct pair *p = arg;
    ASSERT_SUCCESS(cuCtxSetCurrent(context));
    for (int i = 0; i < count; i++) {
        pthread_barrier_wait(&p->turn);
        ASSERT_SUCCESS(cuMemFreeAsync(p->block, CU_STREAM_PER_THREAD));
        pthread_barrier_wait(&p->turn);
    }
    return NULL;
}

static void *destroys(void *arg)
{
    struct pair *p = arg;
    CUmemoryPool pool, imported;
    unsigned seed = (unsigned)(p - pairs);
    ASSERT_SUCCESS(cuCtxSetCurrent(context));
    for (int i = 0; i < count; i++) {
        ASSERT_SUCCESS(cuMemPoolCreate(&pool, &props));
        ASSERT_SUCCESS(cuMemAllocFromPoolAsync(&p->block, 4096, pool, CU_STREAM_PER_THREAD));
        pthread_barrier_wait(&p->turn);
        for (volatile unsigned pause = (unsigned)rand_r(&seed) % 3000; pause > 0; pause--)
            ;
        ASSERT_SUCCESS(cuMemPoolDestroy(pool));
        ASSERT_SUCCESS(cuMemPoolImportFromShareableHandle(&imported, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                                          0));
        ASSERT_SUCCESS(cuMemPoolDestroy(imported));
        pthread_barrier_wait(&p->turn);
        ASSERT_SUCCESS(cuCtxSynchronize());
    }
    return NULL;
}

/* Returns a pool's handle, from which pools can be imported any number of times. */
static void *shared_pool(void)
{
    CUmemPoolProps shareable = props;
    CUmemoryPool pool;
    int fd;
    shareable.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    ASSERT_SUCCESS(cuMemPoolCreate(&pool, &shareable));
    ASSERT_SUCCESS(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    return (void *)(size_t)fd;
}

int main(int argc, char **argv)
{
    pthread_t thread[2 * PAIRS];
    if (argc != 2)
        return 2;
    count = atoi(argv[1]);
    context = primary_context();
    shared = shared_pool();
    for (int i = 0; i < PAIRS; i++) {
        pthread_barrier_init(&pairs[i].turn, NULL, 2);
        thread[2 * i] = start_thread(frees, &pairs[i]);
        thread[2 * i + 1] = start_thread(destroys, &pairs[i]);
    }
    for (int i = 0; i < 2 * PAIRS; i++)
        pthread_join(thread[i], NULL);
    return 0;
}
