/* cuda.h: declarations of the CUDA driver interface, compatible with its binary
 * interface (CUDA 11.4 to 13.x, 64-bit Linux), written for this project so that
 * nothing here needs a CUDA toolkit to build.
 *
 * A program includes it like NVIDIA's: unversioned names (cuMemAlloc) mean the
 * current symbols (cuMemAlloc_v2). Code that defines
 * or lists the symbols themselves defines CUDA_EXACT_NAMES first and gets none
 * of those macros. CUDA_EXPORT, empty by default, is put before every prototype, and
 * CUDA_LABEL(name) behind it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_VERSION 12080
#define CUDAAPI
#define CUDA_CB
#ifndef CUDA_EXPORT
#define CUDA_EXPORT
#endif
#ifndef CUDA_LABEL
#define CUDA_LABEL(name)
#endif

/* ---- results: code and short description ---- */

#define CU_RESULTS(X)                                                                   \
    X(CUDA_SUCCESS, 0, "no error")                                                      \
    X(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument")                                  \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory")                                     \
    X(CUDA_ERROR_NOT_INITIALIZED, 3, "driver not initialised")                          \
    X(CUDA_ERROR_DEINITIALIZED, 4, "driver is shutting down")                           \
    X(CUDA_ERROR_PROFILER_DISABLED, 5, "profiler disabled")                             \
    X(CUDA_ERROR_PROFILER_NOT_INITIALIZED, 6, "profiler not initialised")               \
    X(CUDA_ERROR_PROFILER_ALREADY_STARTED, 7, "profiler already started")               \
    X(CUDA_ERROR_PROFILER_ALREADY_STOPPED, 8, "profiler already stopped")               \
    X(CUDA_ERROR_STUB_LIBRARY, 34, "the library is a stub")                             \
    X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46, "device busy or unavailable")                  \
    X(CUDA_ERROR_NO_DEVICE, 100, "no CUDA device")                                      \
    X(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal")                         \
    X(CUDA_ERROR_DEVICE_NOT_LICENSED, 102, "device not licensed")                       \
    X(CUDA_ERROR_INVALID_IMAGE, 200, "invalid kernel image")                            \
    X(CUDA_ERROR_INVALID_CONTEXT, 201, "invalid device context")                        \
    X(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, 202, "context already current")               \
    X(CUDA_ERROR_MAP_FAILED, 205, "mapping failed")                                     \
    X(CUDA_ERROR_UNMAP_FAILED, 206, "unmapping failed")                                 \
    X(CUDA_ERROR_ARRAY_IS_MAPPED, 207, "array is mapped")                               \
    X(CUDA_ERROR_ALREADY_MAPPED, 208, "resource already mapped")                        \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image for this device")             \
    X(CUDA_ERROR_ALREADY_ACQUIRED, 210, "resource already acquired")                    \
    X(CUDA_ERROR_NOT_MAPPED, 211, "resource not mapped")                                \
    X(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, 212, "resource not mapped as array")              \
    X(CUDA_ERROR_NOT_MAPPED_AS_POINTER, 213, "resource not mapped as pointer")          \
    X(CUDA_ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable ECC error")                     \
    X(CUDA_ERROR_UNSUPPORTED_LIMIT, 215, "limit not supported on this device")          \
    X(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, 216, "context in use by another thread")       \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217, "peer access not supported")             \
    X(CUDA_ERROR_INVALID_PTX, 218, "PTX compilation failed")                            \
    X(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, 219, "invalid graphics context")             \
    X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220, "uncorrectable NVLink error")               \
    X(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, 221, "PTX compiler not found")                 \
    X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222, "PTX version not supported")             \
    X(CUDA_ERROR_JIT_COMPILATION_DISABLED, 223, "PTX compilation disabled")             \
    X(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, 224, "execution affinity not supported")    \
    X(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, 225, "device-side sync not supported")       \
    X(CUDA_ERROR_CONTAINED, 226, "contained error")                                     \
    X(CUDA_ERROR_INVALID_SOURCE, 300, "invalid kernel source")                          \
    X(CUDA_ERROR_FILE_NOT_FOUND, 301, "file not found")                                 \
    X(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, 302, "shared object symbol not found") \
    X(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, 303, "shared object failed to initialise")  \
    X(CUDA_ERROR_OPERATING_SYSTEM, 304, "operating system call failed")                 \
    X(CUDA_ERROR_INVALID_HANDLE, 400, "invalid resource handle")                        \
    X(CUDA_ERROR_ILLEGAL_STATE, 401, "resource in an illegal state")                    \
    X(CUDA_ERROR_LOSSY_QUERY, 402, "query would lose information")                      \
    X(CUDA_ERROR_NOT_FOUND, 500, "named symbol not found")                              \
    X(CUDA_ERROR_NOT_READY, 600, "device not ready")                                    \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "illegal memory access")                         \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources for a launch")       \
    X(CUDA_ERROR_LAUNCH_TIMEOUT, 702, "launch timed out")                               \
    X(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, 703, "incompatible texturing mode")     \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704, "peer access already enabled")       \
    X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, 705, "peer access not enabled")               \
    X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, 708, "primary context active")                 \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed")                     \
    X(CUDA_ERROR_ASSERT, 710, "device-side assertion")                                  \
    X(CUDA_ERROR_TOO_MANY_PEERS, 711, "too many peers")                                 \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712, "host memory already registered") \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713, "host memory not registered")         \
    X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714, "hardware stack error")                     \
    X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715, "illegal instruction")                       \
    X(CUDA_ERROR_MISALIGNED_ADDRESS, 716, "misaligned address")                         \
    X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717, "invalid address space")                   \
    X(CUDA_ERROR_INVALID_PC, 718, "invalid program counter")                            \
    X(CUDA_ERROR_LAUNCH_FAILED, 719, "launch failed")                                   \
    X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, 720, "cooperative launch too large")     \
    X(CUDA_ERROR_TENSOR_MEMORY_LEAK, 721, "tensor memory leak")                         \
    X(CUDA_ERROR_NOT_PERMITTED, 800, "operation not permitted")                         \
    X(CUDA_ERROR_NOT_SUPPORTED, 801, "operation not supported")                         \
    X(CUDA_ERROR_SYSTEM_NOT_READY, 802, "system not ready")                             \
    X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803, "driver versions do not match")           \
    X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804, "forward compatibility refused")  \
    X(CUDA_ERROR_MPS_CONNECTION_FAILED, 805, "cannot connect to MPS")                   \
    X(CUDA_ERROR_MPS_RPC_FAILURE, 806, "MPS call failed")                               \
    X(CUDA_ERROR_MPS_SERVER_NOT_READY, 807, "MPS server not ready")                     \
    X(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, 808, "too many MPS clients")                  \
    X(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, 809, "too many MPS connections")          \
    X(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810, "MPS client terminated")                   \
    X(CUDA_ERROR_CDP_NOT_SUPPORTED, 811, "dynamic parallelism not supported")           \
    X(CUDA_ERROR_CDP_VERSION_MISMATCH, 812, "dynamic parallelism version mismatch")     \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "not permitted during capture")       \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901, "capture invalidated")                \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902, "would merge two captures")                 \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903, "capture not begun in this stream")     \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904, "capture has unjoined work")             \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905, "dependency would leave the capture")   \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906, "implicit dependency on a capture")      \
    X(CUDA_ERROR_CAPTURED_EVENT, 907, "event is part of a capture")                     \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, "capture begun by another thread")   \
    X(CUDA_ERROR_TIMEOUT, 909, "timed out")                                             \
    X(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910, "graph update violates constraints")   \
    X(CUDA_ERROR_EXTERNAL_DEVICE, 911, "external device failed")                        \
    X(CUDA_ERROR_INVALID_CLUSTER_SIZE, 912, "invalid cluster size")                     \
    X(CUDA_ERROR_FUNCTION_NOT_LOADED, 913, "function not loaded")                       \
    X(CUDA_ERROR_INVALID_RESOURCE_TYPE, 914, "invalid resource type")                   \
    X(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, 915, "invalid resource configuration") \
    X(CUDA_ERROR_KEY_ROTATION, 916, "key rotation in progress")                         \
    X(CUDA_ERROR_UNKNOWN, 999, "unknown error")

#define CU_RESULT_ENUM(name, code, text) name = code,
typedef enum cudaError_enum { CU_RESULTS(CU_RESULT_ENUM) CU_RESULT_FORCE_INT = 0x7fffffff } CUresult;
#undef CU_RESULT_ENUM

/* ---- handles ---- */

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUlinkState_st *CUlinkState;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUuserObject_st *CUuserObject;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
typedef struct CUextSemaphore_st *CUexternalSemaphore;
typedef struct CUgraphicsResource_st *CUgraphicsResource;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef cuuint64_t CUgraphConditionalHandle;

typedef struct CUuuid_st { char bytes[16]; } CUuuid;
typedef struct CUipcEventHandle_st { char reserved[64]; } CUipcEventHandle;
typedef struct CUipcMemHandle_st { char reserved[64]; } CUipcMemHandle;
typedef struct CUmemPoolPtrExportData_st { unsigned char reserved[64]; } CUmemPoolPtrExportData;

#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)
#define CU_DEVICE_CPU ((CUdevice)-1)
#define CU_DEVICE_INVALID ((CUdevice)-2)

typedef void(CUDA_CB *CUhostFn)(void *userData);
typedef void(CUDA_CB *CUstreamCallback)(CUstream hStream, CUresult status, void *userData);
typedef size_t(CUDA_CB *CUoccupancyB2DSize)(int blockSize);
typedef void(CUDA_CB *CUgraphRecaptureCallback)(void); /* the real type differs; it is passed on, never called */

/* ---- semaphores of other interfaces ---- */

enum { CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD = 9 };

typedef struct CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC_st {
    int type;
    union {
        int fd;
        struct {
            void *handle;
            const void *name;
        } win32;
        const void *nvSciSyncObj;
    } handle;
    unsigned int flags;
    unsigned int reserved[16];
} CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC;

/* Both have the same layout, apart from members for interfaces that nothing here uses. */
typedef struct CUDA_EXTERNAL_SEMAPHORE_PARAMS_st {
    struct {
        struct {
            unsigned long long value;
        } fence;
        unsigned long long reserved[8];
    } params;
    unsigned int flags;
    unsigned int reserved[16];
} CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS;

/* ---- types used only through pointers, or as plain numbers ---- */

typedef struct CUdevResource_st CUdevResource;
typedef struct CUmemDecompressParams_st CUmemDecompressParams;
typedef struct CUarrayMapInfo_st CUarrayMapInfo;
typedef struct CUDA_MEMCPY2D_v1_st CUDA_MEMCPY2D_v1;
typedef struct CUDA_MEMCPY3D_v1_st CUDA_MEMCPY3D_v1;
typedef struct CUstreamCigCaptureParams_st CUstreamCigCaptureParams;
typedef struct CUctxCigParam_st CUctxCigParam;
typedef struct CUexecAffinityParam_st CUexecAffinityParam;
typedef struct CUcheckpointGpuPair_st CUcheckpointGpuPair;
typedef int CUdevice_P2PAttribute;
typedef int CUdevResourceType;
typedef int CUjit_option;
typedef int CUjitInputType;
typedef int CUlibraryOption;
typedef int CUarray_format;

/* ---- small enumerations ---- */

typedef enum CUdriverProcAddressQueryResult_enum {
    CU_GET_PROC_ADDRESS_SUCCESS = 0,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2
} CUdriverProcAddressQueryResult;

enum {
    CU_GET_PROC_ADDRESS_DEFAULT = 0,
    CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2
};

enum {
    CU_CTX_SCHED_BLOCKING_SYNC = 4,
    CU_CTX_SCHED_MASK = 7,
    CU_CTX_FLAGS_MASK = 0xff
};

enum { CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1 };

typedef enum CUstreamWaitValue_flags_enum {
    CU_STREAM_WAIT_VALUE_GEQ = 0,
    CU_STREAM_WAIT_VALUE_EQ = 1,
    CU_STREAM_WAIT_VALUE_AND = 2,
    CU_STREAM_WAIT_VALUE_NOR = 3,
    CU_STREAM_WAIT_VALUE_FLUSH = 1 << 30
} CUstreamWaitValue_flags;

enum { CU_STREAM_WRITE_VALUE_DEFAULT = 0, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER = 1 };

typedef enum CUstreamBatchMemOpType_enum {
    CU_STREAM_MEM_OP_WAIT_VALUE_32 = 1,
    CU_STREAM_MEM_OP_WRITE_VALUE_32 = 2,
    CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES = 3,
    CU_STREAM_MEM_OP_WAIT_VALUE_64 = 4,
    CU_STREAM_MEM_OP_WRITE_VALUE_64 = 5,
    CU_STREAM_MEM_OP_BARRIER = 6
} CUstreamBatchMemOpType;

typedef union CUstreamBatchMemOpParams_union {
    CUstreamBatchMemOpType operation;
    struct CUstreamMemOpWaitValueParams_st {
        CUstreamBatchMemOpType operation;
        CUdeviceptr address;
        union {
            cuuint32_t value;
            cuuint64_t value64;
        };
        unsigned int flags;
        CUdeviceptr alias;
    } waitValue;
    struct CUstreamMemOpWriteValueParams_st {
        CUstreamBatchMemOpType operation;
        CUdeviceptr address;
        union {
            cuuint32_t value;
            cuuint64_t value64;
        };
        unsigned int flags;
        CUdeviceptr alias;
    } writeValue;
    cuuint64_t pad[6];
} CUstreamBatchMemOpParams;

enum { CU_EVENT_DEFAULT = 0, CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2, CU_EVENT_INTERPROCESS = 4 };
enum { CU_EVENT_RECORD_DEFAULT = 0, CU_EVENT_RECORD_EXTERNAL = 1 };
enum { CU_EVENT_WAIT_DEFAULT = 0, CU_EVENT_WAIT_EXTERNAL = 1 };
enum { CU_MEMHOSTALLOC_PORTABLE = 1, CU_MEMHOSTALLOC_DEVICEMAP = 2, CU_MEMHOSTALLOC_WRITECOMBINED = 4 };
enum { CU_MEM_ATTACH_GLOBAL = 1, CU_MEM_ATTACH_HOST = 2, CU_MEM_ATTACH_SINGLE = 4 };
enum { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1 };

typedef enum CUmemorytype_enum {
    CU_MEMORYTYPE_HOST = 1,
    CU_MEMORYTYPE_DEVICE = 2,
    CU_MEMORYTYPE_ARRAY = 3,
    CU_MEMORYTYPE_UNIFIED = 4
} CUmemorytype;

typedef enum CUlimit_enum {
    CU_LIMIT_STACK_SIZE = 0,
    CU_LIMIT_PRINTF_FIFO_SIZE = 1,
    CU_LIMIT_MALLOC_HEAP_SIZE = 2,
    CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH = 3,
    CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT = 4,
    CU_LIMIT_MAX_L2_FETCH_GRANULARITY = 5,
    CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6,
    CU_LIMIT_MAX = 10
} CUlimit;

typedef enum CUfunc_cache_enum {
    CU_FUNC_CACHE_PREFER_NONE = 0,
    CU_FUNC_CACHE_PREFER_L1 = 2,
    CU_FUNC_CACHE_PREFER_EQUAL = 3
} CUfunc_cache;

typedef enum CUsharedconfig_enum {
    CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE = 1,
    CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE = 2
} CUsharedconfig;

typedef enum CUmoduleLoadingMode_enum {
    CU_MODULE_EAGER_LOADING = 1
} CUmoduleLoadingMode;

typedef enum CUfunctionLoadingState_enum {
    CU_FUNCTION_LOADING_STATE_LOADED = 1
} CUfunctionLoadingState;

typedef enum CUfunction_attribute_enum {
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
    CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
    CU_FUNC_ATTRIBUTE_PTX_VERSION = 5,
    CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
    CU_FUNC_ATTRIBUTE_MAX = 16
} CUfunction_attribute;

typedef enum CUpointer_attribute_enum {
    CU_POINTER_ATTRIBUTE_CONTEXT = 1,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
    CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
    CU_POINTER_ATTRIBUTE_MAPPED = 13,
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
    CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
    CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
    CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17
} CUpointer_attribute;

typedef enum CUstreamCaptureStatus_enum {
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2
} CUstreamCaptureStatus;

typedef enum CUstreamCaptureMode_enum {
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2
} CUstreamCaptureMode;

typedef enum CUgraphNodeType_enum {
    CU_GRAPH_NODE_TYPE_KERNEL = 0,
    CU_GRAPH_NODE_TYPE_MEMCPY = 1,
    CU_GRAPH_NODE_TYPE_MEMSET = 2,
    CU_GRAPH_NODE_TYPE_HOST = 3,
    CU_GRAPH_NODE_TYPE_GRAPH = 4,
    CU_GRAPH_NODE_TYPE_EMPTY = 5,
    CU_GRAPH_NODE_TYPE_WAIT_EVENT = 6,
    CU_GRAPH_NODE_TYPE_EVENT_RECORD = 7,
    CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL = 8,
    CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT = 9,
    CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
    CU_GRAPH_NODE_TYPE_MEM_FREE = 11,
    CU_GRAPH_NODE_TYPE_BATCH_MEM_OP = 12,
    CU_GRAPH_NODE_TYPE_CONDITIONAL = 13
} CUgraphNodeType;

typedef enum CUgraphExecUpdateResult_enum {
    CU_GRAPH_EXEC_UPDATE_SUCCESS = 0,
    CU_GRAPH_EXEC_UPDATE_ERROR = 1,
    CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED = 2,
    CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED = 3,
    CU_GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED = 4,
    CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED = 5,
    CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED = 6,
    CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE = 7,
    CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED = 8
} CUgraphExecUpdateResult;

typedef enum CUmem_advise_enum {
    CU_MEM_ADVISE_SET_READ_MOSTLY = 1,
    CU_MEM_ADVISE_UNSET_READ_MOSTLY = 2,
    CU_MEM_ADVISE_SET_PREFERRED_LOCATION = 3,
    CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION = 4,
    CU_MEM_ADVISE_SET_ACCESSED_BY = 5,
    CU_MEM_ADVISE_UNSET_ACCESSED_BY = 6
} CUmem_advise;

typedef enum CUmem_range_attribute_enum {
    CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY = 1,
    CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION = 2,
    CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY = 3,
    CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION = 4,
    CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE = 5,
    CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID = 6,
    CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE = 7,
    CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID = 8
} CUmem_range_attribute;

typedef enum CUmemPool_attribute_enum {
    CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
    CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2,
    CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
    CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
    CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8
} CUmemPool_attribute;

/* ---- virtual memory and pools ---- */

typedef enum CUmemLocationType_enum {
    CU_MEM_LOCATION_TYPE_INVALID = 0,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_LOCATION_TYPE_HOST = 2,
    CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
    CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4
} CUmemLocationType;

typedef enum CUmemAllocationType_enum {
    CU_MEM_ALLOCATION_TYPE_INVALID = 0,
    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    CU_MEM_ALLOCATION_TYPE_MANAGED = 2
} CUmemAllocationType;

typedef enum CUmemAllocationHandleType_enum {
    CU_MEM_HANDLE_TYPE_NONE = 0,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
    CU_MEM_HANDLE_TYPE_WIN32 = 2
} CUmemAllocationHandleType;

typedef enum CUmemAccess_flags_enum {
    CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3
} CUmemAccess_flags;

typedef enum CUmemAllocationGranularity_flags_enum {
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1
} CUmemAllocationGranularity_flags;

typedef struct CUmemLocation_st {
    CUmemLocationType type;
    int id;
} CUmemLocation;

typedef struct CUmemAllocationProp_st {
    CUmemAllocationType type;
    CUmemAllocationHandleType requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;

typedef struct CUmemAccessDesc_st {
    CUmemLocation location;
    CUmemAccess_flags flags;
} CUmemAccessDesc;

typedef struct CUmemPoolProps_st {
    CUmemAllocationType allocType;
    CUmemAllocationHandleType handleTypes;
    CUmemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char reserved[54];
} CUmemPoolProps;

typedef struct CUmulticastObjectProp_st {
    unsigned int numDevices;
    size_t size;
    unsigned long long handleTypes;
    unsigned long long flags;
} CUmulticastObjectProp;

/* ---- arrays and copies ---- */

typedef struct CUDA_ARRAY_DESCRIPTOR_st {
    size_t Width, Height;
    CUarray_format Format;
    unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

enum { /* CUarray_format */
    CU_AD_FORMAT_UNSIGNED_INT8 = 0x01,
    CU_AD_FORMAT_UNSIGNED_INT16 = 0x02,
    CU_AD_FORMAT_UNSIGNED_INT32 = 0x03,
    CU_AD_FORMAT_SIGNED_INT8 = 0x08,
    CU_AD_FORMAT_SIGNED_INT16 = 0x09,
    CU_AD_FORMAT_SIGNED_INT32 = 0x0a,
    CU_AD_FORMAT_HALF = 0x10,
    CU_AD_FORMAT_FLOAT = 0x20
};

#define CUDA_ARRAY3D_LAYERED 0x01
#define CUDA_ARRAY3D_SURFACE_LDST 0x02
#define CUDA_ARRAY3D_CUBEMAP 0x04
#define CUDA_ARRAY3D_TEXTURE_GATHER 0x08
#define CUDA_ARRAY3D_COLOR_ATTACHMENT 0x20
#define CUDA_ARRAY3D_SPARSE 0x40
#define CUDA_ARRAY3D_DEFERRED_MAPPING 0x80

typedef struct CUDA_ARRAY3D_DESCRIPTOR_st {
    size_t Width, Height, Depth;
    CUarray_format Format;
    unsigned int NumChannels;
    unsigned int Flags;
} CUDA_ARRAY3D_DESCRIPTOR;

typedef struct CUDA_ARRAY_DESCRIPTOR_v1_st {
    unsigned int Width, Height;
    CUarray_format Format;
    unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct CUDA_ARRAY3D_DESCRIPTOR_v1_st {
    unsigned int Width, Height, Depth;
    CUarray_format Format;
    unsigned int NumChannels;
    unsigned int Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

/* The resource of a texture or a surface. */
typedef unsigned long long CUtexObject;
typedef unsigned long long CUsurfObject;
typedef struct CUDA_ARRAY_SPARSE_PROPERTIES_st CUDA_ARRAY_SPARSE_PROPERTIES;

typedef enum CUresourcetype_enum {
    CU_RESOURCE_TYPE_ARRAY = 0,
    CU_RESOURCE_TYPE_MIPMAPPED_ARRAY = 1,
    CU_RESOURCE_TYPE_LINEAR = 2,
    CU_RESOURCE_TYPE_PITCH2D = 3
} CUresourcetype;

typedef struct CUDA_RESOURCE_DESC_st {
    CUresourcetype resType;
    union {
        struct {
            CUarray hArray;
        } array;
        struct {
            CUmipmappedArray hMipmappedArray;
        } mipmap;
        struct {
            CUdeviceptr devPtr;
            CUarray_format format;
            unsigned int numChannels;
            size_t sizeInBytes;
        } linear;
        struct {
            CUdeviceptr devPtr;
            CUarray_format format;
            unsigned int numChannels;
            size_t width, height, pitchInBytes;
        } pitch2D;
        struct {
            int reserved[32];
        } reserved;
    } res;
    unsigned int flags;
} CUDA_RESOURCE_DESC;

typedef struct CUDA_TEXTURE_DESC_st {
    int addressMode[3], filterMode;
    unsigned int flags, maxAnisotropy;
    int mipmapFilterMode;
    float mipmapLevelBias, minMipmapLevelClamp, maxMipmapLevelClamp, borderColor[4];
    int reserved[12];
} CUDA_TEXTURE_DESC;

typedef struct CUDA_RESOURCE_VIEW_DESC_st {
    int format;
    size_t width, height, depth;
    unsigned int firstMipmapLevel, lastMipmapLevel, firstLayer, lastLayer, reserved[16];
} CUDA_RESOURCE_VIEW_DESC;

typedef struct CUDA_ARRAY_MEMORY_REQUIREMENTS_st {
    size_t size;
    size_t alignment;
    unsigned int reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;

typedef struct CUDA_MEMCPY2D_st {
    size_t srcXInBytes, srcY;
    CUmemorytype srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    CUmemorytype dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

/* The contexts are members of CUDA_MEMCPY3D_PEER. In CUDA_MEMCPY3D, which has the same layout, they are reserved. */
typedef struct CUDA_MEMCPY3D_st {
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    CUmemorytype srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    CUcontext srcContext;
    size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD;
    CUmemorytype dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    CUcontext dstContext;
    size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER;

typedef struct CUmemcpyAttributes_st {
    int srcAccessOrder;
    CUmemLocation srcLocHint;
    CUmemLocation dstLocHint;
    unsigned int flags;
} CUmemcpyAttributes;

typedef enum CUmemcpy3DOperandType_enum {
    CU_MEMCPY_OPERAND_TYPE_POINTER = 1,
    CU_MEMCPY_OPERAND_TYPE_ARRAY = 2
} CUmemcpy3DOperandType;

typedef struct CUoffset3D_st {
    size_t x, y, z;
} CUoffset3D;

typedef struct CUextent3D_st {
    size_t width, height, depth;
} CUextent3D;

/* All sizes are in elements: of the array, if there is one, otherwise bytes. */
typedef struct CUmemcpy3DOperand_st {
    CUmemcpy3DOperandType type;
    union {
        struct {
            CUdeviceptr ptr;
            size_t rowLength, layerHeight;
            CUmemLocation locHint;
        } ptr;
        struct {
            CUarray array;
            CUoffset3D offset;
        } array;
    } op;
} CUmemcpy3DOperand;

typedef struct CUDA_MEMCPY3D_BATCH_OP_st {
    CUmemcpy3DOperand src, dst;
    CUextent3D extent;
    int srcAccessOrder;
    unsigned int flags;
} CUDA_MEMCPY3D_BATCH_OP;

/* ---- devices and contexts ---- */

typedef struct CUdevprop_st {
    int maxThreadsPerBlock;
    int maxThreadsDim[3];
    int maxGridSize[3];
    int sharedMemPerBlock;
    int totalConstantMemory;
    int SIMDWidth;
    int memPitch;
    int regsPerBlock;
    int clockRate;
    int textureAlign;
} CUdevprop;

typedef struct CUctxCreateParams_st {
    CUexecAffinityParam *execAffinityParams;
    int numExecAffinityParams;
    CUctxCigParam *cigParams;
} CUctxCreateParams;

/* ---- checkpoints of processes ---- */

typedef enum CUprocessState_enum {
    CU_PROCESS_STATE_RUNNING = 0,
    CU_PROCESS_STATE_LOCKED = 1,
    CU_PROCESS_STATE_CHECKPOINTED = 2
} CUprocessState;

typedef struct CUcheckpointLockArgs_st {
    unsigned int timeoutMs; /* 0: none */
    unsigned int reserved0;
    cuuint64_t reserved1[7];
} CUcheckpointLockArgs;

typedef struct CUcheckpointCheckpointArgs_st {
    cuuint64_t reserved[8];
} CUcheckpointCheckpointArgs;

typedef struct CUcheckpointRestoreArgs_st {
    CUcheckpointGpuPair *gpuPairs; /* from CUDA 13.0 on: pairs of the old and the new GPU */
    unsigned int gpuPairsCount;
    char reserved[52 - sizeof(CUcheckpointGpuPair *)];
    cuuint64_t reserved1;
} CUcheckpointRestoreArgs;

typedef struct CUcheckpointUnlockArgs_st {
    cuuint64_t reserved[8];
} CUcheckpointUnlockArgs;

/* ---- launches ---- */

#define CU_LAUNCH_PARAM_END ((void *)0x00)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)0x01)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)0x02)

typedef enum CUlaunchAttributeID_enum {
    CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW = 1,
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE = 5,
    CU_LAUNCH_ATTRIBUTE_PRIORITY = 8,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP = 9,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN = 10,
    CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION = 11,
    CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE = 13,
    CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 14
} CUlaunchAttributeID;
typedef CUlaunchAttributeID CUkernelNodeAttrID;
typedef CUlaunchAttributeID CUstreamAttrID;

typedef union CUlaunchAttributeValue_union {
    char pad[64];
    int cooperative;
    int priority;
} CUlaunchAttributeValue;
typedef CUlaunchAttributeValue CUkernelNodeAttrValue;
typedef CUlaunchAttributeValue CUstreamAttrValue;

typedef struct CUlaunchAttribute_st {
    CUlaunchAttributeID id;
    char pad[8 - sizeof(CUlaunchAttributeID)];
    CUlaunchAttributeValue value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig_st {
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned int numAttrs;
} CUlaunchConfig;

typedef struct CUDA_LAUNCH_PARAMS_st {
    CUfunction function;
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    CUstream hStream;
    void **kernelParams;
} CUDA_LAUNCH_PARAMS;

/* ---- graphs ---- */

typedef struct CUDA_KERNEL_NODE_PARAMS_v1_st {
    CUfunction func;
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    void **kernelParams;
    void **extra;
} CUDA_KERNEL_NODE_PARAMS_v1;

typedef struct CUDA_KERNEL_NODE_PARAMS_v2_st {
    CUfunction func;
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    void **kernelParams;
    void **extra;
    CUkernel kern;
    CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS_v2;
typedef CUDA_KERNEL_NODE_PARAMS_v2 CUDA_KERNEL_NODE_PARAMS;

typedef struct CUDA_MEMSET_NODE_PARAMS_st {
    CUdeviceptr dst;
    size_t pitch;
    unsigned int value;
    unsigned int elementSize;
    size_t width;
    size_t height;
} CUDA_MEMSET_NODE_PARAMS;

typedef struct CUDA_HOST_NODE_PARAMS_st {
    CUhostFn fn;
    void *userData;
} CUDA_HOST_NODE_PARAMS;

typedef struct CUDA_MEM_ALLOC_NODE_PARAMS_st {
    CUmemPoolProps poolProps;
    const CUmemAccessDesc *accessDescs;
    size_t accessDescCount;
    size_t bytesize;
    CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;

/* The forms with a context, for the generic calls. */

typedef CUDA_KERNEL_NODE_PARAMS_v2 CUDA_KERNEL_NODE_PARAMS_v3;
typedef CUDA_HOST_NODE_PARAMS CUDA_HOST_NODE_PARAMS_v2;
typedef CUDA_MEM_ALLOC_NODE_PARAMS CUDA_MEM_ALLOC_NODE_PARAMS_v2;

typedef struct CUDA_MEMCPY_NODE_PARAMS_st {
    int flags, reserved;
    CUcontext copyCtx;
    CUDA_MEMCPY3D copyParams;
} CUDA_MEMCPY_NODE_PARAMS;

typedef struct CUDA_MEMSET_NODE_PARAMS_v2_st {
    CUdeviceptr dst;
    size_t pitch;
    unsigned int value;
    unsigned int elementSize;
    size_t width;
    size_t height;
    CUcontext ctx;
} CUDA_MEMSET_NODE_PARAMS_v2;

typedef struct CUDA_CHILD_GRAPH_NODE_PARAMS_st {
    CUgraph graph;
    int ownership;
} CUDA_CHILD_GRAPH_NODE_PARAMS;

typedef struct CUDA_EVENT_NODE_PARAMS_st {
    CUevent event;
} CUDA_EVENT_RECORD_NODE_PARAMS, CUDA_EVENT_WAIT_NODE_PARAMS;

typedef struct CUDA_MEM_FREE_NODE_PARAMS_st {
    CUdeviceptr dptr;
} CUDA_MEM_FREE_NODE_PARAMS;

typedef struct CUDA_CONDITIONAL_NODE_PARAMS_st {
    CUgraphConditionalHandle handle;
    int type;
    unsigned int size;
    CUgraph *phGraph_out;
    CUcontext ctx;
} CUDA_CONDITIONAL_NODE_PARAMS;

typedef struct CUgraphNodeParams_st {
    CUgraphNodeType type;
    int reserved0[3];
    union {
        long long reserved1[29];
        CUDA_KERNEL_NODE_PARAMS_v3 kernel;
        CUDA_MEMCPY_NODE_PARAMS memcpy;
        CUDA_MEMSET_NODE_PARAMS_v2 memset;
        CUDA_HOST_NODE_PARAMS_v2 host;
        CUDA_CHILD_GRAPH_NODE_PARAMS graph;
        CUDA_EVENT_WAIT_NODE_PARAMS eventWait;
        CUDA_EVENT_RECORD_NODE_PARAMS eventRecord;
        CUDA_MEM_ALLOC_NODE_PARAMS_v2 alloc;
        CUDA_MEM_FREE_NODE_PARAMS free;
        CUDA_CONDITIONAL_NODE_PARAMS conditional;
    };
    long long reserved2;
} CUgraphNodeParams;

typedef struct CUgraphEdgeData_st {
    unsigned char from_port, to_port, type;
    unsigned char reserved[5];
} CUgraphEdgeData;

enum { CU_STREAM_ADD_CAPTURE_DEPENDENCIES = 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES = 1 };
enum { CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1, CU_GRAPH_USER_OBJECT_MOVE = 1 };

enum {
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH = 1,
    CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 2,
    CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH = 4,
    CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY = 8
};

typedef enum CUgraphMem_attribute_enum {
    CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
    CU_GRAPH_MEM_ATTR_USED_MEM_HIGH = 1,
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH = 3
} CUgraphMem_attribute;

typedef enum CUgraphInstantiateResult_enum {
    CUDA_GRAPH_INSTANTIATE_SUCCESS = 0,
    CUDA_GRAPH_INSTANTIATE_ERROR = 1,
    CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE = 2,
    CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED = 4
} CUgraphInstantiateResult;

typedef struct CUDA_GRAPH_INSTANTIATE_PARAMS_st {
    cuuint64_t flags;
    CUstream hUploadStream;
    CUgraphNode hErrNode_out;
    CUgraphInstantiateResult result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

typedef struct CUgraphExecUpdateResultInfo_st {
    CUgraphExecUpdateResult result;
    CUgraphNode errorNode;
    CUgraphNode errorFromNode;
} CUgraphExecUpdateResultInfo;

/* ---- device attributes: number, and value of the simulated GPU, if that is constant ---- */

#define CU_DEVICE_ATTRIBUTES(X) \
    X(MAX_THREADS_PER_BLOCK, 1, 1024) \
    X(MAX_BLOCK_DIM_X, 2, 1024) \
    X(MAX_BLOCK_DIM_Y, 3, 1024) \
    X(MAX_BLOCK_DIM_Z, 4, 64) \
    X(MAX_GRID_DIM_X, 5, 2147483647) \
    X(MAX_GRID_DIM_Y, 6, 65535) \
    X(MAX_GRID_DIM_Z, 7, 65535) \
    X(MAX_SHARED_MEMORY_PER_BLOCK, 8, 49152) \
    X(TOTAL_CONSTANT_MEMORY, 9, 65536) \
    X(WARP_SIZE, 10, 32) \
    X(MAX_PITCH, 11, 2147483647) \
    X(MAX_REGISTERS_PER_BLOCK, 12, 65536) \
    X(CLOCK_RATE, 13, 1410000) \
    X(TEXTURE_ALIGNMENT, 14, 512) \
    X(GPU_OVERLAP, 15, 1) \
    X(MULTIPROCESSOR_COUNT, 16, 0) \
    X(CAN_MAP_HOST_MEMORY, 19, 1) \
    X(MAXIMUM_TEXTURE1D_WIDTH, 21, 131072) \
    X(MAXIMUM_TEXTURE2D_WIDTH, 22, 131072) \
    X(MAXIMUM_TEXTURE2D_HEIGHT, 23, 65536) \
    X(MAXIMUM_TEXTURE3D_WIDTH, 24, 16384) \
    X(MAXIMUM_TEXTURE3D_HEIGHT, 25, 16384) \
    X(MAXIMUM_TEXTURE3D_DEPTH, 26, 16384) \
    X(MAXIMUM_TEXTURE2D_LAYERED_WIDTH, 27, 32768) \
    X(MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, 28, 32768) \
    X(MAXIMUM_TEXTURE2D_LAYERED_LAYERS, 29, 2048) \
    X(SURFACE_ALIGNMENT, 30, 512) \
    X(CONCURRENT_KERNELS, 31, 1) \
    X(PCI_BUS_ID, 33, 1) \
    X(PCI_DEVICE_ID, 34, 0) \
    X(MEMORY_CLOCK_RATE, 36, 1215000) \
    X(GLOBAL_MEMORY_BUS_WIDTH, 37, 5120) \
    X(L2_CACHE_SIZE, 38, 41943040) \
    X(MAX_THREADS_PER_MULTIPROCESSOR, 39, 2048) \
    X(ASYNC_ENGINE_COUNT, 40, 3) \
    X(UNIFIED_ADDRESSING, 41, 1) \
    X(TEXTURE_PITCH_ALIGNMENT, 51, 32) \
    X(MAXIMUM_SURFACE1D_WIDTH, 55, 32768) \
    X(MAXIMUM_SURFACE2D_WIDTH, 56, 131072) \
    X(MAXIMUM_SURFACE2D_HEIGHT, 57, 65536) \
    X(MAXIMUM_TEXTURE1D_LINEAR_WIDTH, 69, 268435456) \
    X(MAXIMUM_TEXTURE2D_LINEAR_WIDTH, 70, 131072) \
    X(MAXIMUM_TEXTURE2D_LINEAR_HEIGHT, 71, 65000) \
    X(MAXIMUM_TEXTURE2D_LINEAR_PITCH, 72, 2097120) \
    X(COMPUTE_CAPABILITY_MAJOR, 75, 8) \
    X(COMPUTE_CAPABILITY_MINOR, 76, 0) \
    X(STREAM_PRIORITIES_SUPPORTED, 78, 1) \
    X(GLOBAL_L1_CACHE_SUPPORTED, 79, 1) \
    X(LOCAL_L1_CACHE_SUPPORTED, 80, 1) \
    X(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 81, 167936) \
    X(MAX_REGISTERS_PER_MULTIPROCESSOR, 82, 65536) \
    X(MANAGED_MEMORY, 83, 1) \
    X(SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 87, 2) \
    X(CONCURRENT_MANAGED_ACCESS, 89, 1) \
    X(COMPUTE_PREEMPTION_SUPPORTED, 90, 1) \
    X(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 91, 1) \
    X(COOPERATIVE_LAUNCH, 95, 1) \
    X(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 97, 166912) \
    X(HOST_REGISTER_SUPPORTED, 99, 1) \
    X(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102, 1) \
    X(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103, 1) \
    X(MAX_BLOCKS_PER_MULTIPROCESSOR, 106, 32) \
    X(RESERVED_SHARED_MEMORY_PER_BLOCK, 111, 1024) \
    X(READ_ONLY_HOST_REGISTER_SUPPORTED, 113, 1) \
    X(TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, 114, 1) \
    X(MEMORY_POOLS_SUPPORTED, 115, 1) \
    X(MEMPOOL_SUPPORTED_HANDLE_TYPES, 119, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) \
    X(CAN_USE_64_BIT_STREAM_MEM_OPS, 122, 1) \
    X(CAN_USE_STREAM_WAIT_VALUE_NOR, 123, 1) \
    X(IPC_EVENT_SUPPORTED, 125, 1) \
    X(NUMA_ID, 131, -1) \
    X(MULTICAST_SUPPORTED, 132, 0) \
    X(MPS_ENABLED, 133, 0) \
    X(HOST_NUMA_ID, 134, -1)

#define CU_DEVICE_ATTRIBUTE_ENUM(name, number, simulated) CU_DEVICE_ATTRIBUTE_##name = number,
typedef enum CUdevice_attribute_enum {
    CU_DEVICE_ATTRIBUTES(CU_DEVICE_ATTRIBUTE_ENUM)
    CU_DEVICE_ATTRIBUTE_MAX = 136
} CUdevice_attribute;
#undef CU_DEVICE_ATTRIBUTE_ENUM

/* ---- prototypes, from the list of symbols ---- */

#define CU_SYMBOL(symbol, since, hook, params, args) CUDA_EXPORT CUresult CUDAAPI symbol params CUDA_LABEL(symbol);
#include "symbols.def"

/* ---- current names, as of CUDA 12 ---- */

#ifndef CUDA_EXACT_NAMES
#define cuGetProcAddress cuGetProcAddress_v2
#define cuDeviceGetUuid cuDeviceGetUuid_v2
#define cuDeviceTotalMem cuDeviceTotalMem_v2
#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
#define cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2
#define cuCtxCreate cuCtxCreate_v2
#define cuCtxDestroy cuCtxDestroy_v2
#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuCtxPopCurrent cuCtxPopCurrent_v2
#define cuModuleGetGlobal cuModuleGetGlobal_v2
#define cuLinkCreate cuLinkCreate_v2
#define cuLinkAddData cuLinkAddData_v2
#define cuLinkAddFile cuLinkAddFile_v2
#define cuMemGetInfo cuMemGetInfo_v2
#define cuMemAlloc cuMemAlloc_v2
#define cuMemAllocPitch cuMemAllocPitch_v2
#define cuMemFree cuMemFree_v2
#define cuMemGetAddressRange cuMemGetAddressRange_v2
#define cuMemAllocHost cuMemAllocHost_v2
#define cuMemHostGetDevicePointer cuMemHostGetDevicePointer_v2
#define cuMemHostRegister cuMemHostRegister_v2
#define cuIpcOpenMemHandle cuIpcOpenMemHandle_v2
#define cuMemcpyHtoD cuMemcpyHtoD_v2
#define cuMemcpyDtoH cuMemcpyDtoH_v2
#define cuMemcpyDtoD cuMemcpyDtoD_v2
#define cuMemcpyDtoA cuMemcpyDtoA_v2
#define cuMemcpyAtoD cuMemcpyAtoD_v2
#define cuMemcpyHtoA cuMemcpyHtoA_v2
#define cuMemcpyAtoH cuMemcpyAtoH_v2
#define cuMemcpyAtoA cuMemcpyAtoA_v2
#define cuMemcpy2D cuMemcpy2D_v2
#define cuMemcpy2DUnaligned cuMemcpy2DUnaligned_v2
#define cuMemcpy3D cuMemcpy3D_v2
#define cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2
#define cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2
#define cuMemcpyHtoAAsync cuMemcpyHtoAAsync_v2
#define cuMemcpyAtoHAsync cuMemcpyAtoHAsync_v2
#define cuMemcpy2DAsync cuMemcpy2DAsync_v2
#define cuMemcpy3DAsync cuMemcpy3DAsync_v2
#define cuMemsetD8 cuMemsetD8_v2
#define cuMemsetD16 cuMemsetD16_v2
#define cuMemsetD32 cuMemsetD32_v2
#define cuMemsetD2D8 cuMemsetD2D8_v2
#define cuMemsetD2D32 cuMemsetD2D32_v2
#define cuArrayCreate cuArrayCreate_v2
#define cuArrayGetDescriptor cuArrayGetDescriptor_v2
#define cuArray3DCreate cuArray3DCreate_v2
#define cuArray3DGetDescriptor cuArray3DGetDescriptor_v2
#define cuStreamDestroy cuStreamDestroy_v2
#define cuStreamWaitValue32 cuStreamWaitValue32_v2
#define cuStreamWaitValue64 cuStreamWaitValue64_v2
#define cuStreamWriteValue32 cuStreamWriteValue32_v2
#define cuStreamWriteValue64 cuStreamWriteValue64_v2
#define cuStreamBatchMemOp cuStreamBatchMemOp_v2
#define cuEventDestroy cuEventDestroy_v2
#define cuStreamBeginCapture cuStreamBeginCapture_v2
#define cuStreamGetCaptureInfo cuStreamGetCaptureInfo_v2
#define cuGraphAddKernelNode cuGraphAddKernelNode_v2
#define cuGraphKernelNodeGetParams cuGraphKernelNodeGetParams_v2
#define cuGraphKernelNodeSetParams cuGraphKernelNodeSetParams_v2
#define cuGraphInstantiate cuGraphInstantiateWithFlags
#define cuGraphExecKernelNodeSetParams cuGraphExecKernelNodeSetParams_v2
#define cuGraphExecUpdate cuGraphExecUpdate_v2
#endif

#ifdef __cplusplus
}
#endif
