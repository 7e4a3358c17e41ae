"""Stores models. gfaas_model.store documents this; programs do not import this module."""

import contextlib
import ctypes
import json
import operator
import os
import tempfile
import threading

import gfaas_model as gm

_ALIGNMENT = 256
_PIECE = 256 << 20  # bytes copied between signs of life; at 10 GB/s, 30 ms


# ---- the layout ----


def _layout(tensors, metadata):
    """Returns the manifest of a store, and the size of its memory."""
    manifest, end = {}, 0
    for name, description in tensors.items():
        try:
            dtype, shape = description
            shape = [operator.index(n) for n in shape]
        except (TypeError, ValueError):
            raise gm.Error(
                "usage", f'cannot store tensor {name}: got {description!r}, expected a pair like ("F32", (10, 4))'
            ) from None
        nbytes = gm._BYTES.get(dtype, 0) if isinstance(dtype, str) else 0
        if not nbytes:
            raise gm.Error("usage", f"cannot store tensor {name}: unknown dtype {dtype!r}")
        for n in shape:
            nbytes *= n
        if min(shape, default=0) < 0 or nbytes >= 2**63:
            raise gm.Error("usage", f"cannot store tensor {name}: its shape {shape} is invalid or too large")
        offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        manifest[name] = {"dtype": dtype, "shape": shape, "offset": offset, "bytes": nbytes}
        end = offset + nbytes
    return {"tensors": manifest, "metadata": dict(metadata or {})}, max(end, 1)


def _file(text):
    """Returns a file with a text; in memory, unless Python was built for an old C library."""
    if hasattr(os, "memfd_create"):
        file = open(os.memfd_create("gfaas-store"), "w+b")
    else:
        file = tempfile.TemporaryFile()
    with contextlib.ExitStack() as undo:
        undo.callback(file.close)
        file.write(text)
        file.flush()
        undo.pop_all()
    return file


# ---- the data of other libraries ----

_FORMATS = {"?": "BOOL", "e": "F16", "f": "F32", "d": "F64"}  # of the buffer protocol
_INTEGERS = {**dict.fromkeys("bhilqn", "I"), **dict.fromkeys("HILQN", "U")}
_RAW = "U8"  # of bytes and of arrays that are used as bytes
_TYPES = {text: dtype for dtype, text in gm._TYPESTR.items()}  # of __cuda_array_interface__
_DL_TYPES = {(code, 8 * gm._BYTES[dtype]): dtype for dtype, code in gm._DL_CODES.items()}
_ON_HOST, _ON_GPU = (1, 3), (2, 13)  # kinds of DLPack devices: CPU and pinned memory; CUDA and managed memory
_LEGACY_STREAM = 1

_python = ctypes.pythonapi
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p


class _Buffer(ctypes.Structure):  # Py_buffer
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_python.PyObject_GetBuffer.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
_python.PyBuffer_Release.argtypes, _python.PyBuffer_Release.restype = [ctypes.POINTER(_Buffer)], None


def _packed(shape, strides):
    """Reports whether strides, in elements, are those of a packed array in row-major order."""
    expected = 1
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n > 1 and stride != expected:
            return 0 in shape
        expected *= n
    return True


@contextlib.contextmanager
def _of_buffer(view):
    if not view.c_contiguous:
        raise gm.Error("usage", "the data is not contiguous in row-major order")
    letter = view.format[1:] if view.format[:1] in ("@", "=", "<") else view.format
    if letter in ("B", "c"):
        dtype = _RAW
    elif letter in _INTEGERS:
        dtype = f"{_INTEGERS[letter]}{8 * view.itemsize}"
    else:
        dtype = _FORMATS.get(letter, view.format)
    buffer = _Buffer()
    _python.PyObject_GetBuffer(view, ctypes.byref(buffer), 0)
    try:
        yield buffer.buf, dtype, view.shape
    finally:
        _python.PyBuffer_Release(ctypes.byref(buffer))


@contextlib.contextmanager
def _of_dlpack(data):
    kind, _ = data.__dlpack_device__()
    if kind not in _ON_HOST + _ON_GPU:
        raise gm.Error("usage", f"the data is on a device of kind {int(kind)}, expected the host or a CUDA GPU")
    # Not consumed: the capsule frees the tensor. Its name is that of versions before 1.0.
    capsule = data.__dlpack__(stream=_LEGACY_STREAM) if kind in _ON_GPU else data.__dlpack__()
    t = gm._Managed.from_address(_python.PyCapsule_GetPointer(capsule, gm._NAMES[gm._Managed])).tensor
    sizes = ctypes.c_int64 * t.ndim
    shape = tuple(sizes.from_address(t.shape)) if t.ndim else ()
    if t.ndim and t.strides and not _packed(shape, tuple(sizes.from_address(t.strides))):
        raise gm.Error("usage", "the data is not contiguous in row-major order")
    dtype = _DL_TYPES.get((t.code, t.bits)) if t.lanes == 1 else None
    yield (t.data or 0) + t.byte_offset, dtype or f"DLPack type ({t.code}, {t.bits}, {t.lanes})", shape
    del capsule


@contextlib.contextmanager
def _of_cuda(face):
    typestr, shape, strides = face["typestr"], tuple(face["shape"]), face.get("strides")
    dtype = _TYPES.get(typestr, typestr)
    size = gm._BYTES.get(dtype, 1)
    if face.get("mask") is not None or (strides and not _packed(shape, [n / size for n in strides])):
        raise gm.Error("usage", "the data has a mask, or is not contiguous in row-major order")
    if face.get("stream"):
        gm._driver().call("cuStreamSynchronize", face["stream"])
    yield face["data"][0] or 0, dtype, shape


@contextlib.contextmanager
def _of_tensor(tensor):
    yield tensor.data_ptr(), tensor.dtype, tensor.shape


def _open(data):
    """Returns a context manager for the address, the dtype and the shape of some data."""
    if isinstance(data, gm.Tensor):
        return _of_tensor(data)
    with contextlib.suppress(TypeError, ValueError, BufferError):  # ValueError: an array whose type has no letter
        return _of_buffer(memoryview(data))
    if hasattr(data, "__dlpack__"):
        return _of_dlpack(data)
    face = getattr(data, "__cuda_array_interface__", None)
    if face is None:
        raise TypeError(
            f"cannot store {type(data).__name__}: expected bytes, or an object with the buffer protocol, DLPack or "
            "__cuda_array_interface__"
        )
    return _of_cuda(face)


# ---- stores ----


class _Writable(gm.Tensor):
    """A tensor of a store. After the commit, a write to it faults."""

    __slots__ = ()
    _writable = True


class Store:
    """The memory of a model that this process writes: see gfaas_model.store."""

    def __init__(self, name, tensors, metadata, public, timeout):
        manifest, size = _layout(tensors, metadata)
        request = {"op": "store", "name": name, "size": size, "timeout_ms": int(timeout * 1000), "public": bool(public)}

        def ask(sock):
            with _file(json.dumps(manifest).encode()) as file:
                try:
                    return gm._request(sock, request, file.fileno())
                except gm.Error as e:
                    if e.code == "invalid-file":  # the manifest has what the caller passed
                        e.code = "usage"
                    raise

        self.name = name
        self._pid = os.getpid()
        self._lock = threading.Lock()  # of the connection
        self._written = set()
        self._state = "is open"
        self._opened = gm._Model(name, ask, gm._READ_WRITE)

    def __repr__(self):
        return f"<gfaas_model store of {self.name}: it {self._state}>"

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.abort()
        elif self._opened is not None:
            self.commit()

    @property
    def _model(self):
        if os.getpid() != self._pid:
            raise gm.Error("usage", f"the store of model {self.name} belongs to the parent process")
        if self._opened is None:
            raise gm.Error("usage", f"the store of model {self.name} {self._state}")
        return self._opened

    def _entry(self, name):
        entries = self._model.entries
        if name not in entries:
            raise gm.Error("absent", f"model {self.name} has no tensor {name}")
        return entries[name]

    def _tell(self, op):
        sock = self._model.sock
        if sock._inode() != sock.inode:
            raise gm.Error("no-daemon", f"the connection to gfaas-modeld that stores model {self.name} was closed")
        with self._lock:
            try:
                gm._close(gm._request(sock, {"op": op, "name": self.name})[1])
            except gm.Error:
                raise
            except BaseException:  # such as KeyboardInterrupt: the next answer would be that of this request
                self._end("was dropped, because a request was interrupted")
                raise

    def keys(self):
        """Returns the names of the tensors."""
        return list(self._model.entries)

    def __getitem__(self, name):
        """Returns a tensor to write to until the commit. For the commit, it counts as written."""
        tensor = _Writable(self._model, self._entry(name))
        self._written.add(name)
        return tensor

    def __setitem__(self, name, data):
        """Copies a whole tensor, and waits until that is done."""
        dtype, shape, offset, nbytes = self._entry(name)
        model, driver = self._model, gm._driver()
        with driver.primary(model.device), _open(data) as (address, has, of):
            count = gm._BYTES.get(has, 0)
            for n in of:
                count *= n
            if (has, tuple(of)) != (dtype, shape) and (has, count) != (_RAW, nbytes):
                raise gm.Error(
                    "usage",
                    f"tensor {name} is {dtype} of shape {list(shape)} ({nbytes} bytes), got {has} of shape {list(of)}",
                )
            for at in range(0, nbytes, _PIECE):
                self.touch()
                driver.call("cuMemcpy", model.base + offset + at, address + at, min(_PIECE, nbytes - at))
                driver.call("cuStreamSynchronize", None)  # a copy within the GPU may still run
        self._written.add(name)

    def touch(self):
        """Tells gfaas-modeld that the store continues."""
        self._tell("touch")

    def commit(self, framework=None):
        """Publishes the model. Returns its tensors by name, as gfaas_model.load does."""
        if framework not in gm._FRAMEWORKS:
            raise ValueError(f"framework={framework!r}: expected None, 'torch' or 'cupy'")
        model = self._model
        for name, entry in model.entries.items():
            if entry[3] and name not in self._written:
                raise gm.Error("usage", f"cannot commit model {self.name}: tensor {name} was not written")
        try:
            model.seal()  # before the model becomes visible
            self._tell("commit")
        except BaseException:
            if self._opened is not None:
                self._end("could not be committed")
            raise
        self._opened, self._state = None, "was committed"
        return {name: gm._FRAMEWORKS[framework](gm.Tensor(model, entry)) for name, entry in model.entries.items()}

    def abort(self):
        """Drops the model, unless it was committed. Tensors of the store stay mapped as long as
        references to them exist."""
        if self._opened is not None:
            self._end("was dropped")

    def _end(self, state):
        self._opened.sock.close()
        self._opened, self._state = None, state
