package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// statementTimeout bounds a statement of the relay: a dead network would else be noticed after many minutes only.
const statementTimeout = time.Minute

// session is the relay's own connection. Its locks are the session's: while its statements succeed they are held, and
// when it is lost they are free for other relays.
type session struct {
	conn        *pgx.Conn
	pid         uint32
	table       string
	ascii       bool // the database's encoding lacks letters
	rowSecurity bool // holds for the relay's role

	oid      uint32 // of the table
	sequence uint32 // of its offsets; 0: none is known
	locks    shardLocks
	sql      relaySQL

	passUntil time.Time // rows that are locked are passed over
}

// openSession takes a connection out of the pool, made with all the pool's hooks.
func openSession(ctx context.Context, pool *pgxpool.Pool, config RelayConfig) (*session, error) {
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("outbox: relay: connect: %w", err)
	}
	s := &session{conn: pooled.Hijack(), table: tableOf(config.Topic)}
	if err := s.prepare(ctx, pool, config); err != nil {
		s.close(ctx)
		return nil, err
	}
	return s, nil
}

func (s *session) prepare(ctx context.Context, pool *pgxpool.Pool, config RelayConfig) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if err := s.requireOwnBackend(ctx, pool); err != nil {
		return err
	}
	if _, err := s.conn.Exec(ctx, settings, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("outbox: relay: set up session: %w", err)
	}
	var (
		sequence *string
		idFirst  bool
	)
	err := s.conn.QueryRow(ctx, lookUp, s.table).Scan(&s.oid, &s.sequence, &sequence, &idFirst)
	var missing *pgconn.PgError
	switch {
	case errors.As(err, &missing) && missing.Code == "42P01":
		return fmt.Errorf("outbox: relay: no table yet, which Schema makes: %w", err)
	case err != nil:
		return fmt.Errorf("outbox: relay: look up table: %w", err)
	}
	encoding := s.conn.PgConn().ParameterStatus("server_encoding")
	s.ascii = encoding != "UTF8" && encoding != ""
	if sequence != nil {
		if !idFirst {
			return fmt.Errorf("%w: in %s the column transaction_id stands behind \"offset\", so that a row draws its offset before its "+
				"transaction has an id: have Schema make the table", ErrSequence, s.table)
		}
		if err := s.requireCommonSequence(ctx, *sequence); err != nil {
			return err
		}
	}
	if err := s.requireRights(ctx, config); err != nil {
		return err
	}
	s.locks = newShardLocks(config.Topic, s.oid, config.Shards)
	s.sql = newRelaySQL(s.table, sequence, config)
	return nil
}

// lookUp finds the sequence that the offset's default depends on, or that of an identity. Where the default names one in a text, or is a
// function, none is known.
const lookUp = `select t.oid::bigint, coalesce(s.oid::bigint, 0),
    case when s.oid is not null then format('%I.%I', n.nspname, s.relname) end, coalesce((
    select min(attnum) filter (where attname = 'transaction_id') < min(attnum) filter (where attname = 'offset')
    from pg_attribute
    where attrelid = t.oid
), false)
from (select $1::text::regclass) as t (oid)
left join pg_class as s on s.oid = ` + sequenceOf + `
left join pg_namespace as n on n.oid = s.relnamespace`

const sequenceOf = `(
    select d.objid
    from pg_attribute as a
    join pg_depend as d on d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass
        and d.refobjid = a.attrelid and d.refobjsubid = a.attnum and d.deptype = 'i'
    where a.attrelid = t.oid and a.attname = 'offset' and a.attidentity <> ''
    union all
    select d.refobjid
    from pg_attribute as a
    join pg_attrdef as def on def.adrelid = a.attrelid and def.adnum = a.attnum
    join pg_depend as d on d.classid = 'pg_attrdef'::regclass and d.objid = def.oid and d.refclassid = 'pg_class'::regclass
    join pg_class as c on c.oid = d.refobjid and c.relkind = 'S'
    where a.attrelid = t.oid and a.attname = 'offset'
    limit 1
)`

// requireSameSequence ends the session where the offsets come from elsewhere now.
func (s *session) requireSameSequence(ctx context.Context) error {
	var sequence uint32
	err := s.conn.QueryRow(ctx, "select coalesce("+sequenceOf+"::bigint, 0) from (select $1::bigint::oid) as t (oid)", int64(s.oid)).Scan(&sequence)
	switch {
	case err != nil:
		return fmt.Errorf("outbox: relay: look up sequence: %w", err)
	case sequence != s.sequence:
		return fmt.Errorf("outbox: relay: %w", errReplaced)
	}
	return nil
}

// requireRights looks whether the relay will be able to write down what becomes of a message. If not it must send none: it
// would send it again and again. Whether row security lets it, only its policies know.
func (s *session) requireRights(ctx context.Context, config RelayConfig) error {
	written := []string{"attempts", "last_error", "next_attempt_at", "parked_at"}
	read := slices.Concat([]string{"offset", "topic", "key", "uuid", "payload", "metadata", "sent_at"}, written)
	if config.KeepSent {
		written = append(written, "sent_at")
	}
	var may, readOnly bool
	err := s.conn.QueryRow(ctx, `select ($2 or has_table_privilege($1::bigint::oid, 'delete'))
    and (select bool_and(has_column_privilege($1::bigint::oid, name, 'select')) from unnest($3::text[]) as name)
    and (select bool_and(has_column_privilege($1::bigint::oid, name, 'update')) from unnest($4::text[]) as name),
    current_setting('transaction_read_only')::boolean,
    row_security_active($1::bigint::oid)`,
		int64(s.oid), config.KeepSent, read, written).Scan(&may, &readOnly, &s.rowSecurity)
	switch {
	case err != nil:
		return fmt.Errorf("outbox: relay: look up rights: %w", err)
	case readOnly:
		return errors.New("outbox: relay: nothing is sent: the database is read-only")
	case !may && config.KeepSent:
		return fmt.Errorf("outbox: relay: nothing is sent: grant select, update on %s to the relay's role", s.table)
	case !may:
		return fmt.Errorf("outbox: relay: nothing is sent: grant select, update, delete on %s to the relay's role", s.table)
	}
	return nil
}

// ErrSequence is returned by Run where the offsets that the table's sequence gives out do not grow for all sessions
// alike: with a cache, or a negative increment; and where a transaction draws one before it has an id, as in a table that
// was made by hand with the columns in another order. Messages would be passed over.
var ErrSequence = errors.New("outbox: relay needs offsets that grow")

func (s *session) requireCommonSequence(ctx context.Context, sequence string) error {
	var cache, increment int64
	err := s.conn.QueryRow(ctx, `select seqcache, seqincrement from pg_sequence where seqrelid = $1::regclass`, sequence).Scan(&cache, &increment)
	switch {
	case err != nil:
		return fmt.Errorf("outbox: relay: look up sequence: %w", err)
	case cache != 1 || increment < 1:
		return fmt.Errorf("%w: the sequence %s has cache %d and increment %d: alter sequence %[2]s increment 1 cache 1, "+
			"then have all that write to the outbox reconnect", ErrSequence, sequence, cache, increment)
	}
	return nil
}

// settings of the session. The first make the server end the session of a relay that is frozen or whose host is gone, so
// that its locks are free within seconds; older servers lack idle_session_timeout and notice lost hosts only. The others
// keep the planner to the indexes: it knows nothing of what is in the table now. A sort would read the whole backlog for
// each page; and where statistics say that next to nothing is left, a join would walk over all that was ever sent.
const settings = `select set_config(name, value, false)
from (values
    ('idle_session_timeout', '10s'),
    ('tcp_keepalives_idle', '5'),
    ('tcp_keepalives_interval', '2'),
    ('tcp_keepalives_count', '3'),
    ('tcp_user_timeout', '10s'),
    ('default_transaction_isolation', 'read committed'),
    ('enable_seqscan', 'off'),
    ('enable_bitmapscan', 'off'),
    ('enable_sort', 'off'),
    ('enable_nestloop', 'off'),
    ('jit', 'off')
) as wanted (name, value)
where name in (select name from pg_settings)`

// A relay may trust in its locks for trustFor after it has sent a statement that succeeded, which is less than the
// server's patience with a silent session. It says something every beat.
const (
	trustFor = 7 * time.Second
	beat     = time.Second
)

// close gives the locks back before it hangs up: the server may take its time to notice that.
func (s *session) close(ctx context.Context) {
	ctx, cancel := lastWords(ctx)
	defer cancel()
	if !s.conn.IsClosed() {
		_, _ = s.conn.Exec(ctx, "select pg_advisory_unlock_all()", pgx.QueryExecModeSimpleProtocol)
	}
	_ = s.conn.Close(ctx)
}

// lastWords gives the time for a statement after all time is up.
func lastWords(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), lastWordsTime)
}

const lastWordsTime = 5 * time.Second

// ErrPooled is matched by the error of Run where its connections do not stay with one backend of the server, as behind
// PgBouncer in transaction or statement mode. The relay's locks would be the backend's, which serves others too: give it
// a pool that connects directly, or in session mode.
var ErrPooled = errors.New("outbox: relay needs sessions of its own: the connection goes through a pooler in transaction or " +
	"statement mode, where locks and LISTEN do not hold; connect directly or in session mode")

// requireOwnBackend looks whether the session's backend changes, and whether another connection can get it in between.
func (s *session) requireOwnBackend(ctx context.Context, pool *pgxpool.Pool) error {
	pid, err := backendOf(ctx, s.conn)
	if err != nil {
		return err
	}
	s.pid = pid
	if pid == s.conn.PgConn().PID() {
		return nil // the server itself said so in the beginning; a pooler makes that number up
	}
	other, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("outbox: relay: connect: %w", err)
	}
	defer other.Release()
	for round := range 8 {
		if err := s.competeForBackend(ctx, other.Conn()); err != nil {
			if refusesTransactions(ctx, pool, err) {
				return fmt.Errorf("%w: %w", ErrPooled, err)
			}
			return err
		}
		// A pooler that gives its backends out in turn must not come round to the same ones each time.
		for range round % 3 {
			if err := s.requireSameBackend(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// competeForBackend has another connection keep the backend that it gets. A pooler in transaction mode gives it the one
// that this session had last, or leaves this session another one.
func (s *session) competeForBackend(ctx context.Context, other *pgx.Conn) (err error) {
	if _, err := other.Exec(ctx, "begin", pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("outbox: relay: look for a pooler: %w", err)
	}
	defer func() {
		_, ended := other.Exec(ctx, "rollback", pgx.QueryExecModeSimpleProtocol)
		err = errors.Join(err, ended)
	}()
	kept, err := backendOf(ctx, other)
	if err != nil {
		return err
	}
	if kept == s.pid {
		return ErrPooled
	}
	return s.requireSameBackend(ctx)
}

// refusesTransactions tells whether a pooler is in statement mode, which ends a connection that begins a transaction. It
// says so by the SQLSTATE that PgBouncer has for nearly all that it refuses, so it must refuse this one thing, again and
// again, on connections that have just been served a statement.
func refusesTransactions(ctx context.Context, pool *pgxpool.Pool, err error) bool {
	for range 2 {
		if !violatesProtocol(err) {
			return false
		}
		conn, opened := pool.Acquire(ctx)
		if opened != nil {
			return false
		}
		_, served := backendOf(ctx, conn.Conn())
		_, err = conn.Exec(ctx, "begin", pgx.QueryExecModeSimpleProtocol)
		conn.Release() // the pool closes it where a transaction is open
		if served != nil {
			return false
		}
	}
	return violatesProtocol(err)
}

func violatesProtocol(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "08P01"
}

func (s *session) requireSameBackend(ctx context.Context) error {
	pid, err := backendOf(ctx, s.conn)
	if err == nil && pid != s.pid {
		err = ErrPooled
	}
	return err
}

func backendOf(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	if err := conn.QueryRow(ctx, "select pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid); err != nil {
		return 0, fmt.Errorf("outbox: relay: look for a pooler: %w", err)
	}
	return pid, nil
}

// ErrShards is matched by the error of Run where a relay with another number of shards is at work on the same outbox.
var ErrShards = errors.New("outbox: relays of one outbox must have the same number of shards")

// enter makes the relay one of those that share the outbox; not while a stock subscriber is in the middle of a batch.
func (s *session) enter(ctx context.Context, topic string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	var mine bool
	if err := s.conn.QueryRow(ctx, "select pg_try_advisory_lock_shared($1)", readerLock(topic)^int64(s.oid)).Scan(&mine); err != nil {
		return false, fmt.Errorf("outbox: relay: lock: %w", err)
	}
	if !mine {
		return false, nil
	}
	// One at a time: of two with different numbers, one is first.
	if _, err := s.conn.Exec(ctx, "select pg_advisory_lock($1)", s.locks.door); err != nil {
		return false, fmt.Errorf("outbox: relay: lock: %w", err)
	}
	r, err := s.roster(ctx)
	if err != nil {
		return false, err
	}
	if len(r.counts) > 0 {
		return false, fmt.Errorf("%w: this one has %d, one at work has %d", ErrShards, s.locks.count, r.counts[0])
	}
	_, err = s.conn.Exec(ctx, "select pg_advisory_lock_shared($1), pg_advisory_unlock($2)",
		s.locks.member|int64(s.locks.count), s.locks.door)
	if err != nil {
		return false, fmt.Errorf("outbox: relay: lock: %w", err)
	}
	return true, nil
}

const selectLocks = `select pid, classid::bigint << 32 | objid::bigint
from pg_locks
where locktype = 'advisory'
  and objsubid = 1
  and granted
  and database = (select oid from pg_database where datname = current_database())
  and classid::bigint in ($1, $2)`

// roster looks who is there.
func (s *session) roster(ctx context.Context) (roster, error) {
	rows, err := s.conn.Query(ctx, selectLocks, s.locks.member>>32, s.locks.shard>>32)
	if err != nil {
		return roster{}, fmt.Errorf("outbox: relay: look for other relays: %w", err)
	}
	locks, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h held, err error) {
		err = row.Scan(&h.pid, &h.id)
		return h, err
	})
	if err != nil {
		return roster{}, fmt.Errorf("outbox: relay: look for other relays: %w", err)
	}
	return s.locks.roster(locks), nil
}

// balance gives back the shards in leave, and takes free ones as far as this relay's share goes. It gives the shards
// taken, and how many are held beyond the share.
func (s *session) balance(ctx context.Context, holding int, leave []int) (taken []int, beyond int, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if len(leave) > 0 {
		ids := make([]int64, len(leave))
		for i, shard := range leave {
			ids[i] = s.locks.shard | int64(shard)
		}
		if _, err := s.conn.Exec(ctx, "select pg_advisory_unlock(id) from unnest($1::bigint[]) as id", ids); err != nil {
			return nil, 0, fmt.Errorf("outbox: relay: unlock: %w", err)
		}
	}
	r, err := s.roster(ctx)
	if err != nil {
		return nil, 0, err
	}
	if !slices.Contains(r.members, s.pid) {
		return nil, 0, ErrPooled // the lock was taken by another backend
	}
	if err := s.requireSameSequence(ctx); err != nil {
		return nil, 0, err
	}
	quota := r.quota(s.pid, s.locks.count)
	var wanted []int64
	for _, shard := range r.free(s.pid, s.locks.count) {
		if holding+len(wanted) < quota {
			wanted = append(wanted, s.locks.shard|int64(shard))
		}
	}
	if len(wanted) > 0 {
		rows, err := s.conn.Query(ctx, "select id & 65535 from unnest($1::bigint[]) as id where pg_try_advisory_lock(id)", wanted)
		if err == nil {
			taken, err = pgx.CollectRows(rows, pgx.RowTo[int])
		}
		if err != nil {
			return nil, 0, fmt.Errorf("outbox: relay: lock: %w", err)
		}
	}
	return taken, max(0, holding-quota), nil
}

// shardOf gives a row's shard, by PostgreSQL's hash: all relays of a table ask the same server.
func shardOf(count int) string {
	return fmt.Sprintf("((hashtextextended(key, 0) & 9223372036854775807) %% %d)::integer", count)
}

// lines joins clauses, leaving out empty ones.
func lines(clauses ...string) string {
	kept := clauses[:0]
	for _, clause := range clauses {
		if clause != "" {
			kept = append(kept, clause)
		}
	}
	return strings.Join(kept, "\n")
}
