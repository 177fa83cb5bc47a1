"""Receives webhooks with the Python library of Standard Webhooks, and prints what it accepts.

`webhook_receiver.py KEY [STATUS…]`: the first answers have these statuses, the later ones 204.
"""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

webhook = Webhook(sys.argv[1])
statuses = [int(each) for each in sys.argv[2:]]


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            message = webhook.verify(body, dict(self.headers))
        except WebhookVerificationError as error:
            print(f"refused: {error}", flush=True)
            self._answer(401)
            return
        status = statuses.pop(0) if statuses else 204
        print(f"{status} {self.headers['webhook-id']} {message['method']}", flush=True)
        self._answer(status)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


server = HTTPServer(("127.0.0.1", 0), Receiver)
print(f"listening at http://127.0.0.1:{server.server_port}/", flush=True)
server.serve_forever()
