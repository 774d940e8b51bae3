// DATABASE_URL=postgres://app@db.example/shop node producer.js ORDER CENTS
import { randomUUID } from "node:crypto";
import { Client } from "pg"; // npm install pg @types/pg

/** Stores an order and announces it: both happen, or neither does. */
async function placeOrder(client: Client, orderId: string, totalCents: number): Promise<string> {
  const eventId = randomUUID();
  await client.query("BEGIN");
  try {
    await client.query("INSERT INTO orders (id, state, total_cents) VALUES ($1, 'placed', $2)", [
      orderId,
      totalCents,
    ]);
    await client.query(
      `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
       VALUES ($1, 'order', $2, 'OrderPlaced', $3)`,
      [eventId, orderId, { total_cents: totalCents }],
    );
    await client.query("COMMIT");
  } catch (error) {
    await client.query("ROLLBACK");
    throw error;
  }
  return eventId;
}

async function main(): Promise<void> {
  const [orderId, totalCents] = process.argv.slice(2);
  const client = new Client({ connectionString: process.env.DATABASE_URL });
  await client.connect();
  try {
    console.log(await placeOrder(client, orderId, Number(totalCents)));
  } finally {
    await client.end();
  }
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
