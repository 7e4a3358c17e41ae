/* faulty: makes an error that a sanitizer must find, to check that the sanitizer is active.
 *
 *   faulty heap|race */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int shared;

static void *add(void *unused)
{
    for (int i = 0; i < 100000; i++)
        shared++;
    return unused;
}

static int race(void)
{
    pthread_t one, other;
    if (pthread_create(&one, NULL, add, NULL) || pthread_create(&other, NULL, add, NULL))
        return 2;
    pthread_join(one, NULL);
    pthread_join(other, NULL);
    return 0;
}

static int heap(void)
{
    volatile char *p = malloc(8);
    free((void *)p);
    return *p;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "race"))
        race();
    else if (argc == 2 && !strcmp(argv[1], "heap"))
        heap();
    else
        return 2;
    printf("nobody minded\n");
    return 0;
}
