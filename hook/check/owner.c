/* owner: prints, for each FUNCTION, which library defines the symbol that dlsym finds in LIBRARY,
 * or "none" if dlsym finds nothing.
 *
 *   owner LIBRARY FUNCTION... */
#define _GNU_SOURCE
#include "check.h"

int main(int argc, char **argv)
{
    ASSERT(argc > 2);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    ASSERT(library);
    for (int i = 2; i < argc; i++) {
        Dl_info info;
        void *found = dlsym(library, argv[i]);
        ASSERT(!found || dladdr(found, &info));
        const char *slash = found ? strrchr(info.dli_fname, '/') : NULL;
        printf("%s\n", !found ? "none" : slash ? slash + 1 : info.dli_fname);
    }
    return 0;
}
