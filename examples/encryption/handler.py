"""Decrypts events: KEYS_URL=… python3 handler.py PORT

Needs the packages of requirements.txt: jwcrypto and psycopg 3. docs/handlers.md has what is left out
here: the signature, and effects that happen once.
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
from jwcrypto.common import JWException
from jwcrypto.jwe import JWE
from jwcrypto.jwk import JWK


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.handle_event(body))
        self.send_header("content-length", "0")  # an answer with words would be kept
        self.end_headers()

    def handle_event(self, body):
        token = JWE()
        token.allowed_algs = ["dir", "A256GCM"]
        try:
            token.deserialize(body.decode())
            kid = str(token.jose_header["kid"])
        except (JWException, KeyError, ValueError):
            return 422  # not encrypted: never right
        try:
            with psycopg.connect(os.environ["KEYS_URL"]) as keys:
                found = keys.execute("SELECT jwk FROM person_keys WHERE kid = %s", (kid,)).fetchone()
        except psycopg.Error:
            return 503  # the keys are away: later
        if found is None:
            return 503  # the key is not here yet, or was lost: later
        if found[0] is None:
            return self.done(None)  # destroyed: handled without its data
        try:
            token.decrypt(JWK(**found[0]))
        except JWException:
            return 422  # changed on its way: never right
        return self.done(json.loads(token.payload))

    def done(self, data):
        """Here the event has its effect, with its data or, of somebody who is forgotten, without."""
        event = {"id": self.headers["webhook-id"], "person": self.headers["aggregate-id"], "data": data}
        print(json.dumps(event) + "\n", end="", flush=True)
        return 204

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
