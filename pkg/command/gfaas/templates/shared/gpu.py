"""Uses device 0 and the kernels of one PTX text through the CUDA driver API."""

import contextlib
import ctypes

THREADS = 256  # per block


class Error(RuntimeError):
    """A failed call of the driver."""


class Gpu:
    def __init__(self, ptx):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, self.context, self.module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.use()
        self.call("cuModuleLoadData", ctypes.byref(self.module), ptx.encode() + b"\0")

    def call(self, name, *args):
        result = getattr(self.driver, name)(*args)
        if result:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(result, ctypes.byref(text))
            raise Error(f"{name}: {text.value.decode() if text.value else result}")

    def use(self):
        """Must be called once in every thread that uses the device."""
        self.call("cuCtxSetCurrent", self.context)

    def kernel(self, name):
        kernel = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(kernel), self.module, name.encode())
        return kernel

    @contextlib.contextmanager
    def floats(self, count):
        """Allocates device memory for count floats and frees it at the end of the block."""
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(4 * count))
        try:
            yield at
        finally:
            self.driver.cuMemFree_v2(at)

    def write(self, at, values):
        host = (ctypes.c_float * len(values))(*values)
        self.call("cuMemcpyHtoD_v2", at, host, ctypes.c_size_t(ctypes.sizeof(host)))

    def read(self, at, count):
        """Waits for all launched kernels and returns count floats."""
        host = (ctypes.c_float * count)()
        self.call("cuMemcpyDtoH_v2", host, at, ctypes.c_size_t(ctypes.sizeof(host)))
        return list(host)

    def launch(self, kernel, blocks, *args):
        """Starts a kernel. The arguments are ctypes values with the sizes of its parameters."""
        params = (ctypes.c_void_p * len(args))(*(ctypes.addressof(a) for a in args))
        self.call("cuLaunchKernel", kernel, blocks, 1, 1, THREADS, 1, 1, 0, None, params, None)
