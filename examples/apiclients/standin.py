"""A stand-in for a model server with more of OpenAI's API than the template openai, and Anthropic's messages.

It extends the template's server, so its words are computed on the GPU as well. The folder of the template must be
on PYTHONPATH.
"""

import json
import sys

import server  # of the template

TOOL = "look_up"


def words(n, seed):
    return [{"role": "user", "content": " ".join([seed] * n)}]


class Handler(server.Handler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            answer = getattr(self, {"/v1/completions": "completions", "/v1/embeddings": "embeddings", "/v1/messages": "messages",
                                    "/v1/audio/transcriptions": "transcriptions", "/v1/chat/completions": "chat"}.get(self.path, "unknown"))
            answer(body)
        except server.Fault as fault:
            self.fault(fault)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def unknown(self, body):
        raise server.Fault(404, f"{self.path} is not served")

    def text(self, n, seed):
        return "".join(self.server.model.generate(words(n, seed)))

    def sse(self, events):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for name, data in events:
            event = (f"event: {name}\n" if name else "") + f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event.encode()))
        self.wfile.write(b"0\r\n\r\n")

    def chat(self, body):
        asked = json.loads(body)
        last = asked["messages"][-1]
        if asked.get("tools") and last["role"] == "user":
            return self.call_tool(asked)
        if isinstance(last["content"], list):  # images
            kinds = [part["type"] for part in last["content"]]
            asked["messages"][-1] = {"role": "user", "content": " ".join(kinds)}
        request = server.Request(json.dumps(asked))
        self.stream(request) if request.stream else self.whole(request)

    def call_tool(self, asked):
        call = {"index": 0, "id": "call_x", "type": "function", "function": {"name": TOOL, "arguments": '{"word": "gpu"}'}}
        head = {"id": "chatcmpl-1", "created": 1, "model": asked["model"], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
        if not asked.get("stream"):
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            return self.answer(200, {**head, "object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})

        def chunk(delta, reason=None):
            return None, {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

        first = {**call, "function": {"name": TOOL, "arguments": ""}}
        pieces = [{"index": 0, "function": {"arguments": piece}} for piece in ('{"word":', ' "gpu"}')]
        self.sse([chunk({"role": "assistant", "tool_calls": [first]}), *(chunk({"tool_calls": [p]}) for p in pieces), chunk({}, "tool_calls"), (None, "[DONE]")])

    def completions(self, body):
        asked = json.loads(body)
        text = self.text(3, asked["prompt"])
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": asked["model"]}
        if not asked.get("stream"):
            return self.answer(200, {**head, "choices": [{"index": 0, "text": text, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}})
        pieces = [(None, {**head, "choices": [{"index": 0, "text": p, "finish_reason": None}]}) for p in server.pieces(text)]
        self.sse([*pieces, (None, {**head, "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}), (None, "[DONE]")])

    def embeddings(self, body):
        asked = json.loads(body)
        texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
        if len(texts) > 8:
            raise server.Fault(400, "at most 8 texts", "input")
        data = [{"object": "embedding", "index": i, "embedding": [len(self.text(1, t)), len(t) / 2]} for i, t in enumerate(texts)]
        self.answer(200, {"object": "list", "model": asked["model"], "data": data, "usage": {"prompt_tokens": len(texts), "total_tokens": len(texts)}})

    def messages(self, body):
        asked = json.loads(body)
        text = self.text(3, "message")
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": asked["model"], "content": [{"type": "text", "text": text}],
                   "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 3}}
        if not asked.get("stream"):
            return self.answer(200, message)
        deltas = [("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": p}}) for p in server.pieces(text)]
        self.sse([("message_start", {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}),
                  ("content_block_start", {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}), *deltas,
                  ("content_block_stop", {"type": "content_block_stop", "index": 0}),
                  ("message_delta", {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 3}}),
                  ("message_stop", {"type": "message_stop"})])

    def transcriptions(self, body):
        self.answer(200, {"text": f"{self.text(2, 'sound')} {b'RIFF' in body}"})


if __name__ == "__main__":
    server.Handler = Handler
    sys.exit(server.main())
