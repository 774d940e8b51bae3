"""Writes an encrypted event: DATABASE_URL=… KEYS_URL=… python3 producer.py PERSON EMAIL

Needs the packages of requirements.txt: jwcrypto and psycopg 3.
"""

import json
import os
import sys
import uuid

import psycopg
from jwcrypto.jwe import JWE
from jwcrypto.jwk import JWK
from psycopg.types.json import Jsonb


def key_of(keys, person):
    """The person's key, which is committed before an event needs it."""
    new = JWK.generate(kty="oct", size=256, kid=str(uuid.uuid4()))
    keys.execute(
        "INSERT INTO person_keys (person, kid, jwk) VALUES (%s, %s, %s)"
        " ON CONFLICT (person) DO NOTHING",
        (person, new["kid"], Jsonb(new.export(as_dict=True))),
    )
    [jwk] = keys.execute("SELECT jwk FROM person_keys WHERE person = %s", (person,)).fetchone()
    if jwk is None:
        sys.exit(f"{person} is forgotten")
    return JWK(**jwk)


def encrypt(key, data):
    header = {"alg": "dir", "enc": "A256GCM", "kid": key["kid"]}
    token = JWE(json.dumps(data).encode(), json.dumps(header), recipient=key)
    return token.serialize(compact=True)


def register(connection, key, person, email):
    event_id = uuid.uuid4()
    with connection.transaction():
        # Here the customer is inserted.
        connection.execute(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers)"
            " VALUES (%s, 'customer', %s, 'CustomerRegistered', %s, %s)",
            (event_id, person, encrypt(key, {"email": email}), Jsonb({"Content-Type": "application/jose"})),
        )
    return event_id


if __name__ == "__main__":
    person, email = sys.argv[1:]
    with psycopg.connect(os.environ["KEYS_URL"], autocommit=True) as keys:
        key = key_of(keys, person)
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        print(register(connection, key, person, email))
