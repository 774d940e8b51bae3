"""A handler for `tailpost inbox run`: python3 http_handler.py [HOST:]PORT DATABASE [WHSEC_SECRET]"""
import base64, hashlib, hmac, json, sqlite3, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST, _, PORT = sys.argv[1].rpartition(":")
DATABASE, SECRET = sys.argv[2], (sys.argv[3:] or [""])[0]
AGE_MAX = 300  # seconds; an older request was captured and sent again


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # lets connections be used again

    def do_POST(self):
        self.send_response(self.handle_event(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def handle_event(self, payload):
        key = self.headers["webhook-id"]  # not Idempotency-Key, which nobody signs
        if not key or SECRET and not self.signed(key, payload):
            return 401  # not ours to process, and not the event's fault
        try:
            total = int(json.loads(payload)["total_cents"])
        except (ValueError, KeyError, TypeError):
            return 422  # will never be right
        try:
            with sqlite3.connect(DATABASE) as db:  # effect and key in one transaction
                db.execute("INSERT INTO totals VALUES (?, ?)", (key, total))
        except sqlite3.IntegrityError:
            return 409  # it had its effect before
        return 204

    def signed(self, key, payload):
        """Whether id, time and body are as they were signed, and not long ago."""
        sent = self.headers["webhook-timestamp"] or ""
        if not sent.isdecimal() or abs(time.time() - int(sent)) > AGE_MAX:
            return False
        secret = base64.b64decode(SECRET.removeprefix("whsec_"))
        digest = hmac.digest(secret, f"{key}.{sent}.".encode() + payload, hashlib.sha256)
        ours = ("v1," + base64.b64encode(digest).decode()).encode()
        theirs = (self.headers["webhook-signature"] or "").encode().split()
        return any([hmac.compare_digest(ours, it) for it in theirs])


sqlite3.connect(DATABASE).execute("CREATE TABLE IF NOT EXISTS totals (event_id TEXT PRIMARY KEY, cents INT)")
ThreadingHTTPServer((HOST or "127.0.0.1", int(PORT)), Handler).serve_forever()
