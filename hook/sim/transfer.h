/* transfer.h: copies and sets as work; see transfer.c. */
#ifndef GFAAS_SIM_TRANSFER_H
#define GFAAS_SIM_TRANSFER_H

#include "sim.h"

enum place { P_PAGEABLE, P_PINNED, P_DEVICE, P_READ_ONLY /* of the device, too */ };

CUresult transfer_locate(CUdeviceptr p, size_t n, bool device, char **view, enum place *where);
/* Where the bytes of a box are, and of what is to be filled (copy.c). */
CUresult copy3d_locate(const CUDA_MEMCPY3D *p, struct copy *c, enum place *src, enum place *dst);
CUresult set_locate(const CUDA_MEMSET_NODE_PARAMS *p, struct copy *c, enum place *dst);
CUresult transfer_task(struct stream *s, const struct task *t);
CUresult transfer_submit(struct stream *s, struct copy *c, enum place src, enum place dst, bool sync);

#endif
