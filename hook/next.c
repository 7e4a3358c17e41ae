/* next.c: the program's own wrappers of the functions that this library wraps.
 *
 * A profiler or tracer defines functions like cuMemAlloc_v2 itself, in a library that is
 * linked or preloaded. Its wrapper counts the call and passes it on. Without libgfaas.so, the
 * dynamic linker binds the name to that wrapper. With libgfaas.so, it binds the name to this
 * library, unless the wrapper is in the executable or in a library that is preloaded before
 * this one. So each wrapped function has two addresses here:
 *
 *   cuMemAlloc_v2     the exported name. Passes the call on to the program's own wrapper if,
 *                     in the dynamic linker's search order, there is one between this library
 *                     and the driver. Otherwise, it passes the call on to the gated function.
 *   gf_cuMemAlloc_v2  the gated function (cuMemAlloc_v2 in the sources), which calls the
 *                     driver. dlsym and cuGetProcAddress return it in place of the driver's.
 *
 * A call thus passes through each of the program's wrappers as often as it would without this
 * library, and through the gate once, because the search for the next wrapper only moves forward
 * in the search order and ends at the driver. It covers only the libraries that were loaded at
 * the program's start. They are never unloaded, so no lock is needed. */
#include "loader.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

static const struct link_map *ours, *last; /* this library, and the last one that was loaded at the program's start */

GF_EARLY static const struct link_map *map_of(const void *address)
{
    Dl_info info;
    struct link_map *map = NULL;
    return dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) ? map : NULL;
}

/* Sets `ours` and `last`. It must be called before the first dlopen, because a library that dlopen
 * loads could be unloaded, and `last` must stay loaded. */
GF_EARLY void gf_next_init(void)
{
    const struct link_map *map = map_of((void *)gf_next_init), *end = map;
    while (end && end->l_next)
        end = end->l_next;
    gf_store(&last, end);
    gf_store(&ours, map);
}

/* Returns the address in the entry with that tag (such as DT_SYMTAB) of a library's dynamic section,
 * or NULL. The file holds offsets; the dynamic linker has replaced them by addresses, except in a
 * section that it cannot write, such as that of the kernel's vDSO. */
static const void *dynamic_entry(const struct link_map *map, ElfW(Sxword) tag)
{
    for (const ElfW(Dyn) *d = map->l_ld; d && d->d_tag != DT_NULL; d++)
        if (d->d_tag == tag)
            return (const void *)(d->d_un.d_ptr < map->l_addr ? map->l_addr + d->d_un.d_ptr : d->d_un.d_ptr);
    return NULL;
}

/* Reports whether the SONAME of a library, or its file name if it has no SONAME, begins with
 * soname. */
static bool soname_begins(const struct link_map *map, const char *soname)
{
    size_t length = strlen(soname);
    const char *strings = dynamic_entry(map, DT_STRTAB), *file = map->l_name ? strrchr(map->l_name, '/') : NULL;
    for (const ElfW(Dyn) *d = map->l_ld; d && strings && d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_SONAME)
            return strncmp(strings + d->d_un.d_val, soname, length) == 0;
    return file && strncmp(file + 1, soname, length) == 0;
}

/* Reports whether the SONAME of the library that contains the address begins with soname. */
static bool library_begins(void *address, const char *soname)
{
    const struct link_map *map = map_of(address);
    return map && soname_begins(map, soname);
}

/* Reports whether a symbol table entry is the definition of a non-local function with that name. */
static bool is_definition(const ElfW(Sym) *symbol, const char *strings, const char *name)
{
    unsigned type = ELF64_ST_TYPE(symbol->st_info);
    return symbol->st_shndx != SHN_UNDEF && symbol->st_value && (type == STT_FUNC || type == STT_NOTYPE) &&
           ELF64_ST_BIND(symbol->st_info) != STB_LOCAL && strcmp(strings + symbol->st_name, name) == 0;
}

/* Returns the address of a library's own definition of the function with that name, or NULL. */
static void *find_definition(const struct link_map *map, const char *name)
{
    const char *strings = dynamic_entry(map, DT_STRTAB);
    const ElfW(Sym) *symbols = dynamic_entry(map, DT_SYMTAB);
    const uint32_t *gnu = dynamic_entry(map, DT_GNU_HASH), *sysv = dynamic_entry(map, DT_HASH);
    uint32_t hash = 5381, i = 0, count = sysv ? sysv[1] : 0;
    if (!strings || !symbols)
        return NULL;
    /* A GNU hash table has a header of four words: the number of buckets, the index of the first
     * hashed symbol, the number of words in the Bloom filter, and the filter's shift. The filter, the
     * buckets and the chains follow. The lowest bit of a chain's entry marks the end of the chain. */
    if (gnu && gnu[0]) {
        for (const char *c = name; *c; c++)
            hash = hash * 33 + (unsigned char)*c;
        const uint32_t *buckets = gnu + 4 + gnu[2] * (sizeof(ElfW(Addr)) / sizeof *gnu), *chains = buckets + gnu[0];
        count = buckets[hash % gnu[0]];
        for (i = count; count; i++) {
            if ((chains[i - gnu[1]] | 1) == (hash | 1) && is_definition(&symbols[i], strings, name))
                return (void *)(map->l_addr + symbols[i].st_value);
            if (chains[i - gnu[1]] & 1)
                return NULL;
        }
        return NULL;
    }
    for (; i < count; i++)
        if (is_definition(&symbols[i], strings, name))
            return (void *)(map->l_addr + symbols[i].st_value);
    return NULL;
}

void *gf_next(const void *caller, const char *name, const char *soname)
{
    gf_loader_init();
    const struct link_map *map = caller ? map_of(caller) : gf_load(&ours), *end = gf_load(&last);
    bool behind = false;
    for (const struct link_map *m = gf_load(&ours); m; m = m == end ? NULL : m->l_next) {
        void *found = behind ? find_definition(m, name) : NULL;
        if (found)
            return soname_begins(m, soname) ? NULL : found;
        behind |= m == map;
    }
    return NULL;
}

/* Reports whether the caller's library comes after this one in the dynamic linker's search order. */
static bool comes_after(const void *caller)
{
    const struct link_map *map = map_of(caller), *m = gf_load(&ours);
    while (m && m != map)
        m = m->l_prev;
    return !m;
}

void *gf_stand_in(void *handle, const char *name, const void *caller, const char *soname, void *real, void *wrapper)
{
    void *found;
    /* The real dlsym finds this library's exported name, or that of an earlier library, if it
     * searches from the first library on, or after a library that comes before this one. */
    if (handle == RTLD_DEFAULT || (handle == RTLD_NEXT && !comes_after(caller)))
        return NULL;
    if (handle == RTLD_NEXT) {
        if ((found = gf_next(caller, name, soname)))
            wrapper = found;
    } else {
        /* The program searches one library. dlsym must still fail if that library does not have
         * the function, and must return the library's own function if it is not the driver's. A
         * second copy of the driver counts as the driver. */
        found = gf_real_dlsym(handle, name);
        if (!found || (found != real && !library_begins(found, soname)))
            return NULL;
    }
    dlerror(); /* clears the error that a search may have left: a successful dlsym leaves none */
    return wrapper;
}
