/* cost: prints the nanoseconds one asynchronous launch takes the program, and
 * those the preload library adds to it.
 *
 *   cost PAIRS
 *
 * The driver's own function and the one the program is linked to take turns:
 * short bursts that no work of the GPU holds up. Of both figures it is the
 * median: of the driver's bursts, and of what the burst beside it took more. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdbool.h>

enum { BURST = 100 };
typedef __typeof__(cuLaunchKernel) launcher;

/* The function as the driver exports it. No loader's call tells: a preload
 * library answers them all. */
static launcher *drivers_own(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    struct link_map *map;
    const char *strings = NULL;
    const ElfW(Sym) *symbol = NULL;
    ENSURE(driver && dlinfo(driver, RTLD_DI_LINKMAP, &map) == 0);
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_STRTAB)
            strings = (const char *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_SYMTAB)
            symbol = (const ElfW(Sym) *)entry->d_un.d_ptr;
    }
    for (; (const char *)symbol < strings; symbol++) /* every linker puts the names behind the symbols */
        if (symbol->st_value && !strcmp(strings + symbol->st_name, name))
            return (launcher *)(map->l_addr + symbol->st_value);
    fprintf(stderr, "cost: no %s among the symbols of %s\n", name, map->l_name);
    exit(1);
}

static double burst(launcher *launch, CUfunction nop, CUstream stream)
{
    MUST(launch(nop, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    double began = now_s();
    for (int i = 0; i < BURST; i++)
        launch(nop, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    double each = (now_s() - began) / BURST;
    MUST(cuStreamSynchronize(stream));
    return each * 1e9;
}

static int in_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *of, int n)
{
    qsort(of, (size_t)n, sizeof *of, in_order);
    return of[n / 2];
}

int main(int argc, char **argv)
{
    int pairs = argc > 1 ? atoi(argv[1]) : 1000;
    if (pairs < 1)
        return 2;
    own_context();
    CUfunction nop = kernel(check_ptx, "nop");
    CUstream stream = new_stream();
    launcher *own = drivers_own("cuLaunchKernel");
    double *bare = calloc((size_t)pairs, sizeof *bare), *added = calloc((size_t)pairs, sizeof *added);
    ENSURE(bare && added);
    for (int i = 0; i < pairs; i++) {
        bool first = i % 2 == 0;
        double before = first ? burst(own, nop, stream) : 0;
        added[i] = burst(cuLaunchKernel, nop, stream);
        bare[i] = first ? before : burst(own, nop, stream);
        added[i] -= bare[i];
    }
    printf("%.1f %.1f\n", median(bare, pairs), median(added, pairs));
    return 0;
}
