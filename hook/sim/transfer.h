/* transfer.h: copies and sets as work; see transfer.c. */
#ifndef GFAAS_SIM_TRANSFER_H
#define GFAAS_SIM_TRANSFER_H

#include "sim.h"

enum place { P_PAGEABLE, P_PINNED, P_DEVICE };

CUresult transfer_locate(CUdeviceptr p, size_t n, bool device, char **view, enum place *where);
CUresult transfer_submit(struct stream *s, struct copy *c, enum place src, enum place dst, bool sync);

#endif
