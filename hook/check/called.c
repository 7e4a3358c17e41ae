/* called: calls each FUNCTION without arguments, by the name to which the dynamic linker binds it,
 * and prints its result, or "none" if the name is undefined.
 *
 *   called FUNCTION... */
#define _GNU_SOURCE
#include "check.h"

int main(int argc, char **argv)
{
    ASSERT(argc > 1);
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
