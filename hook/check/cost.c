/* cost: prints how many nanoseconds an asynchronous launch takes the program, and how many the
 * preload library adds to it, marks included.
 *
 *   cost ROUNDS
 *
 * In each round the GPU is kept busy, so that launches queue up without being polled. The driver's
 * own function and the linked one take turns (own, linked, linked, own), so that drift affects both
 * equally. Both figures are means over the rounds without the lowest and the highest 5%, in which
 * the program was interrupted. A median would ignore a mark that occurs in fewer than half of the
 * rounds. */
#define _GNU_SOURCE
#include "check.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>

enum { BURST = 250, BUSY_US = 400 }; /* four bursts fit into a stream's queue and into BUSY_US */
typedef __typeof__(cuLaunchKernel) launcher;

/* Returns the function that the driver exports. It reads the driver's symbol table, because a
 * preload library answers every call of the loader. */
static launcher *drivers_own(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    struct link_map *map;
    const char *strings = NULL;
    const ElfW(Sym) *symbol = NULL;
    ASSERT(driver && dlinfo(driver, RTLD_DI_LINKMAP, &map) == 0);
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_STRTAB)
            strings = (const char *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_SYMTAB)
            symbol = (const ElfW(Sym) *)entry->d_un.d_ptr;
    }
    for (; (const char *)symbol < strings; symbol++) /* every linker puts the names after the symbols */
        if (symbol->st_value && !strcmp(strings + symbol->st_name, name))
            return (launcher *)(map->l_addr + symbol->st_value);
    fprintf(stderr, "cost: no %s among the symbols of %s\n", name, map->l_name);
    exit(1);
}

/* Returns the nanoseconds per launch. */
static double burst(launcher *launch, CUfunction nop, CUstream stream)
{
    double began = now_s();
    for (int i = 0; i < BURST; i++)
        launch(nop, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    return (now_s() - began) / BURST * 1e9;
}

/* Keeps the GPU busy, and gives the driver a moment to start the kernel. */
static void occupy(launcher *launch, CUfunction busy, CUstream stream)
{
    ASSERT_SUCCESS(launch(busy, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    for (double began = now_s(); now_s() - began < BUSY_US * 1e-6 / 5;)
        ;
}

static int in_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double mean(double *of, int n)
{
    double sum = 0;
    int cut = n / 20;
    qsort(of, (size_t)n, sizeof *of, in_order);
    for (int i = cut; i < n - cut; i++)
        sum += of[i];
    return sum / (n - 2 * cut);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 1000;
    if (rounds < 1)
        return 2;
    own_context();
    CUfunction busy = timed_kernel(BUSY_US), nop = timed_kernel(0);
    CUstream stream = new_stream();
    launcher *own = drivers_own("cuLaunchKernel");
    double *bare = calloc((size_t)rounds, sizeof *bare), *added = calloc((size_t)rounds, sizeof *added);
    ASSERT(bare && added);
    for (int i = 0; i < rounds; i++) {
        occupy(own, busy, stream);
        double first = burst(own, nop, stream);
        double linked = burst(cuLaunchKernel, nop, stream) + burst(cuLaunchKernel, nop, stream);
        bare[i] = (first + burst(own, nop, stream)) / 2;
        added[i] = linked / 2 - bare[i];
        ASSERT_SUCCESS(cuStreamSynchronize(stream));
    }
    printf("%.1f %.1f\n", mean(bare, rounds), mean(added, rounds));
    return 0;
}
