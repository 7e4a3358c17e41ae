/* binary.c: cubins and fatbins. A cubin is an ELF file with machine code; a fatbin contains cubins and PTX for
 * several architectures. The simulated GPU runs only PTX. It loads the PTX of a fatbin. Failing that, it loads
 * the declarations of a cubin's kernels, which it refuses to launch.
 *
 * The caller passes no length, as to NVIDIA's driver: the headers, which are checked before anything else is
 * read, give the sizes. pkg/kgraph/binary.go reads the same formats with a length. */
#include "module.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CUDA_MACHINE = 190, OSABI_CUDA = 0x33, OSABI_CUDA_V2 = 0x41, ENTRY = 0x10 /* st_other of a kernel */ };
enum { ARCH_MAJOR = 8, ARCH_MINOR = 0 }; /* of the simulated devices: see device.c */

/* The header of a fatbin, and that of each image in it. */
struct fatbin {
    uint32_t magic;
    uint16_t version, header;
    uint64_t size; /* of the images */
};
struct image {
    uint16_t kind, version;
    uint32_t header;
    uint64_t size; /* after the header */
    uint32_t compressed, options;
    uint16_t minor, major;
    uint32_t arch, name, name_size;
    uint64_t flags, unused, uncompressed;
};
enum { IMAGE_PTX = 1, IMAGE_ELF = 2, IMAGE_COMPRESSED = 0x2000 | 0x8000 };

static bool is_elf(const void *image) { return !strncmp(image, "\177ELF", 4); }
static bool is_fatbin(const void *image) { return !strncmp(image, "\x50\xed\x55\xba", 4); }

bool binary_is(const void *image)
{
    return is_elf(image) || is_fatbin(image) || !strncmp(image, "\xb1\x43\x62\x46", 4) /* a pointer to a fatbin */;
}

/* Returns the header of a fatbin, or NULL if it is malformed. It reads no further byte after a wrong byte. */
static const struct fatbin *fatbin_header(const unsigned char *image)
{
    const struct fatbin *f = (const void *)image;
    if (!is_fatbin(image) || image[4] != 1 || image[5] != 0 || image[6] != sizeof *f || image[7] != 0)
        return NULL;
    return f->size && f->size <= MAX_IMAGE ? f : NULL;
}

/* Returns the header of a cubin, or NULL if the file is not a cubin or is malformed. */
static const Elf64_Ehdr *elf_header(const unsigned char *image)
{
    const Elf64_Ehdr *e = (const void *)image;
    if (!is_elf(image) || image[EI_CLASS] != ELFCLASS64 || image[EI_DATA] != ELFDATA2LSB || image[EI_VERSION] != EV_CURRENT ||
        (image[EI_OSABI] != OSABI_CUDA && image[EI_OSABI] != OSABI_CUDA_V2))
        return NULL;
    if (e->e_type != ET_EXEC || e->e_machine != CUDA_MACHINE || e->e_shentsize != sizeof(Elf64_Shdr) || !e->e_shnum ||
        e->e_shstrndx >= e->e_shnum || e->e_shoff % 8 || e->e_shoff < sizeof *e || e->e_shoff > MAX_IMAGE)
        return NULL;
    return e;
}

static const Elf64_Shdr *sections(const Elf64_Ehdr *e) { return (const void *)((const char *)e + e->e_shoff); }

/* Returns the bytes of the file up to the end of its last part, or 0 if a section is malformed or the list of sections
 * exceeds `limit` bytes. */
static size_t elf_size(const Elf64_Ehdr *e, size_t limit)
{
    size_t size = e->e_shoff + e->e_shnum * sizeof(Elf64_Shdr);
    size_t programs = e->e_phoff + (size_t)e->e_phnum * e->e_phentsize;
    if (e->e_phoff > MAX_IMAGE || size > limit)
        return 0;
    if (programs > size)
        size = programs;
    for (const Elf64_Shdr *s = sections(e); s < sections(e) + e->e_shnum; s++) {
        if (s->sh_type == SHT_NULL || s->sh_type == SHT_NOBITS)
            continue;
        if (s->sh_offset > MAX_IMAGE || s->sh_size > MAX_IMAGE)
            return 0;
        if (s->sh_offset + s->sh_size > size)
            size = s->sh_offset + s->sh_size;
    }
    return size;
}

size_t binary_size(const void *image, size_t limit)
{
    const struct fatbin *f = fatbin_header(image);
    const Elf64_Ehdr *e = f ? NULL : elf_header(image);
    size_t size = f ? sizeof *f + f->size : e ? elf_size(e, limit) : 0;
    return size <= limit ? size : 0;
}

/* Returns the section with that name, whose contents end within the file, or NULL. */
static const Elf64_Shdr *section(const Elf64_Ehdr *e, const char *prefix, const char *name)
{
    const Elf64_Shdr *names = &sections(e)[e->e_shstrndx];
    const char *text = (const char *)e + names->sh_offset;
    size_t n = strlen(prefix);
    for (const Elf64_Shdr *s = sections(e); s < sections(e) + e->e_shnum; s++)
        if (s->sh_name < names->sh_size && !strncmp(text + s->sh_name, prefix, n) && !strcmp(text + s->sh_name + n, name))
            return s;
    return NULL;
}

/* Reads the layout of a kernel's parameters from its section .nv.info.NAME: attributes of 4 bytes, or of 4 bytes
 * and a value. */
static bool read_parameters(const Elf64_Ehdr *e, struct func *f)
{
    enum { SIZED = 4, PARAMETER = 0x17, PARAMETER_BYTES = 0x19 };
    const Elf64_Shdr *s = section(e, ".nv.info.", f->name);
    const unsigned char *at = (const unsigned char *)e + (s ? s->sh_offset : 0), *end = at + (s ? s->sh_size : 0);
    unsigned bytes = 0;
    while (end - at >= 4) {
        uint16_t value;
        memcpy(&value, at + 2, 2);
        size_t n = at[0] == SIZED ? value : 0;
        if (n > (size_t)(end - at - 4))
            return false;
        if (at[0] == SIZED && at[1] == PARAMETER && n == 12) {
            uint16_t ordinal, offset;
            uint32_t bits;
            memcpy(&ordinal, at + 8, 2);
            memcpy(&offset, at + 10, 2);
            memcpy(&bits, at + 12, 4);
            unsigned size = bits >> 18;
            if (ordinal >= SIM_MAX_PARAMS || offset + size > SIM_PARAM_BYTES)
                return false;
            f->offset[ordinal] = offset;
            f->size[ordinal] = (unsigned short)size;
            if (ordinal >= f->nparams)
                f->nparams = ordinal + 1u;
            if (offset + size > f->bytes)
                f->bytes = offset + size;
        } else if (at[1] == PARAMETER_BYTES) {
            bytes = value;
        }
        at += 4 + n;
    }
    return f->bytes == bytes;
}

static bool fail(char *msg, size_t len, const char *why)
{
    snprintf(msg, len, "%s", why);
    return false;
}

/* Adds the kernels of a cubin to a module. */
static bool read_kernels(struct module *m, const Elf64_Ehdr *e, char *msg, size_t len)
{
    const Elf64_Shdr *symbols = section(e, ".symtab", ""), *strings = section(e, ".strtab", "");
    if (!symbols || !strings || symbols->sh_entsize != sizeof(Elf64_Sym))
        return fail(msg, len, "the cubin has no symbols");
    const Elf64_Sym *list = (const void *)((const char *)e + symbols->sh_offset);
    for (size_t i = 0; i < symbols->sh_size / sizeof *list; i++) {
        const Elf64_Sym *s = &list[i];
        if (ELF64_ST_TYPE(s->st_info) != STT_FUNC || !(s->st_other & ENTRY) || s->st_name >= strings->sh_size)
            continue;
        struct func *f = module_add_func(m, (const char *)e + strings->sh_offset + s->st_name);
        if (!f)
            return fail(msg, len, "out of memory");
        if (!section(e, ".text.", f->name) || !read_parameters(e, f)) {
            snprintf(msg, len, "the cubin does not describe the kernel %s", f->name);
            return false;
        }
    }
    return m->funcs || fail(msg, len, "the cubin has no kernels");
}

static bool read_cubin(struct module *m, const unsigned char *image, char *msg, size_t len)
{
    const Elf64_Ehdr *e = elf_header(image);
    if (!e || !elf_size(e, MAX_IMAGE))
        return fail(msg, len, "not a cubin: an ELF file of another machine, or malformed");
    unsigned arch = image[EI_OSABI] == OSABI_CUDA ? e->e_flags & 0xff : e->e_flags >> 8 & 0xff;
    if (arch / 10 != ARCH_MAJOR || arch % 10 > ARCH_MINOR) {
        snprintf(msg, len, "the cubin is for sm_%u, but the simulated GPU is sm_%d%d", arch, ARCH_MAJOR, ARCH_MINOR);
        return false;
    }
    m->machine_code = true;
    return read_kernels(m, e, msg, len);
}

/* Loads the PTX in a fatbin or, failing that, a cubin for the architecture. */
static CUresult read_fatbin(struct module *m, const unsigned char *image, char *msg, size_t len)
{
    const struct fatbin *f = fatbin_header(image);
    if (!f) {
        fail(msg, len, "malformed fatbin header");
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    const unsigned char *at = (const unsigned char *)(f + 1), *end = at + f->size, *cubin = NULL;
    while ((size_t)(end - at) >= sizeof(struct image)) {
        const struct image *i = (const void *)at;
        if (i->header < sizeof *i || i->header > (size_t)(end - at) || i->size > (size_t)(end - at) - i->header) {
            fail(msg, len, "an image of the fatbin exceeds it");
            return CUDA_ERROR_NO_BINARY_FOR_GPU;
        }
        const unsigned char *code = at + i->header;
        bool plain = !(i->flags & IMAGE_COMPRESSED) && i->size;
        if (i->kind == IMAGE_PTX && plain && !code[i->size - 1])
            return ptx_parse(m, (const char *)code, msg, len);
        if (i->kind == IMAGE_ELF && plain && i->arch / 10 == ARCH_MAJOR && i->arch % 10 <= ARCH_MINOR)
            cubin = code;
        at = code + i->size;
    }
    if (!cubin)
        snprintf(msg, len, "the fatbin has neither PTX nor code for sm_%d%d that is not compressed", ARCH_MAJOR, ARCH_MINOR);
    return cubin && read_cubin(m, cubin, msg, len) ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

CUresult binary_parse(struct module *m, const void *image, char *msg, size_t len)
{
    if (is_fatbin(image))
        return read_fatbin(m, image, msg, len);
    if (is_elf(image))
        return read_cubin(m, image, msg, len) ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
    fail(msg, len, "the simulated GPU does not load this form of machine code");
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
}
