/* stubs.c: a function that the simulated driver exports but does not simulate (a stub) returns
 * CUDA_ERROR_NOT_SUPPORTED for any arguments. */
#define CUDA_EXACT_NAMES
#include "tap.h"

/* Declarations of the functions that symbols.def lists by CU_NAME: cuda.h does not declare them. */
#define CU(name, since, variant, hook, sim, stream, params, args)
#define CU_NAME(name, since) CUresult name(void);
#include "symbols.def"

/* All stubs: the functions of CU_NAME, and those of CU whose column `sim` is STUB, with their variants for
 * per-thread default streams. The macro ROW_x gives the entry of a function whose column is x. */
static const struct {
    const char *name;
    CUresult (*call)(void);
} stubs[] = {
#define STUB(name) {#name, (CUresult(*)(void))(void (*)(void))name},
#define TWIN_NONE(name)
#define TWIN_PTSZ(name) STUB(name##_ptsz)
#define TWIN_PTDS(name) STUB(name##_ptds)
#define NO_ROW(name, variant)
#define ROW_ALIAS NO_ROW
#define ROW_AS(call) NO_ROW
#define ROW_OWN NO_ROW
#define ROW_LOCKED NO_ROW
#define ROW_CONTEXT NO_ROW
#define ROW_UNSAFE NO_ROW
#define ROW_STREAM NO_ROW
#define ROW_QUERY NO_ROW
#define ROW_DEVICE(dev) NO_ROW
#define ROW_GET(word, out, value) NO_ROW
#define ROW_HANDLE(kind, handle) NO_ROW
#define APPLY(row, name, variant) row(name, variant)
#define ROW_STUB(name, variant) STUB(name) TWIN_##variant(name)
#define CU(name, since, variant, hook, sim, stream, params, args) APPLY(ROW_##sim, name, variant)
#define CU_NAME(name, since) STUB(name)
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
