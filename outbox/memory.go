package outbox

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// Memory is bounded by the number of messages and by the bytes of their payloads. What the broker has comes on top:
// Concurrency messages, or a batch.
const (
	memoryBytes = 64 << 20
	pageBytes   = 8 << 20
	retryBytes  = memoryBytes / 4 // of messages to be tried again
)

// firstPage is the first page's size, when nothing is known of the rows.
const firstPage = 32

func (d *delivery) pageSize() int { return max(1, d.relay.config.BatchSize/2) }

// full tells whether no more is to be read.
func (d *delivery) full() bool {
	return d.lanes.waiting > d.relay.config.BatchSize/2 || d.lanes.bytes >= memoryBytes
}

// fit is how many rows have room in so many bytes.
func fit(bytes, mean int) int { return max(1, bytes/max(1, mean)) }

// retryFit is how many messages that are to be tried again have room.
func (d *delivery) retryFit() int {
	room, mean := d.retryRoom(), max(d.mean, d.retryMean)
	switch {
	case room <= 0:
		return 0
	case mean == 0:
		return firstPage
	}
	return fit(room, mean)
}

func (d *delivery) retryRoom() int {
	room := retryBytes
	for _, lane := range d.lanes.retry {
		room -= len(lane.queue[0].payload)
	}
	return room
}

// learnSize has pages grow while they bring all that was asked for. Rows that had to be left out have travelled in vain.
func (d *delivery) learnSize(t *trip) {
	if len(t.rows) > 0 {
		d.mean = meanSize(t.rows)
	}
	switch {
	case t.cut:
		d.limit = len(t.rows)
	case t.full():
		d.limit = min(2*d.limit, d.pageSize())
	}
}

// suspectSize is for a trip that has run out of time: on a slow line its rows may have been too large. What it asked for is taken
// to be four times what has room, until the next one tells.
func (d *delivery) suspectSize(t *trip) {
	if t.fetch {
		d.mean = pageBytes / max(1, t.limit/4)
	}
	if len(t.due) > 0 {
		d.retryMean = retryBytes / max(1, len(t.due)/4)
	}
}

// outOfTime tells whether a statement has taken too long, for the relay or for PostgreSQL's statement_timeout.
func outOfTime(err error) bool {
	var canceled *pgconn.PgError
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &canceled) && canceled.Code == "57014"
}

func meanSize(rows []*pending) int {
	size := 0
	for _, row := range rows {
		size += len(row.payload)
	}
	return size / len(rows)
}

// laneLength is what all lanes with the broker may have in memory when it is scarce.
func (d *delivery) laneLength() int {
	config := d.relay.config
	length := config.BatchSize / 2 / config.Concurrency
	if d.lanes.bytes > 0 {
		mean := max(1, d.lanes.bytes/d.lanes.waiting)
		length = min(length, laneBytes(config)/mean)
	}
	return max(1, length)
}

func laneBytes(config RelayConfig) int { return max(1, memoryBytes/2/config.Concurrency) }
