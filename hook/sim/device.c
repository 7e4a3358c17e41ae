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

struct device *device_at(int index)
{
    return index >= 0 && index < SIM_MAX_DEVICES && g_device[index].ordinal >= 0 ? &g_device[index] : NULL;
}

CUresult device_joined(int ordinal, struct device **d)
{
    *d = device_of(ordinal);
    return *d ? shared_join(*d) : CUDA_ERROR_INVALID_DEVICE;
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

#define VALUE(name, number, simulated) [number] = simulated,
static const int attribute[CU_DEVICE_ATTRIBUTE_MAX] = {CU_DEVICE_ATTRIBUTES(VALUE)};

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
    struct device *d = domain == 0 && bus == 1 ? device_at((int)slot) : NULL;
    if (d)
        *dev = d->ordinal;
    return d ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
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
