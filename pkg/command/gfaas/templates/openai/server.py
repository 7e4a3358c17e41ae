"""A function that implements OpenAI's API: POST /v1/chat/completions, whole or as a stream.

It contains no model: each word is chosen by a number that the device has computed, so that
you can try everything around a model. To use a model, call it in `generate`, which yields
the pieces of an answer as they are ready. The program needs only Python's standard library
and has no knowledge of gfaas: it listens on PORT, and MODEL is the name of the model.
"""

import ctypes
import http.server
import json
import os
import pathlib
import re
import secrets
import signal
import sys
import threading
import time
import zlib

import gpu

MODEL = os.environ.get("MODEL", "my-function")
BLOCKS = int(os.environ.get("BLOCKS", "320"))  # of the kernel for one word
WIDTH = 64  # numbers that the device stores for a conversation
WORDS = "a all and as be but for from gpu has i in is it like many more not of one or share that the time to what with".split()
MOST_BYTES = 4 << 20  # largest request
MOST_TOKENS = 1024


def pieces(text):
    """Splits a text like a tokenizer: into words, each with the space before it."""
    return re.findall(r"\s*\S+", text)


def embedding(word):
    """Returns small whole numbers, for which floats are exact on every device."""
    seed = zlib.crc32(word.strip().encode("utf-8", "replace"))
    return [(seed >> (i % 24)) & 255 for i in range(WIDTH)]


class Model:
    """Computes on device 0. Several threads can use it at once."""

    def __init__(self):
        self.gpu = gpu.Gpu(pathlib.Path(__file__).with_name("saxpy.ptx").read_text())
        self.kernel = self.gpu.kernel("saxpy")

    def generate(self, messages):
        """Yields the pieces of an answer, as many as the last message has."""
        self.gpu.use()
        with self.gpu.floats(WIDTH) as word, self.gpu.floats(WIDTH) as state:
            self.gpu.write(state, [0] * WIDTH)
            for n, piece in enumerate(pieces(messages[-1]["content"])):
                self.gpu.write(word, embedding(piece))
                self.gpu.launch(self.kernel, BLOCKS, ctypes.c_float(3), word, state, ctypes.c_int32(WIDTH))
                drawn = WORDS[int(sum(self.gpu.read(state, WIDTH))) % len(WORDS)]
                yield " " + drawn if n else drawn.capitalize()


def text_of(content, where):
    """Returns the text of a message's content: a text, parts of type text, or null (with tool calls)."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else [content]:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise Fault(400, f"{where}: expected a text, or parts of type text", "messages")
        texts.append(part["text"])
    return "".join(texts)


class Fault(Exception):
    """An error in a request."""

    def __init__(self, status, message, param=None):
        super().__init__(message)
        self.status, self.param = status, param


class Request:
    """A valid request."""

    def __init__(self, body):
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError) as e:
            raise Fault(400, f"the body is not JSON: {e}") from None
        if not isinstance(asked, dict):
            raise Fault(400, "expected an object")
        if asked.get("model") != MODEL:
            raise Fault(404, f"model: {asked.get('model')!r} does not exist, expected {MODEL!r}", "model")
        messages = asked.get("messages")
        if not isinstance(messages, list) or not messages:
            raise Fault(400, "messages: expected a list with at least one message", "messages")
        for n, message in enumerate(messages):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise Fault(400, f"messages[{n}]: expected a role and a content", "messages")
            if "content" not in message and message["role"] != "assistant":
                raise Fault(400, f"messages[{n}].content: expected a text, parts or null", "messages")
            messages[n] = {**message, "content": text_of(message.get("content"), f"messages[{n}].content")}
        self.messages = messages
        self.stream = asked.get("stream") or False
        if not isinstance(self.stream, bool):
            raise Fault(400, "stream: expected true or false", "stream")
        limit = asked.get("max_completion_tokens", asked.get("max_tokens"))
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise Fault(400, "max_tokens: expected a number from 1", "max_tokens")
        self.limit = min(limit or MOST_TOKENS, MOST_TOKENS)
        options = asked.get("stream_options") or {}
        self.usage = isinstance(options, dict) and options.get("include_usage") is True
        self.head = {"id": "chatcmpl-" + secrets.token_hex(12), "created": int(time.time()), "model": MODEL}
        self.prompt = sum(len(pieces(m["content"])) for m in messages)
        self.given = 0
        self.reason = "stop"

    def pieces(self, model):
        """Yields the pieces of the answer, up to the requested limit."""
        for piece in model.generate(self.messages):
            if self.given == self.limit:
                self.reason = "length"
                return
            self.given += 1
            yield piece

    def counts(self):
        return {"prompt_tokens": self.prompt, "completion_tokens": self.given, "total_tokens": self.prompt + self.given}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # send the body without waiting for an acknowledgement of the head

    def answer(self, status, what):
        body = json.dumps(what).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def fault(self, fault):
        kind = "invalid_request_error" if fault.status < 500 else "server_error"
        self.answer(fault.status, {"error": {"message": str(fault), "type": kind, "param": fault.param, "code": None}})

    def do_GET(self):
        if self.path == "/v1/models":
            self.answer(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "me"}]})
        else:
            self.fault(Fault(404, "expected POST /v1/chat/completions or GET /v1/models"))

    do_HEAD = do_GET

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MOST_BYTES:
            self.close_connection = True  # the body is not read
            return self.fault(Fault(413 if length.isdigit() else 411, f"expected a body of at most {MOST_BYTES} bytes"))
        body = self.rfile.read(int(length))
        try:
            if self.path != "/v1/chat/completions":
                raise Fault(404, "expected POST /v1/chat/completions or GET /v1/models")
            request = Request(body)
        except Fault as fault:
            return self.fault(fault)
        try:
            self.stream(request) if request.stream else self.whole(request)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the caller has disconnected: stop computing

    def whole(self, request):
        try:
            text = "".join(request.pieces(self.server.model))
        except gpu.Error as e:
            return self.fault(Fault(500, str(e)))
        message = {"role": "assistant", "content": text}
        self.answer(200, {**request.head, "object": "chat.completion", "usage": request.counts(),
                          "choices": [{"index": 0, "message": message, "finish_reason": request.reason}]})

    def stream(self, request):
        """Sends the answer as server-sent events. After an error of the GPU, the final event is missing."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def chunk(choices, **more):
            self.event(json.dumps({**request.head, "object": "chat.completion.chunk", "choices": choices, **more}))

        def delta(what, reason=None):
            chunk([{"index": 0, "delta": what, "finish_reason": reason}])

        delta({"role": "assistant", "content": ""})
        for piece in request.pieces(self.server.model):
            delta({"content": piece})
        delta({}, request.reason)
        if request.usage:
            chunk([], usage=request.counts())
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, text):
        event = b"data: " + text.encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True  # the caller of shutdown has waited for the answers that it needs
    request_queue_size = 64


def main():
    try:
        model = Model()
    except (gpu.Error, OSError) as e:
        return f"no GPU: {e}"
    server = Server((os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "8080"))), Handler)
    server.model = model
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever(poll_interval=0.1)
    server.server_close()


if __name__ == "__main__":
    sys.exit(main())
