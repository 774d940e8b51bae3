// Takes signed webhooks, as Standard Webhooks and as CloudEvents: node receiver.js PORT SECRET
//
// Needs the packages of package.json: standardwebhooks and cloudevents. SECRET is whsec_…, or whpk_…, the
// public part of the inbox's Ed25519 key. It is TypeScript too.

const { createPublicKey, verify } = require("node:crypto");
const { createServer } = require("node:http");
const { HTTP } = require("cloudevents");
const { Webhook } = require("standardwebhooks");

const [port, secret] = process.argv.slice(2);
const check = secret.startsWith("whpk_") ? checkPublic : checkShared;

function checkShared(body, headers) {
  new Webhook(secret).verify(body, headers, { jsonParse: false });
}

// The library knows shared secrets only.
function checkPublic(body, headers) {
  const raw = Buffer.from(secret.slice("whpk_".length), "base64");
  const der = Buffer.concat([Buffer.from("302a300506032b6570032100", "hex"), raw]);
  const key = createPublicKey({ key: der, format: "der", type: "spki" });
  const text = `${headers["webhook-id"]}.${headers["webhook-timestamp"]}.${body}`;
  const signatures = headers["webhook-signature"].split(" ").map((it) => it.split(","));
  const age = Math.abs(Date.now() / 1000 - Number(headers["webhook-timestamp"]));
  const isSigned = signatures.some(([version, signature]) =>
    version === "v1a" && verify(null, Buffer.from(text), key, Buffer.from(signature, "base64")));
  if (!isSigned || !(age < 300)) throw new Error("not signed");
}

function eventOf(body, headers) {
  const isStructured = headers["content-type"].startsWith("application/cloudevents+json");
  if (isStructured || headers["ce-id"]) {
    // The library leaves the binding's percent-encoding as it is.
    const decoded = Object.entries(headers).map(([name, value]) =>
      [name, name.startsWith("ce-") ? decodeURIComponent(value) : value]);
    return HTTP.toEvent({ headers: Object.fromEntries(decoded), body }).toJSON();
  }
  // {"type": …, "timestamp": …, "data": …}
  return { ...JSON.parse(body), id: headers["webhook-id"] };
}

function answerTo(body, headers) {
  try {
    check(body, headers);
  } catch {
    return 401;
  }
  try {
    const event = eventOf(body, headers);
    // Here the event has its effect, in one transaction with event.id, which is unique: answer 409 if
    // it is there.
    console.log(JSON.stringify({ ...event, consumer: headers["tailpost-consumer"] }));
    return 204;
  } catch {
    return 422;
  }
}

createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  response.writeHead(answerTo(Buffer.concat(chunks).toString(), request.headers)).end();
}).listen(Number(port), "127.0.0.1");
