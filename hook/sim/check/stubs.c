/* stubs.c: what the simulated driver exports and does not simulate says so,
 * whatever it is given. */
#define CUDA_EXACT_NAMES
#include "tap.h"

#define CU(name, since, variant, hook, sim, stream, params, args)
#define CU_NAME(name) CUresult name(void);
#include "symbols.def"

static const struct {
    const char *name;
    CUresult (*call)(void);
} stubs[] = {
#define STUB(name) {#name, (CUresult(*)(void))(void (*)(void))name},
#define TWIN_NONE(name)
#define TWIN_PTSZ(name) STUB(name##_ptsz)
#define TWIN_PTDS(name) STUB(name##_ptds)
#define ROW_ALIAS(name, variant)
#define ROW_OWN(name, variant)
#define ROW_LOCKED(name, variant)
#define ROW_CONTEXT(name, variant)
#define ROW_UNSAFE(name, variant)
#define ROW_STREAM(name, variant)
#define ROW_STUB(name, variant) STUB(name) TWIN_##variant(name)
#define CU(name, since, variant, hook, sim, stream, params, args) ROW_##sim(name, variant)
#define CU_NAME(name) STUB(name)
#include "symbols.def"
};

int main(void)
{
    first_device();
    for (size_t i = 0; i < sizeof stubs / sizeof *stubs; i++)
        if (!CHECK(stubs[i].call() == CUDA_ERROR_NOT_SUPPORTED))
            printf("# %s\n", stubs[i].name);
    return tap_end();
}
