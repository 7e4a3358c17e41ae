/* vmm.h: memory and addresses as separate objects; see vmm.c. */
#pragma once

#include "sim.h"

#define VMM_GRAIN (2u << 20)

/* Addresses reserved for mappings. */
struct reservation {
    struct reservation *next;
    CUdeviceptr base; /* as programs see it: nothing can be read or written there */
    size_t size;
    char *view;       /* the mapped bytes */
};

/* Memory without an address: a part of the arena or, if it can be exported, a file of its own, which exists as long
 * as a process holds it. */
struct alloc {
    struct alloc *next;   /* in the list of allocations with files */
    struct device *dev;
    size_t size;
    unsigned handle_types;
    unsigned refs;        /* handles */
    unsigned maps;        /* mappings */
    struct range *hidden; /* its part of the arena; NULL: it has a file */
    int fd;               /* its file */
    uint64_t id;          /* its id in all processes */
    bool shared;          /* it is among the exports */
};

struct reservation *vmm_reservation(CUdeviceptr p); /* the reservation that contains p, or NULL */
/* Returns the bytes from p that one operation with that access may reach. */
size_t vmm_reach(const struct range *r, CUdeviceptr p, unsigned access);

/* Closes the descriptors of allocations, when the process leaves the device. */
void vmm_leave(struct device *d);
