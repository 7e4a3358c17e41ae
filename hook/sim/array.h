/* array.h: CUDA arrays, and textures and surfaces; see array.c and texture.c. */
#pragma once

#include "sim.h"

/* An array. Its elements are stored row after row without gaps. */
struct array {
    CUDA_ARRAY3D_DESCRIPTOR desc; /* Depth is the number of layers of a layered array */
    size_t pitch, rows, planes;   /* pitch: bytes of a row; none is 0 */
    CUdeviceptr base;
    uint64_t range;               /* the id of its range */
    struct mipmap *of;            /* the mipmapped array of which it is a level; NULL: none */
};

/* Returns the array of a handle, or NULL if it is invalid or was destroyed with its context. */
struct array *array_of(CUarray h);
/* Returns the bytes of one element, or 0 if the format is unknown. */
size_t array_element(CUarray_format format, unsigned channels);

struct texture { /* or a surface */
    CUDA_RESOURCE_DESC of;
    CUDA_TEXTURE_DESC how;
    CUDA_RESOURCE_VIEW_DESC view;
};
