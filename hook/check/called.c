/* called: calls functions by the names to which the dynamic linker binds them, without
 * arguments, and prints what they return; "none" for one that is nowhere.
 *
 *   called FUNCTION... */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>

int main(int argc, char **argv)
{
    ENSURE(argc > 1);
    for (int i = 1; i < argc; i++) {
        int (*function)(void) = NULL;
        *(void **)&function = dlsym(RTLD_DEFAULT, argv[i]);
        if (function)
            printf("%d\n", function());
        else
            printf("none\n");
    }
    return 0;
}
