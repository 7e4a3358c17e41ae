/* device.c: the properties of the device: a plausible GPU of compute capability 8.0, with the SMs and the
 * memory of GFAAS_SIM_GPU. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct device *device_of(int ordinal)
{
    return ordinal >= 0 && ordinal < (int)g_config.visible ? &g_device[g_config.visible_index[ordinal]] : NULL;
}

CUresult device_joined(int ordinal, struct device **d)
{
    *d = device_of(ordinal);
    return *d ? shared_join(*d) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult sim_cuDeviceGetCount(int *count)
{
    return STORE(count, (int)g_config.visible);
}

CUresult sim_cuDeviceGet(struct device *d, CUdevice *device, int ordinal)
{
    return STORE(device, ordinal);
}

CUresult sim_cuDeviceGetName(struct device *d, char *name, int len, CUdevice dev)
{
    if (!name || len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)len, "%s", SIM_DEVICE_NAME);
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetUuid_v2(struct device *d, CUuuid *uuid, CUdevice dev)
{
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid->bytes, "gfaas-simulated", 16);
    uuid->bytes[15] = (char)d->index;
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceTotalMem_v2(struct device *d, size_t *bytes, CUdevice dev)
{
    return STORE(bytes, g_config.mem);
}

#define A(name) [CU_DEVICE_ATTRIBUTE_##name]
static const int attribute[CU_DEVICE_ATTRIBUTE_MAX] = {
    A(MAX_THREADS_PER_BLOCK) = 1024,
    A(MAX_BLOCK_DIM_X) = 1024,
    A(MAX_BLOCK_DIM_Y) = 1024,
    A(MAX_BLOCK_DIM_Z) = 64,
    A(MAX_GRID_DIM_X) = 2147483647,
    A(MAX_GRID_DIM_Y) = 65535,
    A(MAX_GRID_DIM_Z) = 65535,
    A(MAX_SHARED_MEMORY_PER_BLOCK) = 49152,
    A(TOTAL_CONSTANT_MEMORY) = 65536,
    A(WARP_SIZE) = 32,
    A(MAX_PITCH) = 2147483647,
    A(MAX_REGISTERS_PER_BLOCK) = 65536,
    A(CLOCK_RATE) = 1410000,
    A(TEXTURE_ALIGNMENT) = 512,
    A(GPU_OVERLAP) = 1,
    A(CAN_MAP_HOST_MEMORY) = 1,
    A(MAXIMUM_TEXTURE1D_WIDTH) = 131072,
    A(MAXIMUM_TEXTURE2D_WIDTH) = 131072,
    A(MAXIMUM_TEXTURE2D_HEIGHT) = 65536,
    A(MAXIMUM_TEXTURE3D_WIDTH) = 16384,
    A(MAXIMUM_TEXTURE3D_HEIGHT) = 16384,
    A(MAXIMUM_TEXTURE3D_DEPTH) = 16384,
    A(MAXIMUM_TEXTURE2D_LAYERED_WIDTH) = 32768,
    A(MAXIMUM_TEXTURE2D_LAYERED_HEIGHT) = 32768,
    A(MAXIMUM_TEXTURE2D_LAYERED_LAYERS) = 2048,
    A(SURFACE_ALIGNMENT) = 512,
    A(CONCURRENT_KERNELS) = 1,
    A(PCI_BUS_ID) = 1,
    A(MEMORY_CLOCK_RATE) = 1215000,
    A(GLOBAL_MEMORY_BUS_WIDTH) = 5120,
    A(L2_CACHE_SIZE) = 41943040,
    A(MAX_THREADS_PER_MULTIPROCESSOR) = 2048,
    A(ASYNC_ENGINE_COUNT) = 3,
    A(UNIFIED_ADDRESSING) = 1,
    A(TEXTURE_PITCH_ALIGNMENT) = 32,
    A(MAXIMUM_TEXTURE1D_LINEAR_WIDTH) = 268435456,
    A(MAXIMUM_TEXTURE2D_LINEAR_WIDTH) = 131072,
    A(MAXIMUM_TEXTURE2D_LINEAR_HEIGHT) = 65000,
    A(MAXIMUM_TEXTURE2D_LINEAR_PITCH) = 2097120,
    A(MAXIMUM_SURFACE1D_WIDTH) = 32768,
    A(MAXIMUM_SURFACE2D_WIDTH) = 131072,
    A(MAXIMUM_SURFACE2D_HEIGHT) = 65536,
    A(COMPUTE_CAPABILITY_MAJOR) = 8,
    A(STREAM_PRIORITIES_SUPPORTED) = 1,
    A(GLOBAL_L1_CACHE_SUPPORTED) = 1,
    A(LOCAL_L1_CACHE_SUPPORTED) = 1,
    A(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR) = 167936,
    A(MAX_REGISTERS_PER_MULTIPROCESSOR) = 65536,
    A(MANAGED_MEMORY) = 1,
    A(SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO) = 2,
    A(CONCURRENT_MANAGED_ACCESS) = 1,
    A(COMPUTE_PREEMPTION_SUPPORTED) = 1,
    A(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) = 1,
    A(COOPERATIVE_LAUNCH) = 1,
    A(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) = 166912,
    A(HOST_REGISTER_SUPPORTED) = 1,
    A(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) = 1,
    A(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) = 1,
    A(MAX_BLOCKS_PER_MULTIPROCESSOR) = 32,
    A(RESERVED_SHARED_MEMORY_PER_BLOCK) = 1024,
    A(READ_ONLY_HOST_REGISTER_SUPPORTED) = 1,
    A(CAN_USE_64_BIT_STREAM_MEM_OPS) = 1,
    A(CAN_USE_STREAM_WAIT_VALUE_NOR) = 1,
    A(IPC_EVENT_SUPPORTED) = 1,
    A(TIMELINE_SEMAPHORE_INTEROP_SUPPORTED) = 1,
    A(MEMORY_POOLS_SUPPORTED) = 1,
    A(MEMPOOL_SUPPORTED_HANDLE_TYPES) = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    A(NUMA_ID) = -1,
    A(HOST_NUMA_ID) = -1,
};

CUresult sim_cuDeviceGetAttribute(struct device *d, int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    if (!pi || attrib < 1 || attrib >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)attrib) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *pi = (int)g_config.granted; /* MPS shows a client its portion */
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
        *pi = d->index;
        break;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
        *pi = g_config.pct != 0;
        break;
    default:
        *pi = attribute[attrib];
    }
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceComputeCapability(struct device *d, int *major, int *minor, CUdevice dev)
{
    if (!major || !minor)
        return CUDA_ERROR_INVALID_VALUE;
    *major = attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
    *minor = attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetPCIBusId(struct device *d, char *pciBusId, int len, CUdevice dev)
{
    if (!pciBusId || len < 13)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(pciBusId, (size_t)len, "0000:01:%02x.0", (unsigned)d->index);
    return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    unsigned domain = 0, bus, slot;
    if (!dev || !pciBusId)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(pciBusId, "%x:%x", &bus, &slot) != 2)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < g_config.visible; i++)
        if (domain == 0 && bus == 1 && (int)slot == g_config.visible_index[i]) {
            *dev = (CUdevice)i;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult sim_cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    if (!device_of(dev) || !device_of(peerDev))
        return CUDA_ERROR_INVALID_DEVICE;
    return STORE(canAccessPeer, 0);
}

CUresult sim_cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice)
{
    if (!device_of(srcDevice) || !device_of(dstDevice) || srcDevice == dstDevice)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!value || attrib < 1 || attrib > 4)
        return CUDA_ERROR_INVALID_VALUE;
    *value = 0;
    return CUDA_SUCCESS;
}
