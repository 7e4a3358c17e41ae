/* vmm.h: memory and addresses apart; see vmm.c. */
#ifndef GFAAS_SIM_VMM_H
#define GFAAS_SIM_VMM_H

#include "sim.h"

#define VMM_GRAIN (2u << 20)

/* Addresses kept for mappings. */
struct reservation {
    struct reservation *next;
    CUdeviceptr base; /* as programs see them: nothing can be read or written there */
    size_t size;
    char *view;       /* where the bytes of what is mapped are */
};

/* Memory without an address. It is a part of the arena; or, when it may be handed
 * to other processes, a file of its own, which lives as long as somebody has it. */
struct alloc {
    struct alloc *next;   /* of those with files */
    struct device *dev;
    size_t size;
    unsigned handle_types;
    unsigned refs;        /* handles */
    unsigned maps;        /* mappings */
    struct range *hidden; /* its part of the arena, if it is that */
    int fd;               /* else its file, */
    uint64_t id;          /* with what all processes call it, */
    bool shared;          /* and whether it is among the exports */
};

struct reservation *vmm_reservation(CUdeviceptr p); /* that holds the address, or NULL */
/* Bytes from p on that one operation may reach which needs that access. */
size_t vmm_reach(const struct range *r, CUdeviceptr p, unsigned access);

/* The process leaves the device: its descriptors of allocations are closed. */
void vmm_leave(struct device *d);

#endif
