"""A scripted OpenAI-compatible endpoint on loopback: a test double for a language model, never the demo."""

import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Request = dict[str, Any]
Answer = Any  # a text, a JSON value, or Raw


class Raw:
    """A response as it is: for endpoints that answer HTML, cut-off JSON, errors."""

    def __init__(self, status, body=b"", **headers):
        self.status = status
        text = json.dumps(body) if isinstance(body, dict) else body
        self.body = text.encode() if isinstance(text, str) else text
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def completion(text: str, **extra: Any) -> dict[str, Any]:
    return {
        "id": "c", "object": "chat.completion", "created": 1, "model": "scripted",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        **extra,
    }  # fmt: skip


def cut_off(text: str) -> dict[str, Any]:
    """A completion that hit its length limit."""
    (choice,) = completion(text)["choices"]
    return completion("", choices=[{**choice, "finish_reason": "length"}])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Server(ThreadingHTTPServer):
    """On loopback, until it is closed."""

    daemon_threads = True

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.url = f"http://{self.host}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, *_):
        pass

    def close(self):
        self.shutdown()
        self.server_close()


class Endpoint:
    """`respond(request)` answers each POST; every request is kept in `requests`, in order of arrival."""

    def __init__(self, respond: Callable[[Request], Answer], delay_s: float = 0.0) -> None:
        self.requests: list[Request] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.in_flight: set[object] = set()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                models = endpoint.models
                self.answer(models(self.path) if callable(models) else models)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                try:
                    request = json.loads(body)
                except ValueError:
                    request = {"body": body}
                endpoint.requests.append(request)
                endpoint.headers.append(dict(self.headers))
                endpoint.paths.append(self.path)
                endpoint.in_flight.add(self)
                time.sleep(delay_s)
                answer = respond(request)
                endpoint.in_flight.discard(self)
                self.answer(answer)

            def answer(self, answer: Answer) -> None:
                if isinstance(answer, OSError):  # no answer
                    self.close_connection = True
                    return
                if not isinstance(answer, dict | Raw):
                    answer = completion(str(answer))
                answer = Raw(200, answer) if isinstance(answer, dict) else answer
                self.send_response(answer.status)
                for name, value in {"content-type": "application/json", **answer.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_: object) -> None:
                pass

        self.models: Any = {"data": [{"id": "scripted"}]}  # or a function of a GET's path
        server = Server(Handler)
        self.url, self.close = f"{server.url}/v1", server.close


# ---- replies of a main agent and of sub-agents ---------------------------------------------------


def is_main(request: Request) -> bool:
    return "You are the main agent" in request["messages"][0]["content"]


def last_text(request: Request) -> str:
    content = request["messages"][-1]["content"]
    return content if isinstance(content, str) else " ".join(p.get("text", "") for p in content)


def delegate(*tasks: str | dict[str, Any]) -> str:
    plain = {"context": "", "model": "auto", "tools": []}
    rows = [t if isinstance(t, dict) else {"task_instruction": t, **plain} for t in tasks]
    return json.dumps({"action": "delegate_task", "reasoning": "r", "params": {"tasks": rows}})


def complete(answer: Any) -> str:
    return json.dumps({"action": "complete", "reasoning": "r", "params": {"answer": answer}})


def finish(result: Any, status: str = "done", summary: str = "s") -> str:
    return act("finish", "m", result=result, status=status, summary=summary)


def act(tool: str, memory: str = "", **params: Any) -> str:
    return json.dumps({"action": tool, "params": params, "memory": memory})


# ---- a graph of MAS-Orchestra --------------------------------------------------------------------

SAID = "<agent_description>d</agent_description>"
THINKING = "<thinking>hm</thinking>"


def agent(id="A", name="CoTAgent", input="", extra="", roles=""):
    roles = f"<debate_roles>{roles}</debate_roles>" if roles else ""
    about = f"<agent_id>{id}</agent_id><agent_name>{name}</agent_name>{extra}\n{SAID}"
    given = f"<required_arguments><agent_input>{input}</agent_input>{roles}</required_arguments>"
    return f"<agent>\n{about}{given}</agent>\n"


def edge(*ends):
    pairs = zip(ends[::2], ends[1::2], strict=True)
    return "<edge>" + "".join(f"<from>{a}</from><to>{b}</to>" for a, b in pairs) + "</edge>\n"


def thought(*parts):
    return THINKING + "".join(parts)


JOIN = agent("C", input="join ${A} and ${B}") + edge("A", "C", "B", "C")
SAMPLES = thought(*(agent(id, "SCAgent", "guess") for id in "AB"), JOIN)
CHAIN = thought(agent("A", input="first"), agent("B", input="${A}"), edge("A", "B"))
DEBATE = thought(agent("A", "DebateAgent", "guess", roles='["Optimist", "Sceptic"]'))
