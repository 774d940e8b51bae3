// Decrypts events: KEYS_URL=… node handler.js PORT
//
// Needs the packages of package.json: jose and pg. It is TypeScript too. docs/handlers.md has what is left
// out here: the signature, and effects that happen once.

const { createServer } = require("node:http");
const { compactDecrypt, decodeProtectedHeader, flattenedDecrypt, importJWK } = require("jose");
const { Pool } = require("pg");

const keys = new Pool({ connectionString: process.env.KEYS_URL });
keys.on("error", () => {}); // a connection that is lost is replaced

const ALLOWED = { keyManagementAlgorithms: ["dir"], contentEncryptionAlgorithms: ["A256GCM"] };

async function answerTo(body, headers) {
  let token, kid;
  try {
    token = body.startsWith("{") ? JSON.parse(body) : body;
    kid = String(decodeProtectedHeader(token).kid);
  } catch {
    return 422; // not encrypted: never right
  }
  let found;
  try {
    found = (await keys.query("SELECT jwk FROM person_keys WHERE kid = $1", [kid])).rows[0];
  } catch {
    return 503; // the keys are away: later
  }
  if (!found) return 503; // the key is not here yet, or was lost: later
  if (!found.jwk) return done(headers, null); // destroyed: handled without its data
  let plaintext;
  try {
    const key = await importJWK(found.jwk, "dir");
    const decrypt = typeof token === "string" ? compactDecrypt : flattenedDecrypt;
    ({ plaintext } = await decrypt(token, key, ALLOWED));
  } catch {
    return 422; // changed on its way: never right
  }
  return done(headers, JSON.parse(Buffer.from(plaintext).toString()));
}

/** Here the event has its effect, with its data or, of somebody who is forgotten, without. */
function done(headers, data) {
  console.log(JSON.stringify({ id: headers["webhook-id"], person: headers["aggregate-id"], data }));
  return 204;
}

createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const status = await answerTo(Buffer.concat(chunks).toString(), request.headers);
  response.writeHead(status).end(); // an answer with words would be kept
}).listen(Number(process.argv[2]), "127.0.0.1");
