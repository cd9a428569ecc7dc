"""A web server of one file on this machine, which can stall, cut off, and lie."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Behaviour:
    """``cuts`` and ``stalls``: after how many bytes of each answer, one after the other, until they are used up."""

    content: bytes
    cuts: list[int] = field(default_factory=list)
    stalls: list[int] = field(default_factory=list)
    length: int | None = 0  # that is said; 0 for the true one, None for none
    codes: list[int] = field(default_factory=list)
    later: bytes | None = None  # the content from the second answer on
    asked: list[dict[str, str]] = field(default_factory=list)
    url: str = ""


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[Behaviour]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            b = behaviour
            b.asked.append(dict(self.headers))
            if b.codes and (code := b.codes.pop(0)) != 200:
                self.send_error(code)
                return
            if len(b.asked) > 1:
                b.content = b.later or b.content
            body = b.content
            self.send_response(200)
            if b.length is not None:
                self.send_header("Content-Length", str(b.length or len(body)))
            self.end_headers()
            if b.cuts:
                body = body[: b.cuts.pop(0)]
            if b.stalls:
                self.wfile.write(body[: b.stalls.pop(0)])
                self.wfile.flush()
                time.sleep(1.2)
                return
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    behaviour.url = f"http://127.0.0.1:{server.server_address[1]}/file.bin"
    try:
        yield behaviour
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
