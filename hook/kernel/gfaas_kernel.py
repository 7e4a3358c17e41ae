"""A client of gfaas-kerneld, which runs graphs of GPU kernels as functions.

    import array
    import gfaas_kernel as gk

    client = gk.Client()
    client.put("vec/x", array.array("f", [1, 2, 3, 4]))
    r = gk.Request()
    blas = r.module("blas", builtin="blas")
    x = r.input("x", key="vec/x")
    y = r.output("y", 16, inline=True)
    r.launch(blas, "vadd", x, x, y, gk.i32(4))
    answer = client.run(r)
    array.array("f", answer.output("y"))  # 2, 4, 6, 8

A run that is submitted does not block, and other requests can read its results before they exist:

    first = client.submit(r)         # r has an output y with result=True
    s = gk.Request()
    s.input("h", key=first.result("y"))

The daemon's socket is kernel.sock in the run directory ($GFAAS_RUN_DIR, $XDG_RUNTIME_DIR/gfaas or the
user's default). The module needs Python 3.8 and the standard library only. Its objects can be used by several threads: each call has a connection
of its own.
"""

import base64
import http.client
import json
import os
import socket
import stat
import time
import urllib.parse

__all__ = ["Answer", "Client", "Error", "Request", "Run", "f32", "f64", "i32", "i64", "load", "u32", "u64"]


class Error(RuntimeError):
    """A refusal by the daemon. code is one of docs/kernels.md (bad-request, not-found, busy, ...), no-daemon if there is
    no daemon, or timeout if a run takes longer than Run.wait should wait. where is a JSON pointer into the request,
    and status the HTTP status (0 if there is none)."""

    def __init__(self, code, message, where="", status=0):
        super().__init__("%s: %s%s" % (code, where + ": " if where else "", message))
        self.code, self.message, self.where, self.status = code, message, where, status


# ---- requests ----


def i32(value):
    """Returns a 32-bit integer argument of a kernel."""
    return {"i32": value}


def u32(value):
    return {"u32": value}


def i64(value):
    return {"i64": value}


def u64(value):
    return {"u64": value}


def f32(value):
    return {"f32": value}


def f64(value):
    return {"f64": value}


def _bytes(data):
    """Returns a view of the bytes of an object with the buffer protocol: bytes, an array, a numpy array."""
    return memoryview(data).cast("B")


def _base64(data):
    return base64.b64encode(_bytes(data)).decode("ascii")


def _given(**values):
    """Returns the values that are neither None nor False."""
    return {k: v for k, v in values.items() if v is not None and v is not False}


class Request:
    """A graph of kernels. The methods return the names that launch takes; document is the JSON form."""

    def __init__(self, iterations=1):
        self.document = {"version": 1, "iterations": iterations, "modules": {}, "buffers": {}, "kernels": []}

    def module(self, name, ptx=None, binary=None, stored=None, builtin=None):
        """Adds code: PTX text, the bytes of a cubin or fatbin, the name of a stored module (Client.put_module), or that of
        a built-in module."""
        binary = None if binary is None else _base64(binary)
        self.document["modules"][name] = _given(ptx=ptx, binary=binary, stored=stored, builtin=builtin)
        return name

    def _buffer(self, name, kind, **values):
        self.document["buffers"][name] = dict(_given(**values), kind=kind)
        return name

    def input(self, name, key=None, data=None):
        """Adds an input: the key of an object or of a result, or up to 1 MiB of data."""
        return self._buffer(name, "input", key=key, data=None if data is None else _base64(data))

    def output(self, name, size, key=None, inline=False, result=False, volatile=False):
        """Adds an output of size bytes: stored under key, in the answer (inline), or a result of an asynchronous run."""
        return self._buffer(name, "output", size=size, key=key, inline=inline, result=result, volatile=volatile)

    def inout(self, name, key, inline=False, volatile=False):
        """Adds a buffer that reads and replaces an object."""
        return self._buffer(name, "inout", key=key, inline=inline, volatile=volatile)

    def temporary(self, name, size):
        """Adds memory of this request only, of size bytes."""
        return self._buffer(name, "temporary", size=size)

    def launch(self, module, kernel, *args, grid=None, block=None, shared=0):
        """Adds a launch. An argument is the name of a buffer, a pair of a name and an offset in bytes, a value from i32
        and its like, or bytes. grid and block are three numbers each; built-ins need none."""
        encoded = []
        for arg in args:
            if isinstance(arg, str):
                arg = {"buffer": arg}
            elif isinstance(arg, tuple):
                arg = {"buffer": arg[0], "offset": arg[1]}
            elif not isinstance(arg, dict):
                arg = {"bytes": _base64(arg)}
            encoded.append(arg)
        grid, block = (None if n is None else list(n) for n in (grid, block))
        self.document["kernels"].append(dict(_given(grid=grid, block=block, shared=shared or None), module=module, name=kernel, args=encoded))


def load(path):
    """Returns the request in a JSON file, and reads the files of its modules."""
    r = Request()
    with open(path, encoding="utf-8") as f:
        r.document = json.load(f)
    for module in r.document.get("modules", {}).values():
        if "file" not in module:
            continue
        with open(os.path.join(os.path.dirname(path), module.pop("file")), "rb") as f:
            code = f.read()
        if code.startswith((b"\x7fELF", b"\x50\xed\x55\xba")):
            module["binary"] = _base64(code)
        else:
            module["ptx"] = code.decode("utf-8")
    return r


def _encode(request):
    if isinstance(request, Request):
        request = request.document
    if isinstance(request, dict):
        request = json.dumps(request)
    return request.encode("utf-8") if isinstance(request, str) else request


# ---- the daemon ----


class Answer(dict):
    """The answer to a request: its JSON form as a dict."""

    def output(self, name):
        """Returns the bytes of an inline output."""
        return base64.b64decode(self["outputs"][name]["data"])


class Run:
    """An asynchronous run."""

    def __init__(self, client, status):
        self.client, self.id, self.results = client, status["id"], status.get("results", {})

    def result(self, name):
        """Returns the key under which requests, and Client.get, can read an output with result=True."""
        return self.results[name]

    def status(self, wait=0):
        """Returns the status: a dict with state (queued, running, done or failed). wait is in seconds, at most 300."""
        return self.client._json("GET", "/v1/runs/%s?wait=%dms" % (self.id, wait * 1000))

    def wait(self, timeout=None):
        """Returns the answer when the run has finished, or raises its error. timeout is in seconds; if it expires, wait
        raises an Error with the code timeout, and the run continues."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            remaining = 60 if end is None else max(end - time.monotonic(), 0)
            status = self.status(min(remaining, 60))
            if status["state"] == "done":
                return Answer(status["answer"])
            if status["state"] == "failed":
                e = status["error"]
                raise Error(e["code"], e["message"], e["where"])
            if end is not None and time.monotonic() >= end:
                raise Error("timeout", "run %s is %s after %g s" % (self.id, status["state"], timeout))

    def delete(self):
        """Cancels the run if it is queued. Deletes its results otherwise."""
        self.client._call("DELETE", "/v1/runs/" + self.id)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("kerneld", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.close()
            raise


def _own_folder(path):
    """Reports whether only the user can have made what is in a folder."""
    try:
        s = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(s.st_mode) and s.st_uid == os.geteuid() and not s.st_mode & 0o022


def _default_socket():
    """Returns the path of the socket. Without variables, it is in the first of the daemon's default folders that has one."""
    run, user = (os.environ.get(n) for n in ("GFAAS_RUN_DIR", "XDG_RUNTIME_DIR"))
    if run or user and not user.startswith("/run/user/"):
        return os.path.join(run or os.path.join(user, "gfaas"), "kernel.sock")
    uid = os.geteuid()
    others = [d for d in ("/run/gfaas", "/tmp/gfaas-%d" % uid) if _own_folder(d)]
    paths = [os.path.join(d, "kernel.sock") for d in ["/run/user/%d/gfaas" % uid] + others]
    return next((p for p in paths if os.path.exists(p)), paths[0])


class Client:
    """A client of the daemon at address: the path of a socket, or HOST:PORT for gfaas-kerneld --listen. client is the name
    of the client as which it acts; without it, that of the socket, or the client default. timeout, in seconds, limits each
    step of a call in which no byte is sent or received; a request can run for long without one."""

    def __init__(self, address=None, client=None, timeout=None):
        self.address = address or _default_socket()
        self.client, self.timeout = client, timeout

    def _connect(self):
        if "/" not in self.address and ":" in self.address:
            return http.client.HTTPConnection(self.address, timeout=self.timeout)
        return _UnixConnection(self.address, self.timeout)

    def _call(self, method, path, body=None):
        """Sends a request and returns the body and the headers of the answer."""
        headers = {"Connection": "close"}
        if self.client:
            headers["Gfaas-Client"] = self.client
        connection = self._connect()
        try:
            try:
                connection.connect()
            except (FileNotFoundError, ConnectionRefusedError) as e:
                raise Error("no-daemon", "no kernel daemon at %s: start one with gfaas-kerneld" % self.address) from e
            try:
                connection.request(method, path, body=body, headers=headers)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the daemon has answered before it read the whole body
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status < 300:
            return data, answer.headers
        try:
            e = json.loads(data)["error"]
        except (ValueError, KeyError, TypeError):
            raise Error("internal", "unexpected answer: %d %s" % (answer.status, answer.reason), status=answer.status) from None
        raise Error(e["code"], e["message"], e.get("where", ""), answer.status)

    def _json(self, method, path, body=None):
        return json.loads(self._call(method, path, body)[0])

    def put(self, key, data):
        """Stores an object: bytes, or anything with the buffer protocol."""
        self._call("PUT", _object(key), _bytes(data))

    def get(self, key):
        """Returns the bytes of an object or of a result."""
        return self._call("GET", _object(key))[0]

    def size(self, key):
        """Returns the size of an object or of a result in bytes."""
        return int(self._call("HEAD", _object(key))[1]["Content-Length"])

    def delete(self, key):
        """Deletes an object or a result."""
        self._call("DELETE", _object(key))

    def objects(self):
        """Returns a list of the client's objects, as dicts with key, size, host, gpus and volatile."""
        return self._json("GET", "/v1/objects")["objects"]

    def put_module(self, name, code):
        """Stores code for requests: PTX text, or the bytes of a cubin or fatbin."""
        self._call("PUT", _module(name), code.encode("utf-8") if isinstance(code, str) else _bytes(code))

    def delete_module(self, name):
        """Deletes stored code."""
        self._call("DELETE", _module(name))

    def modules(self):
        """Returns a list of the client's stored modules, as dicts with name, kind, size and kernels."""
        return self._json("GET", "/v1/modules")["modules"]

    def run(self, request):
        """Runs a request (a Request, a dict or JSON text) and returns its Answer."""
        return Answer(self._json("POST", "/v1/run", _encode(request)))

    def submit(self, request):
        """Submits an asynchronous run and returns it as a Run."""
        return Run(self, self._json("POST", "/v1/runs", _encode(request)))

    def runs(self):
        """Returns a list of the client's asynchronous runs, as dicts with id, state, age_ms, results and code."""
        return self._json("GET", "/v1/runs")["runs"]

    def stats(self):
        """Returns the daemon's statistics."""
        return self._json("GET", "/v1/stats")


def _module(name):
    return "/v1/modules/" + urllib.parse.quote(name, safe="")


def _object(key):
    return "/v1/objects/" + urllib.parse.quote(key, safe="")
