"""Takes signed webhooks, as Standard Webhooks and as CloudEvents: python3 receiver.py PORT SECRET

Needs the packages of requirements.txt: standardwebhooks and cloudevents.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from standardwebhooks.webhooks import Webhook, WebhookVerificationError


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = dict(self.headers.items())
        try:
            webhook.verify(body, headers, json_parse=False)
        except WebhookVerificationError:
            return self.answer(401)
        try:
            event = self.event(headers, body)
        except ValueError:
            return self.answer(422)
        # Here the event has its effect, in one transaction with event["id"], which is unique: answer
        # 409 if it is there.
        event["consumer"] = self.headers["tailpost-consumer"]
        print(json.dumps(event, default=str) + "\n", end="", flush=True)
        self.answer(204)

    def event(self, headers, body):
        structured = self.headers["content-type"].startswith("application/cloudevents+json")
        if structured or "ce-id" in self.headers:
            event = from_http_event(HTTPMessage(headers, body))
            return {**event.get_attributes(), "data": event.get_data()}
        # {"type": …, "timestamp": …, "data": …}
        return {**json.loads(body), "id": self.headers["webhook-id"]}

    def answer(self, status):
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    webhook = Webhook(sys.argv[2])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
