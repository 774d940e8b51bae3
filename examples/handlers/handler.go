// A handler for `tailpost inbox run`: go run handler.go PORT [WHSEC_SECRET], with DATABASE_URL set
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v4/stdlib"
)

const ageMax = 300 // seconds; an older request was captured and sent again

type handler struct {
	db     *sql.DB
	secret []byte
}

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	w.WriteHeader(h.handle(r, body))
}

func (h handler) handle(r *http.Request, body []byte) int {
	key := r.Header.Get("webhook-id") // not Idempotency-Key, which nobody signs
	if key == "" || h.secret != nil && !h.signed(r, key, body) {
		return http.StatusUnauthorized // not ours to process, and not the event's fault
	}
	var order struct {
		TotalCents *int64 `json:"total_cents"`
	}
	if json.Unmarshal(body, &order) != nil || order.TotalCents == nil {
		return http.StatusUnprocessableEntity // will never be right
	}
	// Effect and key in one statement, and so in one transaction.
	done, err := h.db.ExecContext(r.Context(),
		"INSERT INTO totals VALUES ($1, $2) ON CONFLICT DO NOTHING", key, *order.TotalCents)
	if err != nil {
		log.Print(err)
		return http.StatusServiceUnavailable // the database is away: later
	}
	if rows, _ := done.RowsAffected(); rows == 0 {
		return http.StatusConflict // it had its effect before
	}
	return http.StatusNoContent
}

// signed says whether id, time and body are as they were signed, and not long ago.
func (h handler) signed(r *http.Request, key string, body []byte) bool {
	sent := r.Header.Get("webhook-timestamp")
	at, err := strconv.ParseInt(sent, 10, 64)
	if age := time.Now().Unix() - at; err != nil || age > ageMax || age < -ageMax {
		return false
	}
	mac := hmac.New(sha256.New, h.secret)
	mac.Write([]byte(key + "." + sent + "."))
	mac.Write(body)
	ours := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for _, theirs := range strings.Fields(r.Header.Get("webhook-signature")) {
		if hmac.Equal([]byte(ours), []byte(theirs)) {
			return true
		}
	}
	return false
}

func main() {
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	_, err = db.Exec("CREATE TABLE IF NOT EXISTS totals (event_id text PRIMARY KEY, cents bigint)")
	if err != nil {
		log.Fatal(err)
	}
	h := handler{db: db}
	if len(os.Args) > 2 {
		h.secret, err = base64.StdEncoding.DecodeString(strings.TrimPrefix(os.Args[2], "whsec_"))
		if err != nil {
			log.Fatal(err)
		}
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], h))
}
