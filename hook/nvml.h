/* nvml.h: declarations of NVIDIA's management library (libnvidia-ml.so.1), as far as the simulated
 * library and the preload library need them. */
#pragma once

#define NVML_RETURNS(R) \
    R(NVML_SUCCESS, 0, "success") \
    R(NVML_ERROR_UNINITIALIZED, 1, "nvmlInit has not been called") \
    R(NVML_ERROR_INVALID_ARGUMENT, 2, "invalid argument") \
    R(NVML_ERROR_NOT_SUPPORTED, 3, "not supported") \
    R(NVML_ERROR_NO_PERMISSION, 4, "no permission") \
    R(NVML_ERROR_ALREADY_INITIALIZED, 5, "already initialized") \
    R(NVML_ERROR_NOT_FOUND, 6, "not found") \
    R(NVML_ERROR_INSUFFICIENT_SIZE, 7, "the buffer is too small") \
    R(NVML_ERROR_INSUFFICIENT_POWER, 8, "a power cable is missing") \
    R(NVML_ERROR_DRIVER_NOT_LOADED, 9, "the driver is not loaded") \
    R(NVML_ERROR_TIMEOUT, 10, "timeout") \
    R(NVML_ERROR_IRQ_ISSUE, 11, "problem with interrupts") \
    R(NVML_ERROR_LIBRARY_NOT_FOUND, 12, "the library was not found") \
    R(NVML_ERROR_FUNCTION_NOT_FOUND, 13, "the library has no such function") \
    R(NVML_ERROR_CORRUPTED_INFOROM, 14, "the device's stored data are corrupt") \
    R(NVML_ERROR_GPU_IS_LOST, 15, "the device is lost") \
    R(NVML_ERROR_RESET_REQUIRED, 16, "the device needs a reset") \
    R(NVML_ERROR_OPERATING_SYSTEM, 17, "the operating system does not permit it") \
    R(NVML_ERROR_LIB_RM_VERSION_MISMATCH, 18, "library and driver have different versions") \
    R(NVML_ERROR_IN_USE, 19, "the device is in use") \
    R(NVML_ERROR_MEMORY, 20, "not enough memory") \
    R(NVML_ERROR_NO_DATA, 21, "no data") \
    R(NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, 22, "not supported while ECC is on") \
    R(NVML_ERROR_INSUFFICIENT_RESOURCES, 23, "not enough resources") \
    R(NVML_ERROR_FREQ_NOT_SUPPORTED, 24, "that frequency is not supported") \
    R(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, 25, "the structure has an unsupported version") \
    R(NVML_ERROR_DEPRECATED, 26, "no longer supported") \
    R(NVML_ERROR_NOT_READY, 27, "not ready") \
    R(NVML_ERROR_GPU_NOT_FOUND, 28, "no GPU was found") \
    R(NVML_ERROR_INVALID_STATE, 29, "not possible in the current state") \
    R(NVML_ERROR_RESET_TYPE_NOT_SUPPORTED, 30, "that kind of reset is not supported") \
    R(NVML_ERROR_UNKNOWN, 999, "unknown error")

typedef enum {
#define NVML_RETURN(name, code, text) name = code,
    NVML_RETURNS(NVML_RETURN)
#undef NVML_RETURN
} nvmlReturn_t;

typedef struct nvmlDevice_st *nvmlDevice_t;

#define NVML_NO_INSTANCE 0xffffffffu /* the process is on no MIG instance */

typedef struct {
    unsigned int gpu, memory; /* percent of the time */
} nvmlUtilization_t;

typedef struct {
    unsigned long long total, free, used; /* bytes */
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t; /* of _v2 and _v3 */

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
    unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct {
    unsigned int version, mode; /* 0: compute, 1: graphics, 2: MPS */
    unsigned int numProcArrayEntries;
    nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_t;

typedef struct {
    unsigned int pid;
    unsigned long long timeStamp; /* us */
    unsigned int smUtil, memUtil, encUtil, decUtil; /* percent of the time */
} nvmlProcessUtilizationSample_t;

typedef struct {
    unsigned long long timeStamp;
    unsigned int pid;
    unsigned int smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct {
    unsigned int version;
    unsigned int processSamplesCount;
    unsigned long long lastSeenTimeStamp;
    nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_t;

typedef struct nvmlAccountingStats_st nvmlAccountingStats_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

/* The value of `version` in a structure that has it. */
#define NVML_VERSION(type, n) ((unsigned int)(sizeof(type) | (n) << 24))

#ifndef NVML_EXPORT
#define NVML_EXPORT
#endif
#ifndef NVML_LABEL
#define NVML_LABEL(name)
#endif

NVML_EXPORT const char *nvmlErrorString(nvmlReturn_t result);
#define NV(name, sim, hook, params, args) NVML_EXPORT nvmlReturn_t name params NVML_LABEL(name);
#define NV_VALUE(name, constant) NVML_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *value);
#define NV_NAME(name) NVML_EXPORT nvmlReturn_t name(void);
#include "nvml.def"
