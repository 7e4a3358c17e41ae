/* visible.c: which of the instance's GPUs a device is.
 *
 * An instance's processes find its GPUs in CUDA_VISIBLE_DEVICES, and the daemon
 * knows them by their place in that list. But programs start workers with lists
 * of their own, and then their device 0 is another GPU. GFAAS_DEVICES stays what
 * the list was. */
#include "hook.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char given[2048], visible[2048];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void copy(char *to, size_t size, const char *name)
{
    const char *value = getenv(name);
    snprintf(to, size, "%s", value ? value : "");
}

static void read_lists(void)
{
    copy(given, sizeof given, "GFAAS_DEVICES");
    copy(visible, sizeof visible, "CUDA_VISIBLE_DEVICES");
}

/* The driver reads its list once, when it starts. */
void gf_visible_read(void) { pthread_once(&once, read_lists); }

void gf_visible_fork_child(void) { once = (pthread_once_t)PTHREAD_ONCE_INIT; }

/* Finds a word of a list by its place, and its length. */
static const char *word_at(const char *list, unsigned place, size_t *length)
{
    while (place-- > 0) {
        list += strcspn(list, ",");
        if (!*list++)
            return NULL;
    }
    list += strspn(list, " ");
    *length = strcspn(list, ", ");
    return *length ? list : NULL;
}

unsigned gf_visible_place(unsigned ordinal)
{
    char number[16];
    size_t length, n;
    if (!*given)
        return ordinal;
    snprintf(number, sizeof number, "%u", ordinal); /* all are visible */
    const char *wanted = word_at(*visible ? visible : number, *visible ? ordinal : 0, &length), *word;
    for (unsigned place = 0; wanted && place < GF_DEVICES && (word = word_at(given, place, &n)); place++)
        if (n == length && strncmp(word, wanted, n) == 0)
            return place;
    return GF_DEVICES;
}
