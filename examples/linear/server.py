"""A GPU function whose weights are shared: y = weight * x + bias.

An HTTP server that all instances of a model run: each maps the one copy of the
weights that gfaas-modeld keeps on the GPU, and has only x and y of its own. It
needs Python's standard library, the CUDA driver and gfaas_model.
"""

import ctypes
import http.server
import json
import math
import os
import pathlib
import sys
import threading

import gfaas_model

HERE = pathlib.Path(__file__).parent
MODEL = os.environ.get("MODEL", "linear")
WEIGHTS = os.environ.get("WEIGHTS", HERE / "linear.safetensors")
MOST_BYTES = 16 << 20  # of a request


class Gpu:
    """The driver, with device 0's primary context; a call that fails raises."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.call("cuCtxSetCurrent", self.context)
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), (HERE / "linear.ptx").read_bytes() + b"\0")
        self.functions = {}
        for name in "sgemm", "saxpy":
            self.functions[name] = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(self.functions[name]), module, name.encode())

    def call(self, name, *args):
        result = getattr(self.driver, name)(*args)
        if result:
            raise RuntimeError(f"{name}: error {result}")

    def alloc(self, size):
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at

    def launch(self, name, threads, *args):
        params = (ctypes.c_void_p * len(args))(*(ctypes.addressof(a) for a in args))
        blocks = (threads + 255) // 256
        self.call("cuLaunchKernel", self.functions[name], blocks, 1, 1, 256, 1, 1, 0, None, params, None)


class Linear:
    """A layer on the GPU. The weights are in memory that may only be read."""

    def __init__(self):
        self.gpu = Gpu()
        weights = gfaas_model.load(MODEL, WEIGHTS)
        self.weight, self.bias = weights["weight"], weights["bias"]
        self.rows, self.columns = self.weight.shape
        if self.weight.dtype != "F32" or self.bias.dtype != "F32" or self.bias.shape != (self.rows,):
            raise ValueError(f"{MODEL}: expected weight [m,n] and bias [m] of type F32")
        self.x, self.y = self.gpu.alloc(4 * self.columns), self.gpu.alloc(4 * self.rows)
        self.one = threading.Lock()  # a request at a time has x and y

    def __call__(self, x):
        if not isinstance(x, list) or len(x) != self.columns or not all(map(is_number, x)):
            raise ValueError(f'expected {{"x": [...]}} with {self.columns} numbers')
        i32, ptr = ctypes.c_int32, ctypes.c_uint64
        gpu, host, answer = self.gpu, (ctypes.c_float * self.columns)(*x), (ctypes.c_float * self.rows)()
        with self.one:
            gpu.call("cuCtxSetCurrent", gpu.context)
            gpu.call("cuMemcpyHtoD_v2", self.x, host, ctypes.c_size_t(4 * self.columns))
            weight, bias = ptr(self.weight.data_ptr()), ptr(self.bias.data_ptr())
            gpu.launch("sgemm", self.rows, weight, self.x, self.y, i32(self.rows), i32(1), i32(self.columns))
            gpu.launch("saxpy", self.rows, ctypes.c_float(1), bias, self.y, i32(self.rows))
            gpu.call("cuMemcpyDtoH_v2", answer, self.y, ctypes.c_size_t(4 * self.rows))
        return list(answer)


def is_number(v):
    return isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body waits for nobody to acknowledge its head

    def answer(self, status, what):
        body = json.dumps(what).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        if self.path == "/healthz":
            self.answer(200, {"model": MODEL, "columns": self.server.layer.columns, "rows": self.server.layer.rows})
        else:
            self.answer(404, {"error": "not found: POST / or GET /healthz"})

    do_HEAD = do_GET

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MOST_BYTES:
            self.close_connection = True  # what comes is not read
            self.answer(411 if not length.isdigit() else 413, {"error": f"expected a body of at most {MOST_BYTES} bytes"})
            return
        body = self.rfile.read(int(length))
        try:
            request = json.loads(body)
            y = self.server.layer(request.get("x") if isinstance(request, dict) else None)
        except (ValueError, OverflowError, RecursionError) as e:
            self.answer(400, {"error": str(e)})
        except RuntimeError as e:
            self.answer(500, {"error": str(e)})
        else:
            self.answer(200, {"y": y})

    def log_message(self, *_):
        pass


def main():
    try:
        layer = Linear()
    except (gfaas_model.Error, ValueError, RuntimeError, KeyError, OSError) as e:
        sys.exit(f"linear: {e}")
    address = os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "8080"))
    server = http.server.ThreadingHTTPServer(address, Handler)
    server.layer = layer
    server.serve_forever()


if __name__ == "__main__":
    main()
