"""An HTTP function that computes y = a * x + y on a GPU, in Python's standard library.

POST / takes {"a": 2, "x": [1, 2, 3], "y": [10, 20, 30]} and answers {"y": [12, 24, 36]};
GET /healthz answers 200 when the device is ready. The program has no knowledge of gfaas: it
listens on PORT and uses the GPU that the driver shows.
"""

import ctypes
import http.server
import json
import math
import os
import pathlib
import sys

import gpu

MOST_BYTES = 16 << 20  # largest request


class Saxpy:
    """Computes y = a * x + y on the device. Several threads can call it at once."""

    def __init__(self):
        self.gpu = gpu.Gpu(pathlib.Path(__file__).with_name("saxpy.ptx").read_text())
        self.kernel = self.gpu.kernel("saxpy")

    def __call__(self, a, x, y):
        n = len(x)
        self.gpu.use()
        with self.gpu.floats(n) as at_x, self.gpu.floats(n) as at_y:
            self.gpu.write(at_x, x)
            self.gpu.write(at_y, y)
            blocks = (n + gpu.THREADS - 1) // gpu.THREADS
            self.gpu.launch(self.kernel, blocks, ctypes.c_float(a), at_x, at_y, ctypes.c_int32(n))
            return self.gpu.read(at_y, n)


def numbers(body):
    """Returns a, x and y of a request. Raises ValueError if the request is invalid."""
    asked = json.loads(body)
    if not isinstance(asked, dict):
        raise ValueError("expected an object")
    a, x, y = asked.get("a"), asked.get("x"), asked.get("y")
    if not is_number(a):
        raise ValueError("a: expected a number")
    for name, values in ("x", x), ("y", y):
        if not isinstance(values, list) or not values or not all(map(is_number, values)):
            raise ValueError(f"{name}: expected a list of numbers")
    if len(x) != len(y):
        raise ValueError(f"y: expected as many numbers as x has, {len(x)}")
    return a, x, y


def is_number(v):
    return isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # send the body without waiting for an acknowledgement of the head

    def answer(self, status, what):
        body = json.dumps(what, allow_nan=False).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        if self.path == "/healthz":
            self.answer(200, {"ready": True})
        else:
            self.answer(404, {"error": "expected POST / or GET /healthz"})

    do_HEAD = do_GET

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MOST_BYTES:
            self.close_connection = True  # the body is not read
            self.answer(413 if length.isdigit() else 411, {"error": f"expected a body of at most {MOST_BYTES} bytes"})
            return
        body = self.rfile.read(int(length))
        try:
            self.answer(200, {"y": self.server.compute(*numbers(body))})
        except (ValueError, OverflowError, RecursionError) as e:
            self.answer(400, {"error": str(e)})
        except gpu.Error as e:
            self.answer(500, {"error": str(e)})

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def main():
    try:
        compute = Saxpy()
    except (gpu.Error, OSError) as e:
        return f"no GPU: {e}"
    server = Server((os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "8080"))), Handler)
    server.compute = compute
    server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
