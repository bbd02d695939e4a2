package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/outbox"
)

// difficult are messages that a driver or a protocol may get wrong.
func difficult(count int) []*message.Message {
	texts := []string{
		`plain`, `it's`, `"quoted"`, `back\slash`, `{braces,and commas}`, `NULL`, ` spaces `, "line\nbreak\ttab\r", `$1 ? @x :y`,
		`\x41`, `\u0041`, "\x01\x1f\x7f", `Zürich`, `日本`, "\U0001F600", `'; drop table watermill_outbox; --`, `\\"\\`,
	}
	payloads := [][]byte{
		[]byte(`{"a": 1}`), nil, {}, {0}, {0xff, 0xfe, 0, '\'', '\\'}, []byte(strings.Repeat("long ", 1000)), []byte(`\x41`),
	}
	msgs := make([]*message.Message, count)
	for i := range msgs {
		text := texts[i%len(texts)]
		msg := message.NewMessage(fmt.Sprintf("%s #%d %s", text, i, strings.Repeat("x", i%60)), payloads[i%len(payloads)])
		switch i % 3 {
		case 0:
			msg.Metadata.Set(outbox.PartitionKeyKey, text)
		case 1:
			msg.Metadata.Set(text, text)
			msg.Metadata.Set("empty", "")
		case 2:
			msg.Metadata = nil
		}
		msgs[i] = msg
	}
	return msgs
}

// writers are all ways to write in a transaction.
func writers(t *testing.T, url string) map[string]func(t *testing.T, p *outbox.Publisher, msgs []*message.Message) {
	viaSQL := func(db *sql.DB) func(*testing.T, *outbox.Publisher, []*message.Message) {
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		return func(t *testing.T, p *outbox.Publisher, msgs []*message.Message) {
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			require.NoError(t, p.PublishSQLTx(t.Context(), tx, "it's a {topic}", msgs...))
			require.NoError(t, tx.Commit())
		}
	}
	open := func(driver, url string) *sql.DB {
		db, err := sql.Open(driver, url)
		require.NoError(t, err)
		return db
	}
	all := map[string]func(*testing.T, *outbox.Publisher, []*message.Message){
		"lib/pq":        viaSQL(open("postgres", url)),
		"lib/pq binary": viaSQL(open("postgres", withParameter(url, "binary_parameters=yes"))),
	}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec,
		pgx.QueryExecModeSimpleProtocol,
	} {
		config, err := pgxpool.ParseConfig(url)
		require.NoError(t, err)
		config.ConnConfig.DefaultQueryExecMode = mode
		pool, err := pgxpool.NewWithConfig(context.Background(), config)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		all["pgx "+mode.String()] = func(t *testing.T, p *outbox.Publisher, msgs []*message.Message) {
			inTx(t, pool, func(tx pgx.Tx) { require.NoError(t, p.PublishTx(t.Context(), tx, "it's a {topic}", msgs...)) })
		}
		all["pgx batch "+mode.String()] = func(t *testing.T, p *outbox.Publisher, msgs []*message.Message) {
			handle(t, pool, nil, func(ctx context.Context) {
				require.NoError(t, p.PublishContext(ctx, "it's a {topic}", msgs...))
			})
		}
		all["stdlib "+mode.String()] = viaSQL(stdlib.OpenDB(*config.ConnConfig))
	}
	return all
}

func withParameter(url, parameter string) string {
	if strings.Contains(url, "?") {
		return url + "&" + parameter
	}
	return url + "?" + parameter
}

func TestEveryDriverWritesEveryMessage(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	reader, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(reader.Close)
	p := newPublisher(t, outbox.Config{})

	for name, write := range writers(t, url) {
		t.Run(name, func(t *testing.T) {
			for _, count := range []int{1, 2, 17, 1000} {
				rounds := 1
				if count < 1000 {
					rounds = 7 // after five, PostgreSQL plans for unknown parameters
				}
				for range rounds {
					msgs := difficult(count)
					write(t, p, msgs)
					rows := contents(t, reader, outbox.Config{})
					require.Len(t, rows, count)
					for i, row := range rows {
						want, _ := outbox.PartitionKey("", msgs[i])
						require.Equal(t, "it's a {topic}", row.Topic)
						require.Equal(t, want, row.Key)
						require.Equal(t, msgs[i].UUID, row.UUID)
						require.Equal(t, string(msgs[i].Payload), string(row.Payload))
						require.Equal(t, len(msgs[i].Metadata), len(decode(t, row.Metadata)))
						for key, value := range msgs[i].Metadata {
							require.Equal(t, value, decode(t, row.Metadata)[key])
						}
					}
					_, err := reader.Exec(t.Context(), `delete from watermill_outbox`)
					require.NoError(t, err)
				}
			}
		})
	}
}

func TestOneMessageWithoutOrderTakesNoLock(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	reader, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(reader.Close)
	p := newPublisher(t, outbox.Config{})
	for range 7 { // also when planned for an unknown parameter
		tx := begin(t, reader)
		require.NoError(t, p.PublishTx(t.Context(), tx, "topic", newMessage("", "")))
		require.Zero(t, locks(t, tx))
		require.NoError(t, p.PublishTx(t.Context(), tx, "topic", newMessage("", ""), newMessage("", "")))
		require.Zero(t, locks(t, tx))
		require.NoError(t, p.PublishTx(t.Context(), tx, "topic", newMessage("key", "")))
		require.Equal(t, 1, locks(t, tx))
		require.NoError(t, p.PublishTx(t.Context(), tx, "topic", newMessage("other", ""), newMessage("key", "")))
		require.Equal(t, 2, locks(t, tx))
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

// However many of the messages need a lock.
func TestSeveralMessagesTakeTheirLocks(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	p := newPublisher(t, outbox.Config{})
	for _, count := range []int{2, 3, 16, 17} {
		for keyed := range count + 1 {
			for range 7 { // also when planned for unknown parameters
				tx := begin(t, pool)
				var msgs []*message.Message
				for i := range count {
					key := ""
					if i < keyed {
						key = fmt.Sprint("key-", i) // of which none share a lock
					}
					msgs = append(msgs, newMessage(key, ""))
				}
				require.NoError(t, p.PublishTx(t.Context(), tx, "topic", msgs...))
				require.Equal(t, keyed, locks(t, tx), "%d of %d", keyed, count)
				require.NoError(t, tx.Rollback(t.Context()))
			}
		}
	}
}

// locks counts the advisory locks that tx holds.
func locks(t *testing.T, tx pgx.Tx) (held int) {
	t.Helper()
	err := tx.QueryRow(t.Context(), `select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()`).Scan(&held)
	require.NoError(t, err)
	return held
}
