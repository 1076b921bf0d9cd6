"""A stand-in for the model's API (POST /v1/messages) on loopback, so that the real CLIs can be driven offline.

    with ModelApi([tool("Bash", command="echo hi > a.txt"), say("Done.")]) as api:
        env = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "not-a-key"}

Each request that carries tools (the agent's own turns) takes the next turn of the script; the last one is
repeated. Where several agents ask at once, the script is a mapping: a word (of the issue's title, say) that stands
in one agent's conversation and in no other's, and that agent's script. Requests without tools (titles, summaries,
quota checks) get a short text. Answers are streamed where `stream` is asked for. `api.turns` counts the agent's own
requests; `api.bodies` holds them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Turn:
    """One answer: content blocks, or an error status. `headers` are sent with either. `hold`, if given, is
    waited for before anything is sent: a model that thinks for as long as the test likes."""

    blocks: tuple[dict[str, Any], ...] = ()
    status: int = 200
    error: str = ""
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    hold: threading.Event | None = None
    output_tokens: int = 20  # as the API counts them; what a run costs is reckoned from it


def say(text: str, headers: Mapping[str, str] | None = None) -> Turn:
    return Turn(blocks=({"type": "text", "text": text},), headers=headers or {})


def tool(name: str, **given: Any) -> Turn:
    return Turn(blocks=({"type": "tool_use", "name": name, "input": given},))


def run_command(command: str) -> Turn:
    """A shell command. Tool names are spelled as the asking CLI spells them, so this serves both."""
    return tool("Bash", command=command, description="test")


def failure(status: int, headers: Mapping[str, str] | None = None) -> Turn:
    """The API's own errors, by status."""
    errors = {
        400: ("invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
        401: ("authentication_error", "invalid x-api-key"),
        404: ("not_found_error", "model: no-such-model"),
        429: ("rate_limit_error", "This request would exceed your account's rate limit."),
        529: ("overloaded_error", "Overloaded"),
    }
    error, message = errors[status]
    return Turn(status=status, error=error, message=message, headers=headers or {})


def waiting(hold: threading.Event) -> Turn:
    return Turn(blocks=({"type": "text", "text": "At last."},), hold=hold)


class ModelApi:
    def __init__(self, script: Sequence[Turn] | Mapping[str, Sequence[Turn]]) -> None:
        self.scripts = (
            {word: list(turns) for word, turns in script.items()}
            if isinstance(script, Mapping)
            else {"": list(script)}
        )
        self.bodies: list[dict[str, Any]] = []
        self.asked: dict[str, int] = dict.fromkeys(self.scripts, 0)  # requests, by the script that answered
        self.fetched: list[str] = []  # paths that were asked for by GET, which is no business of a model's API
        self._lock = threading.Lock()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                api._answer(self)

            def do_GET(self) -> None:
                api.fetched.append(self.path)
                _send_json(self, 404, {"type": "error", "error": {"type": "not_found_error", "message": "no"}})

            do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def turns(self) -> int:
        return len(self.bodies)

    def answer(self, word: str, script: Sequence[Turn]) -> None:
        """From now on, from its first turn on, another script for that conversation."""
        with self._lock:
            self.scripts[word], self.asked[word] = list(script), 0

    def __enter__(self) -> ModelApi:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for turn in (turn for turns in self.scripts.values() for turn in turns):
            if turn.hold is not None:
                turn.hold.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        if "/messages" not in handler.path or "count_tokens" in handler.path:
            _send_json(handler, 200, {"input_tokens": 100})
            return
        body = json.loads(raw)
        turn = say("A title") if not body.get("tools") else self._next(body)
        if turn.hold is not None:
            turn.hold.wait(120)
        try:
            if turn.status != 200:
                error = {"type": turn.error, "message": turn.message}
                _send_json(handler, turn.status, {"type": "error", "error": error}, turn.headers)
            elif body.get("stream"):
                _stream(handler, body, turn)
            else:
                _send_json(handler, 200, _message(body, turn), turn.headers)
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True

    def _next(self, body: dict[str, Any]) -> Turn:
        said = "" if "" in self.scripts else json.dumps(body.get("messages", []))
        with self._lock:
            self.bodies.append(body)
            word = next((word for word in self.scripts if word in said), None)
            if word is None:
                return Turn(
                    status=400, error="invalid_request_error", message="no script for this conversation"
                )
            self.asked[word] += 1
            script = self.scripts[word]
            return script[min(self.asked[word], len(script)) - 1]


def _blocks(body: dict[str, Any], turn: Turn) -> list[dict[str, Any]]:
    """The turn's blocks, with ids, and with the tool names spelled as this CLI spells them."""
    names = {str(t.get("name", "")).lower(): t.get("name") for t in body.get("tools", [])}
    blocks = []
    for index, block in enumerate(turn.blocks):
        if block["type"] == "tool_use":
            name = names.get(block["name"].lower(), block["name"])
            block = {**block, "id": f"toolu_{len(body.get('messages', []))}_{index}", "name": name}
        blocks.append(block)
    return blocks


def _message(body: dict[str, Any], turn: Turn) -> dict[str, Any]:
    blocks = _blocks(body, turn)
    return {
        "id": f"msg_{len(body.get('messages', []))}",
        "type": "message",
        "role": "assistant",
        "model": body.get("model", "test"),
        "content": blocks,
        "stop_reason": "tool_use" if any(b["type"] == "tool_use" for b in blocks) else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": turn.output_tokens},
    }


def _stream(handler: BaseHTTPRequestHandler, body: dict[str, Any], turn: Turn) -> None:
    message = _message(body, turn)
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    ]
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            start, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            start = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": stop, "usage": {"output_tokens": turn.output_tokens}})
    events.append({"type": "message_stop"})
    data = b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events)
    _send(handler, 200, "text/event-stream", data, turn.headers)


def _send_json(
    handler: BaseHTTPRequestHandler, status: int, body: dict[str, Any], headers: Mapping[str, str] | None = None
) -> None:
    _send(handler, status, "application/json", json.dumps(body).encode(), headers or {})


def _send(
    handler: BaseHTTPRequestHandler, status: int, kind: str, data: bytes, headers: Mapping[str, str]
) -> None:
    handler.send_response(status)
    for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)
