/* entry.c: the functions that the simulated NVML exports, generated from the list of symbols. */
#include "library.h"

const char sim_library[] = "libnvidia-ml";

struct nvmlDevice_st sim_devices[SIM_MAX_DEVICES];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held in every call */
static unsigned users;                                   /* calls of nvmlInit minus calls of nvmlShutdown */

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    static bool devices_set;
    nvmlReturn_t r = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SIM_MAX_DEVICES && !devices_set; i++)
        sim_devices[i] = (struct nvmlDevice_st){.index = i, .fd = -1};
    devices_set = true;
    if (!users && !config_load())
        r = NVML_ERROR_UNKNOWN;
    else if (!users++)
        sim_say_simulated();
    pthread_mutex_unlock(&lock);
    return r;
}

nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    bool initialized = users;
    if (initialized)
        users--;
    pthread_mutex_unlock(&lock);
    return initialized ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
#define TEXT_OF(name, code, text) \
    case name:                    \
        return text;
        NVML_RETURNS(TEXT_OF)
    }
    return "unknown error";
}

/* Begins a call. If it succeeds, the lock is held until end is called. */
static nvmlReturn_t begin(void)
{
    pthread_mutex_lock(&lock);
    if (users)
        return NVML_SUCCESS;
    pthread_mutex_unlock(&lock);
    return NVML_ERROR_UNINITIALIZED;
}

/* Ends a call, and returns its result. */
static nvmlReturn_t end(nvmlReturn_t r)
{
    pthread_mutex_unlock(&lock);
    return r;
}

/* Begins a call with a device, which must be one of sim_devices. */
static nvmlReturn_t begin_device(nvmlDevice_t device)
{
    nvmlReturn_t r = begin();
    if (r != NVML_SUCCESS)
        return r;
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        if (device == &sim_devices[i])
            return NVML_SUCCESS;
    return end(NVML_ERROR_INVALID_ARGUMENT);
}

/* Define the exported functions of a row of nvml.def: ENTRY_X for the column sim X (see SIM_NV_ROW). */
#define ENTRY_AS(name, params, args, call, ...)                    \
    nvmlReturn_t name params                                       \
    {                                                              \
        return call;                                               \
    }
#define ENTRY(begun, name, params, args)                           \
    nvmlReturn_t name params                                       \
    {                                                              \
        nvmlReturn_t r = begun;                                    \
        return r == NVML_SUCCESS ? end(sim_##name args) : r;       \
    }
#define ENTRY_OWN(name, params, args, ...)
#define ENTRY_CALL(name, params, args, ...) ENTRY(begin(), name, params, args)
#define ENTRY_DEVICE(name, params, args, ...) ENTRY(begin_device(device), name, params, args)
#define NV(name, sim, hook, params, args) SIM_NV_ROW(ENTRY_, name, params, args, SIM_NV_##sim)
#define NV_VALUE(name, constant)                                   \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *value)    \
    {                                                              \
        nvmlReturn_t r = begin_device(device);                     \
        return r == NVML_SUCCESS ? end(STORE_NV(value, constant)) : r; \
    }
#define NV_NAME(name)                                              \
    nvmlReturn_t name(void)                                        \
    {                                                              \
        return NVML_ERROR_NOT_SUPPORTED;                           \
    }
#include "../../nvml.def"
