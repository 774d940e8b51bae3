// A handler for `tailpost inbox run`: node handler.js PORT [WHSEC_SECRET], with DATABASE_URL set
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer, IncomingMessage } from "node:http";
import { Pool } from "pg"; // npm install pg @types/pg

const [port, secret] = process.argv.slice(2);
const AGE_MAX = 300; // seconds; an older request was captured and sent again
const pool = new Pool({ connectionString: process.env.DATABASE_URL });

function header(request: IncomingMessage, name: string): string {
  return String(request.headers[name] ?? "");
}

/** Whether id, time and body are as they were signed, and not long ago. */
function signed(request: IncomingMessage, key: string, body: Buffer): boolean {
  const sent = header(request, "webhook-timestamp");
  if (!/^\d+$/.test(sent) || Math.abs(Date.now() / 1000 - Number(sent)) > AGE_MAX) return false;
  const hmac = createHmac("sha256", Buffer.from(secret.replace(/^whsec_/, ""), "base64"));
  const ours = Buffer.from("v1," + hmac.update(`${key}.${sent}.`).update(body).digest("base64"));
  const theirs = header(request, "webhook-signature").split(" ").map((it) => Buffer.from(it));
  return theirs.some((it) => it.length === ours.length && timingSafeEqual(it, ours));
}

async function handleEvent(request: IncomingMessage, body: Buffer): Promise<number> {
  const key = header(request, "webhook-id"); // not Idempotency-Key, which nobody signs
  if (!key || (secret && !signed(request, key, body))) return 401; // not the event's fault
  let total: unknown;
  try {
    total = JSON.parse(body.toString()).total_cents;
  } catch {
    return 422; // will never be right
  }
  if (!Number.isInteger(total)) return 422;
  // Effect and key in one statement, and so in one transaction.
  const insert = "INSERT INTO totals VALUES ($1, $2) ON CONFLICT DO NOTHING";
  const { rowCount } = await pool.query(insert, [key, total]);
  return rowCount === 1 ? 204 : 409; // 409: it had its effect before
}

const server = createServer(async (request, response) => {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk);
  const status = await handleEvent(request, Buffer.concat(chunks)).catch((error) => {
    console.error(error.message);
    return 503; // the database is away: later
  });
  response.writeHead(status).end();
});

const table = "CREATE TABLE IF NOT EXISTS totals (event_id text PRIMARY KEY, cents bigint)";
pool.query(table).then(() => server.listen(Number(port), "127.0.0.1"));
