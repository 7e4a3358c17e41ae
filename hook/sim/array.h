/* array.h: CUDA arrays; see array.c. */
#ifndef GFAAS_SIM_ARRAY_H
#define GFAAS_SIM_ARRAY_H

#include "sim.h"

/* Its elements lie row after row without gaps. */
struct array {
    CUDA_ARRAY3D_DESCRIPTOR desc; /* with the layers of a layered one as its depth */
    size_t pitch, rows, planes;   /* bytes of a row; none of them 0 */
    CUdeviceptr base;
    uint64_t range;               /* the id of the range it lies in */
    struct mipmap *of;            /* NULL: it stands for itself */
};

/* The array a handle means; NULL when it is none, or went with its context. */
struct array *array_of(CUarray h);
/* Bytes of one element; 0 when there is no such format here. */
size_t array_element(CUarray_format format, unsigned channels);

#endif
