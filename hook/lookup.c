/* lookup.c: answers dlsym and cuGetProcAddress with wrappers, and keeps dlopen
 * from leading around them.
 *
 * The CUDA runtime asks the driver for its functions instead of linking to
 * them, so exporting the names is not enough. The driver resolves name,
 * version and stream flavour; the address it gives is then exchanged for the
 * wrapper of the very function at that address. */
#include "lookup.h"

#include "loader.h"
#include "real.h"
#include "say.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

/* The wrappers, which the program may call by name too. */
#define GF_HAS_LAUNCH GF_ENTRY
#define GF_HAS_COPY GF_ENTRY
#define GF_HAS_SYNC GF_ENTRY
#define GF_HAS_SWITCH GF_ENTRY
#define GF_HAS_WATCH GF_ENTRY
#define GF_HAS_WAIT GF_ENTRY
#define GF_HAS_HAND GF_ENTRY
#define GF_HAS_PASS(...)
#define GF_ENTRY(name, variant, params, args) GF_ROW(name, params, args) GF_ENTRY_##variant(name, params, args)
#define GF_ENTRY_NONE(...)
#define GF_ENTRY_PTSZ(name, params, args) GF_ROW(name##_ptsz, params, args)
#define GF_ENTRY_PTDS(name, params, args) GF_ROW(name##_ptds, params, args)

#define DRIVER "libcuda.so"
#define GF_ROW(symbol, params, args) GF_NAME(CUresult, symbol, DRIVER, params, args)
#define CU(name, since, variant, hook, sim, stream, params, args) GF_HAS_##hook(name, variant, params, args)
#include "symbols.def"

struct wrapped {
    const char *name;
    void *exported; /* what the name is bound to */
    void *gated;    /* next.c */
    void *real;     /* the driver's */
    void *wrapper;  /* which of the two stands in for that */
};

static struct wrapped table[] = {
#undef GF_ROW
#define GF_ROW(symbol, params, args) {#symbol, (void *)named_##symbol, (void *)symbol, NULL, NULL},
#define CU(name, since, variant, hook, sim, stream, params, args) GF_HAS_##hook(name, variant, params, args)
#include "symbols.def"
};
enum { ROWS = sizeof table / sizeof *table };
static struct wrapped *by_address[ROWS];
static unsigned addresses;
static pthread_once_t by_name_once = PTHREAD_ONCE_INIT;
static pthread_once_t by_address_once = PTHREAD_ONCE_INIT;

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct wrapped *)a)->name, ((const struct wrapped *)b)->name);
}

static int compare_addresses(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)(*(struct wrapped *const *)a)->real;
    uintptr_t y = (uintptr_t)(*(struct wrapped *const *)b)->real;
    return x < y ? -1 : x > y;
}

static void sort_by_name(void) { qsort(table, ROWS, sizeof *table, compare_names); }

static void sort_by_address(void)
{
    for (unsigned i = 0; i < ROWS; i++)
        if (table[i].real)
            by_address[addresses++] = &table[i];
    qsort(by_address, addresses, sizeof *by_address, compare_addresses);
}

/* The row of that name, or NULL if it is not wrapped. */
static struct wrapped *row_named(const char *name)
{
    pthread_once(&by_name_once, sort_by_name);
    struct wrapped key = {.name = name};
    return bsearch(&key, table, ROWS, sizeof *table, compare_names);
}

/* Like boot in real.c: what takes the loader's lock is outside of the onces. */
static bool ready(void)
{
    static bool found;
    if (!gf_boot())
        return false;
    pthread_once(&by_name_once, sort_by_name);
    if (!__atomic_load_n(&found, __ATOMIC_ACQUIRE)) {
        for (unsigned i = 0; i < ROWS; i++) {
            gf_store(&table[i].real, gf_real_find(table[i].name));
            gf_store(&table[i].wrapper, gf_next(NULL, table[i].name, DRIVER) ? table[i].gated : table[i].exported);
        }
        dlerror();
        __atomic_store_n(&found, true, __ATOMIC_RELEASE);
    }
    pthread_once(&by_address_once, sort_by_address);
    return true;
}

/* Returns the wrapper of the driver's function at that address, or the address. */
static void *wrapper_of(void *address)
{
    if (!ready())
        return address;
    struct wrapped key = {.real = address}, *wanted = &key;
    struct wrapped **row = bsearch(&wanted, by_address, addresses, sizeof *by_address, compare_addresses);
    return row ? (*row)->wrapper : address;
}

/* Called by dlsym below: the answer, or NULL to let the real dlsym answer. */
GF_EARLY __attribute__((used)) static void *gf_dlsym_pick(void *handle, const char *name, const void *caller)
{
    gf_loader_init();
    if (name && strncmp(name, "nvml", 4) == 0)
        return gf_nvml_pick(handle, name, caller);
    /* While the driver is being opened it may look for functions itself. */
    if (!name || name[0] != 'c' || name[1] != 'u' || gf_booting)
        return NULL;
    struct wrapped *row = row_named(name);
    if (!row || !ready() || !row->real)
        return NULL;
    return gf_stand_in(handle, name, caller, DRIVER, row->real, row->wrapper);
}

/* Called by dlopen below: how the library is to be opened. RTLD_DEEPBIND has it
 * search itself and the libraries it needs before the preloaded ones: it would find
 * the driver's functions there, and the C library's dlsym. */
__attribute__((used)) static int gf_dlopen_mode(const char *file, int mode)
{
    gf_loader_init();
    if (file && mode & RTLD_DEEPBIND)
        gf_say(GF_SAY_DEEP, "%s is opened without RTLD_DEEPBIND, by which its GPU work would go ungated", file);
    return mode & ~RTLD_DEEPBIND;
}

/* Called by dlmopen below. In a namespace of its own a library has copies of all it
 * needs, the C library and the driver too, and this one is not among them: it is
 * opened in the program's. */
__attribute__((used)) static int gf_dlmopen_mode(Lmid_t namespace, const char *file, int mode)
{
    gf_loader_init();
    if (file && namespace != LM_ID_BASE)
        gf_say(GF_SAY_NAMESPACE, "%s is opened in the program's own namespace: in another its GPU work would go ungated", file);
    return mode & ~RTLD_DEEPBIND;
}

/* The real functions look at who called them, dlsym for RTLD_NEXT and dlopen for
 * where it searches, so they are jumped to, not called. */
#if defined(__x86_64__)
#define GF_CALL(function, before) \
    "  .cfi_startproc\n" \
    "  endbr64\n" \
    before \
    "  pushq %rdi\n" \
    "  .cfi_adjust_cfa_offset 8\n" \
    "  pushq %rsi\n" \
    "  .cfi_adjust_cfa_offset 8\n" \
    "  subq $8, %rsp\n" \
    "  .cfi_adjust_cfa_offset 8\n" \
    "  call " #function "\n" \
    "  addq $8, %rsp\n" \
    "  .cfi_adjust_cfa_offset -8\n" \
    "  popq %rsi\n" \
    "  .cfi_adjust_cfa_offset -8\n" \
    "  popq %rdi\n" \
    "  .cfi_adjust_cfa_offset -8\n"
__asm__(".text\n"
        ".globl dlsym, dlopen, dlmopen\n"
        ".type dlsym, @function\n"
        ".type dlopen, @function\n"
        ".type dlmopen, @function\n"
        "dlsym:\n" GF_CALL(gf_dlsym_pick, "  movq (%rsp), %rdx\n")
        "  testq %rax, %rax\n"
        "  jne 1f\n"
        "  jmp *gf_real_dlsym(%rip)\n"
        "1: ret\n"
        "  .cfi_endproc\n"
        ".size dlsym, .-dlsym\n"
        "dlopen:\n" GF_CALL(gf_dlopen_mode, "")
        "  movl %eax, %esi\n"
        "  jmp *gf_real_dlopen(%rip)\n"
        "  .cfi_endproc\n"
        ".size dlopen, .-dlopen\n"
        "dlmopen:\n" GF_CALL(gf_dlmopen_mode, "")
        "  movq %rsi, %rdi\n"
        "  movl %eax, %esi\n"
        "  jmp *gf_real_dlopen(%rip)\n"
        "  .cfi_endproc\n"
        ".size dlmopen, .-dlmopen\n");
#elif defined(__aarch64__)
#define GF_CALL(function, pointer, before) \
    "  .cfi_startproc\n" \
    before \
    "  stp x29, x30, [sp, #-32]!\n" \
    "  .cfi_adjust_cfa_offset 32\n" \
    "  stp x0, x1, [sp, #16]\n" \
    "  bl " #function "\n" \
    "  mov x2, x0\n" \
    "  ldp x0, x1, [sp, #16]\n" \
    "  ldp x29, x30, [sp], #32\n" \
    "  .cfi_adjust_cfa_offset -32\n" \
    "  adrp x3, " #pointer "\n" \
    "  ldr x3, [x3, #:lo12:" #pointer "]\n"
__asm__(".text\n"
        ".globl dlsym, dlopen, dlmopen\n"
        ".type dlsym, %function\n"
        ".type dlopen, %function\n"
        ".type dlmopen, %function\n"
        "dlsym:\n" GF_CALL(gf_dlsym_pick, gf_real_dlsym, "  mov x2, x30\n")
        "  cbnz x2, 1f\n"
        "  br x3\n"
        "1: mov x0, x2\n"
        "  ret\n"
        "  .cfi_endproc\n"
        ".size dlsym, .-dlsym\n"
        "dlopen:\n" GF_CALL(gf_dlopen_mode, gf_real_dlopen, "")
        "  mov w1, w2\n"
        "  br x3\n"
        "  .cfi_endproc\n"
        ".size dlopen, .-dlopen\n"
        "dlmopen:\n" GF_CALL(gf_dlmopen_mode, gf_real_dlopen, "")
        "  mov x0, x1\n"
        "  mov w1, w2\n"
        "  br x3\n"
        "  .cfi_endproc\n"
        ".size dlmopen, .-dlmopen\n");
#endif
__asm__(".section .note.GNU-stack,\"\",@progbits\n.text\n");

/* The driver gave an address that is none of its exports: choose by name,
 * version and flavour as it would have. */
static void *by_request(const char *symbol, int version, cuuint64_t flags)
{
    static const struct { const char *name; int since; bool twin; char suffix[6]; } all[] = {
#define GF_SUFFIX_NONE false, ""
#define GF_SUFFIX_PTSZ true, "_ptsz"
#define GF_SUFFIX_PTDS true, "_ptds"
#define CU(name, since, variant, hook, sim, stream, params, args) {#name, since, GF_SUFFIX_##variant},
#include "symbols.def"
    };
    int best = -1, newest = 0;
    if (gf_real.cuDriverGetVersion(&newest) == CUDA_SUCCESS && newest < version)
        version = newest;
    if (version >= 12000 && strcmp(symbol, "cuGraphInstantiate") == 0)
        symbol = "cuGraphInstantiateWithFlags"; /* what that name stands for since */
    size_t length = strlen(symbol);
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        const char *rest = all[i].name + length;
        if (strncmp(all[i].name, symbol, length) != 0 || (*rest && strncmp(rest, "_v", 2) != 0))
            continue;
        if (all[i].since <= version && (best < 0 || all[i].since >= all[best].since))
            best = (int)i;
    }
    if (best < 0)
        return NULL;
    char full[128];
    bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) && all[best].twin && version >= 7000;
    size_t n = strlen(all[best].name);
    if (n + sizeof all[best].suffix > sizeof full)
        return NULL;
    memcpy(full, all[best].name, n + 1);
    if (per_thread)
        memcpy(full + n, all[best].suffix, sizeof all[best].suffix);
    struct wrapped *row = row_named(full);
    return row ? row->wrapper : NULL;
}

/* Says that the driver has a function of which is not known whether its work has to
 * wait for a gate. Only a driver newer than the list has any. */
static void look_for_new(const char *symbol)
{
    static const struct { const char *name; int since; } all[] = {
#define CU(name, since, variant, hook, sim, stream, params, args) {#name, since},
#define CU_NAME(name) {#name, 0},
#include "symbols.def"
    };
    enum { COUNT = sizeof all / sizeof *all };
    static int newest; /* threads that are here at once all find the same */
    int version = 0, most = gf_load(&newest);
    if (!most) {
        for (unsigned i = 0; i < COUNT; i++)
            most = all[i].since > most ? all[i].since : most;
        gf_store(&newest, most);
    }
    if (gf_real.cuDriverGetVersion(&version) != CUDA_SUCCESS || version <= most)
        return;
    size_t length = strlen(symbol);
    for (unsigned i = 0; i < COUNT; i++) {
        const char *rest = all[i].name + length;
        if (strncmp(all[i].name, symbol, length) == 0 && (!*rest || strncmp(rest, "_v", 2) == 0))
            return;
    }
    gf_say(GF_SAY_NEW, "the driver is newer than this library, which does not know %s: what is done by it goes ungated", symbol);
}

static void exchange(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    if (!symbol || !pfn || !*pfn)
        return;
    void *wrapper = wrapper_of(*pfn);
    if (wrapper == *pfn) {
        Dl_info info;
        /* A function that the driver exports and that is not in the table is not
         * wrapped; an address that it does not export is looked up by name. */
        bool exported = dladdr(*pfn, &info) && info.dli_saddr == *pfn;
        void *chosen = exported ? NULL : by_request(symbol, version, flags);
        if (chosen)
            wrapper = chosen;
        else
            look_for_new(symbol);
    }
    *pfn = wrapper;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    if (!ready())
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = gf_real.cuGetProcAddress(symbol, pfn, version, flags);
    if (result == CUDA_SUCCESS)
        exchange(symbol, pfn, version, flags);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                                       CUdriverProcAddressQueryResult *status)
{
    if (!ready())
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = gf_real.cuGetProcAddress_v2(symbol, pfn, version, flags, status);
    if (result == CUDA_SUCCESS)
        exchange(symbol, pfn, version, flags);
    return result;
}
