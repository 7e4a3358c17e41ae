/* lookup.c: answers dlsym and cuGetProcAddress with wrappers, and keeps dlopen
 * from bypassing them.
 *
 * The CUDA runtime asks the driver for its functions instead of linking to
 * them, so exporting the names is not enough. The driver resolves name,
 * version and stream variant. The address that it returns is then replaced by the
 * wrapper of the function at that address. */
#include "lookup.h"

#include "loader.h"
#include "real.h"
#include "say.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The wrappers, which the program may also call by name. */
#define GF_IF_LAUNCH(...) __VA_ARGS__
#define GF_IF_COPY(...) __VA_ARGS__
#define GF_IF_SYNC(...) __VA_ARGS__
#define GF_IF_SWITCH(...) __VA_ARGS__
#define GF_IF_WATCH(...) __VA_ARGS__
#define GF_IF_WAIT(...) __VA_ARGS__
#define GF_IF_HAND(...) __VA_ARGS__
#define GF_IF_PASS(...)

#define DRIVER "libcuda.so"

/* Returns the result of a call while there is no driver. */
static CUresult no_driver(const char *symbol)
{
    return strcmp(symbol, "cuInit") == 0 ? CUDA_ERROR_SHARED_OBJECT_INIT_FAILED : CUDA_ERROR_NOT_INITIALIZED;
}

#define CU_SYMBOL(symbol, since, hook, params, args) \
    GF_IF_##hook(GF_NAME(CUresult, symbol, DRIVER, params, args, gf_boot(), no_driver(#symbol)))
#include "symbols.def"

struct wrapped {
    const char *name;
    void *exported; /* the address to which the name is bound */
    void *gated;    /* the gated function: next.c */
    void *real;     /* the driver's function */
    void *wrapper;  /* the exported or the gated function: the one returned in place of the driver's */
    size_t at;      /* offset of the driver's function in gf_real */
};

static struct wrapped table[] = {
#define CU_SYMBOL(symbol, since, hook, params, args) \
    GF_IF_##hook({#symbol, (void *)named_##symbol, (void *)symbol, NULL, NULL, offsetof(struct gf_driver, symbol)},)
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

/* Returns the row of a function, or NULL if it is not wrapped. */
static struct wrapped *row_named(const char *name)
{
    pthread_once(&by_name_once, sort_by_name);
    struct wrapped key = {.name = name};
    return bsearch(&key, table, ROWS, sizeof *table, compare_names);
}

/* Fills the table once. Returns false if there is no driver. As in boot in real.c, calls that take
 * the loader's lock are outside the pthread_once functions. */
static bool ready(void)
{
    static bool found;
    if (!gf_boot())
        return false;
    pthread_once(&by_name_once, sort_by_name);
    if (!__atomic_load_n(&found, __ATOMIC_ACQUIRE)) {
        for (unsigned i = 0; i < ROWS; i++) {
            gf_store(&table[i].real, gf_real_at(table[i].at));
            gf_store(&table[i].wrapper, gf_next(NULL, table[i].name, DRIVER) ? table[i].gated : table[i].exported);
        }
        dlerror();
        __atomic_store_n(&found, true, __ATOMIC_RELEASE);
    }
    pthread_once(&by_address_once, sort_by_address);
    return true;
}

/* Returns the wrapper of the driver's function at the address, or NULL if it has none. */
static void *wrapper_of(void *address)
{
    ready();
    struct wrapped key = {.real = address}, *wanted = &key;
    struct wrapped **row = bsearch(&wanted, by_address, addresses, sizeof *by_address, compare_addresses);
    return row ? (*row)->wrapper : NULL;
}

/* Called by dlsym below. Returns its result, or NULL if the real dlsym is to answer. */
GF_EARLY __attribute__((used)) static void *gf_dlsym_pick(void *handle, const char *name, const void *caller)
{
    gf_loader_init();
    if (name && strncmp(name, "nvml", 4) == 0)
        return gf_nvml_pick(handle, name, caller);
    /* While the driver is being opened, it may look up functions itself. */
    if (!name || name[0] != 'c' || name[1] != 'u' || gf_booting)
        return NULL;
    struct wrapped *row = row_named(name);
    if (!row || !ready() || !row->real)
        return NULL;
    return gf_stand_in(handle, name, caller, DRIVER, row->real, row->wrapper);
}

/* Called by dlopen below. Returns the mode without RTLD_DEEPBIND. With that flag, a library would
 * be searched, with the libraries it needs, before the preloaded ones, and find the driver's
 * functions and the C library's dlsym there. */
__attribute__((used)) static int gf_dlopen_mode(const char *file, int mode)
{
    gf_loader_init();
    if (file && mode & RTLD_DEEPBIND)
        gf_say(GF_SAY_DEEP, "%s is opened without RTLD_DEEPBIND, with which its GPU work would bypass the gate", file);
    return mode & ~RTLD_DEEPBIND;
}

/* Called by dlmopen below. A library in another namespace gets its own copies of all libraries it
 * needs, including the C library and the driver, but not of this one. So it is opened in the
 * program's namespace instead. */
__attribute__((used)) static int gf_dlmopen_mode(Lmid_t namespace, const char *file, int mode)
{
    gf_loader_init();
    if (file && namespace != LM_ID_BASE)
        gf_say(GF_SAY_NAMESPACE, "%s is opened in the program's own namespace: in a separate one, its GPU work would bypass the gate", file);
    return mode & ~RTLD_DEEPBIND;
}

/* The real functions inspect their caller's address (dlsym for RTLD_NEXT, dlopen for its search
 * path), so the code below jumps to them instead of calling them. */
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

/* All functions of the list. */
static const struct function { const char *name; int since; const char *suffix; } functions[] = {
#define GF_SUFFIX_NONE ""
#define GF_SUFFIX_PTSZ "_ptsz"
#define GF_SUFFIX_PTDS "_ptds"
#define CU(name, since, variant, hook, sim, stream, params, args) {#name, since, GF_SUFFIX_##variant},
#define CU_NAME(name, since) {#name, since, ""},
#include "symbols.def"
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

/* Returns the newest function that has the name, or the name and _vN, and that the version has, or NULL. */
static const struct function *newest_named(const char *symbol, int version)
{
    const struct function *newest = NULL;
    size_t length = strlen(symbol);
    for (const struct function *f = functions; f < functions + FUNCTIONS; f++) {
        const char *suffix = f->name + length;
        if (strncmp(f->name, symbol, length) == 0 && (!*suffix || strncmp(suffix, "_v", 2) == 0) && f->since <= version &&
            (!newest || f->since >= newest->since))
            newest = f;
    }
    return newest;
}

/* Chooses a wrapper by name, version and stream variant, as the driver would, if the driver's
 * address is not one of its exports. Returns NULL if there is none. */
static void *by_request(const char *symbol, int version, cuuint64_t flags)
{
    int newest = 0;
    char full[128];
    if (gf_real.cuDriverGetVersion(&newest) == CUDA_SUCCESS && newest < version)
        version = newest;
    if (version >= 12000 && strcmp(symbol, "cuGraphInstantiate") == 0)
        symbol = "cuGraphInstantiateWithFlags"; /* since 12.0 that name means this function */
    const struct function *f = newest_named(symbol, version);
    if (!f)
        return NULL;
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM && version >= 7000;
    snprintf(full, sizeof full, "%s%s", f->name, per_thread ? f->suffix : "");
    struct wrapped *row = row_named(full);
    return row ? row->wrapper : NULL;
}

/* Prints that the driver has a function unknown to this library, whose work may have to pass the
 * gate. Only a driver newer than symbols.def has any. */
static void report_unknown(const char *symbol)
{
    static int newest; /* threads that compute it at the same time store the same value */
    int version = 0, most = gf_load(&newest);
    for (unsigned i = 0; !gf_load(&newest) && i < FUNCTIONS; i++)
        most = functions[i].since > most ? functions[i].since : most;
    gf_store(&newest, most);
    if (gf_real.cuDriverGetVersion(&version) == CUDA_SUCCESS && version > most && !newest_named(symbol, INT_MAX))
        gf_say(GF_SAY_NEW, "the driver is newer than this library, which does not know %s: work through this function is not gated", symbol);
}

/* Replaces *pfn, the driver's answer, by the wrapper of that function. */
static void exchange(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    if (!symbol || !pfn || !*pfn)
        return;
    Dl_info info;
    void *wrapper = wrapper_of(*pfn);
    /* A function that the driver exports and the table lacks is not wrapped. An address that the
     * driver does not export is looked up by name. */
    if (!wrapper && !(dladdr(*pfn, &info) && info.dli_saddr == *pfn))
        wrapper = by_request(symbol, version, flags);
    if (wrapper)
        *pfn = wrapper;
    else
        report_unknown(symbol);
}

GF_AFTER(cuGetProcAddress, (const char *symbol, void **pfn, int version, cuuint64_t flags),
         (symbol, pfn, version, flags), exchange(symbol, pfn, version, flags))
GF_AFTER(cuGetProcAddress_v2,
         (const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status),
         (symbol, pfn, version, flags, status), exchange(symbol, pfn, version, flags))
