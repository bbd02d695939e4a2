package journal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/watermill-once/watermill-once/internal/attempt"
)

// ending is what becomes of a started row.
type ending struct {
	state string
	json  []byte
	text  string // an error's; "": as it is, but for a Failed
	with  []attempt.Statement
}

// endSQL fails with division_by_zero where the row is not the owner's any more, so that nothing that is sent with it is written.
const endSQL = `with ended as (
  update @table
  set state = $4::text,
      outcome = $5::text::json,
      last_error = coalesce($6::text, last_error),
      lease_until = null,
      updated_at = clock_timestamp()
  where consumer = $1::text
    and key = $2::text
    and token = $3::bigint
    and state = 'started'
  returning key
)
select 1 / count(*) from ended`

const divisionByZero = "22012"

// end ends what the owner has started, and tries again for so long where the database is away. The caller's context does not cut it
// short. ErrLeaseLost: the row is somebody else's.
func (j *Journal) end(ctx context.Context, o owner, e ending, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		_, err := j.use(ctx, func(conn *pgxpool.Conn) error {
			ctx, cancel := context.WithTimeout(ctx, patience/4) // one connection may be dead without a word
			defer cancel()
			return j.sendEnd(ctx, conn, o, e)
		})
		switch {
		case err == nil:
			return nil
		case sqlState(err) == divisionByZero:
			return j.stored(ctx, o, e, err)
		case !passing(err) || !sleep(ctx, pause):
			return err
		}
	}
}

func (j *Journal) sendEnd(ctx context.Context, conn *pgxpool.Conn, o owner, e ending) error {
	var outcome, text *string
	if e.json != nil {
		s := validUTF8(conn.Conn(), e.json)
		outcome = &s
	}
	if e.text != "" || e.state == Failed {
		s := clean(conn.Conn(), e.text)
		text = &s
	}
	var batch pgx.Batch // one transaction, implicitly
	batch.Queue(j.sql.end, o.Consumer, o.Key, o.token, e.state, outcome, text)
	for _, s := range e.with {
		batch.Queue(s.SQL, s.Args...)
	}
	return conn.SendBatch(ctx, &batch).Close()
}

const whoseSQL = `select state
from @table
where consumer = $1::text
  and key = $2::text
  and token = $3::bigint`

// stored tells, after an end that met no started row of the owner's, whether an earlier try had done it: its answer was lost. Where the
// row is started still, the division by zero was somebody else's, in a trigger of theirs.
func (j *Journal) stored(ctx context.Context, o owner, e ending, division error) error {
	var state string
	err := j.pool.QueryRow(ctx, j.sql.whose, o.Consumer, o.Key, o.token).Scan(&state)
	switch {
	case err == nil && state == e.state:
		return nil
	case err == nil && state == Started:
		return division
	case err == nil, errors.Is(err, pgx.ErrNoRows):
		return ErrLeaseLost
	default:
		return err
	}
}

// failure is the ending for work that returned an error. The error's methods are the caller's code, which may panic too.
func (j *Journal) failure(back string, err error) ending {
	e := ending{state: Unknown, text: err.Error()}
	switch {
	case !notDone(err):
	case j.config.OnUnknown == Ask: // which has found nothing of earlier calls
		e.state = Free
	default:
		e.state = back
	}
	return e
}

// failed ends the row of work that returned an error, and gives the error for the caller.
func (j *Journal) failed(ctx context.Context, o owner, l *lease, e ending, err error) error {
	patience := j.brief()
	if e.state != Unknown {
		patience = l.left() // worth the time: else it turns unknown
	}
	if ended := j.end(ctx, o, e, patience); errors.Is(ended, ErrLeaseLost) || l.lost() {
		return fmt.Errorf("%w: %w", ErrLeaseLost, err)
	}
	return err
}

// lost gives the error for a caller whose outcome could not be stored.
func (j *Journal) lost(ctx context.Context, o owner, err error) error {
	if errors.Is(err, ErrLeaseLost) {
		return err
	}
	if !passing(err) {
		_ = j.end(ctx, o, ending{state: Unknown, text: "the outcome could not be stored: " + err.Error()}, j.brief())
	}
	return fmt.Errorf("%w: %w", ErrOutcomeLost, trouble(err))
}

// maxText is how much of an error's text is kept, in bytes.
const maxText = 4 << 10

// validUTF8 is JSON that PostgreSQL takes: a json.RawMessage may hold anything in its strings.
func validUTF8(conn *pgx.Conn, json []byte) string {
	return letters(conn, strings.ToValidUTF8(string(json), "\uFFFD"))
}

// clean makes a text that PostgreSQL takes.
func clean(conn *pgx.Conn, text string) string {
	if len(text) > maxText {
		cut := maxText
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut]
	}
	return letters(conn, strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD"))
}

// letters escapes those that are not ASCII where the database's encoding may lack them. JSON stays the same JSON.
func letters(conn *pgx.Conn, text string) string {
	if encoding := conn.PgConn().ParameterStatus("server_encoding"); encoding == "UTF8" || encoding == "" {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case r < utf8.RuneSelf:
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
