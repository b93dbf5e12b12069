"""A pytest plugin for openai-python's own tests: their mocked answers come from a vendor behind the proxy.

The proxy is at $SLIPFORM_ADDRESS, and asks the vendor at $SLIPFORM_VENDOR_PORT, which answers with what a test mocks.
"""

import http.server
import os
import threading
import urllib.error
import urllib.request

import httpx2

ADDRESS = os.environ["SLIPFORM_ADDRESS"]
DROPPED = ("host", "content-length", "accept-encoding", "connection")


class Vendor(http.server.BaseHTTPRequestHandler):
    answer = (b"", "application/json")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        content, kind = Vendor.answer
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def through_proxy(request: httpx2.Request, mocked: httpx2.Response) -> httpx2.Response:
    Vendor.answer = (mocked.content, mocked.headers["content-type"])
    headers = {name: value for name, value in request.headers.items() if name.lower() not in DROPPED}
    sent = urllib.request.Request(ADDRESS + "/v1" + request.url.path, request.content, headers, method="POST")
    try:
        with urllib.request.urlopen(sent) as reply:
            return httpx2.Response(reply.status, content=reply.read(), headers=dict(reply.headers))
    except urllib.error.HTTPError as error:
        return httpx2.Response(error.code, content=error.read(), headers=dict(error.headers))


def pytest_configure() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["SLIPFORM_VENDOR_PORT"])), Vendor)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def pytest_collection_finish() -> None:
    from tests.respx2 import Route  # type: ignore[import-not-found]

    mock = Route.mock

    def mock_behind_proxy(self: Route, return_value: object = None, *, side_effect: object = None) -> Route:
        if isinstance(return_value, httpx2.Response):
            mocked = return_value
            return mock(self, side_effect=lambda request: through_proxy(request, mocked))
        return mock(self, return_value, side_effect=side_effect)

    Route.mock = mock_behind_proxy
