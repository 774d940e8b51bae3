// DATABASE_URL=postgres://app@db.example/shop go run producer.go ORDER CENTS
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"

	"github.com/jackc/pgx/v4"
)

// placeOrder stores an order and announces it: both happen, or neither does.
func placeOrder(ctx context.Context, db *pgx.Conn, orderID string, totalCents int64) (string, error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return "", err
	}
	defer tx.Rollback(ctx) // does nothing after Commit
	_, err = tx.Exec(ctx,
		"INSERT INTO orders (id, state, total_cents) VALUES ($1, 'placed', $2)",
		orderID, totalCents)
	if err != nil {
		return "", err
	}
	var eventID string
	err = tx.QueryRow(ctx,
		`INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
		 VALUES (gen_random_uuid(), 'order', $1, 'OrderPlaced', $2) RETURNING id::text`,
		orderID, map[string]any{"total_cents": totalCents}).Scan(&eventID)
	if err != nil {
		return "", err
	}
	return eventID, tx.Commit(ctx)
}

func main() {
	ctx := context.Background()
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close(ctx)
	totalCents, err := strconv.ParseInt(os.Args[2], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	eventID, err := placeOrder(ctx, db, os.Args[1], totalCents)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(eventID)
}
