"""DATABASE_URL=postgres://app@db.example/shop python3 producer.py ORDER CENTS"""
import os
import sys
import uuid

import psycopg  # pip install 'psycopg[binary]'
from psycopg.types.json import Jsonb


def place_order(connection, order_id, total_cents):
    """Stores an order and announces it: both happen, or neither does."""
    event_id = uuid.uuid4()
    with connection.transaction():
        connection.execute(
            "INSERT INTO orders (id, state, total_cents) VALUES (%s, 'placed', %s)",
            (order_id, total_cents),
        )
        connection.execute(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)"
            " VALUES (%s, 'order', %s, 'OrderPlaced', %s)",
            (event_id, order_id, Jsonb({"total_cents": total_cents})),
        )
    return event_id


with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
    print(place_order(connection, sys.argv[1], int(sys.argv[2])))
