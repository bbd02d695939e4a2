package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// warmUp waits until an event has gone all the way: the faults are to meet a system that works.
func (w *world) warmUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		var working int
		err := w.database.pool.QueryRow(ctx, "select count(distinct consumer) from effects").Scan(&working)
		if err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
		if working == 1+len(consumers) {
			return nil
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// settle waits until nothing happens any more, and tells what does not come to rest.
func (w *world) settle(ctx context.Context, patience time.Duration) (stuck []string, err error) {
	deadline, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for quiet := 0; quiet < 3; {
		quiet++
		if stuck, err = w.moving(deadline); err != nil || len(stuck) > 0 {
			quiet = 0
		}
		if !pause(deadline, 200*time.Millisecond) {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if len(stuck) == 0 {
				stuck = []string{fmt.Sprint("nobody knows: ", err)}
			}
			return stuck, nil
		}
	}
	return nil, nil
}

// moving tells what is not done.
func (w *world) moving(ctx context.Context) (moving []string, err error) {
	var made, waiting, parked int
	err = w.database.pool.QueryRow(ctx, `
select (select count(*) from effects where consumer = 'producer'), count(*), count(parked_at)
from watermill_outbox`).Scan(&made, &waiting, &parked)
	if err != nil {
		return nil, err
	}
	if made < w.settings.events {
		moving = append(moving, fmt.Sprintf("%d of %d events are made", made, w.settings.events))
	}
	if waiting > 0 {
		moving = append(moving, fmt.Sprintf("the outbox holds %d messages, %d of them parked", waiting, parked))
	}
	for _, c := range consumers {
		ends, err := w.broker.ends(ctx, c.Topic)
		if err != nil {
			return nil, err
		}
		at, err := w.broker.positions(ctx, c.Name, c.Topic)
		if err != nil {
			return nil, err
		}
		var lag int64
		for partition, end := range ends {
			lag += max(0, end-at[partition])
		}
		if lag > 0 {
			moving = append(moving, fmt.Sprintf("%s has %d records before it", c.Name, lag))
		}
	}
	return moving, nil
}

// collect takes the evidence.
func (w *world) collect(ctx context.Context, told map[string]map[string]string, stuck []string) (evidence, error) {
	e := evidence{Claimed: map[string]map[string]bool{}, Topics: map[string][]record{}, Told: told, Stuck: stuck}
	rows, err := w.database.pool.Query(ctx, "select consumer, event_id, entity, version, n, uuid from effects")
	if err != nil {
		return e, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[effect])
	if err != nil {
		return e, err
	}
	for _, done := range all {
		if done.Consumer == producer {
			e.Produced = append(e.Produced, done)
		} else {
			e.Effects = append(e.Effects, done)
		}
	}

	rows, err = w.database.pool.Query(ctx, "select consumer, event_id from watermill_processed_events")
	if err != nil {
		return e, err
	}
	var consumer, event string
	_, err = pgx.ForEachRow(rows, []any{&consumer, &event}, func() error {
		if e.Claimed[consumer] == nil {
			e.Claimed[consumer] = map[string]bool{}
		}
		e.Claimed[consumer][event] = true
		return nil
	})
	if err != nil {
		return e, err
	}

	for _, topic := range []string{topicEvents, topicOut} {
		records, err := w.broker.readAll(ctx, topic)
		if err != nil {
			return e, err
		}
		for _, r := range records {
			parsed, err := parseRecord(topic, r)
			if err != nil {
				return e, fmt.Errorf("a record of %s: %w", topic, err)
			}
			e.Topics[topic] = append(e.Topics[topic], parsed)
		}
	}
	records, err := w.broker.readAll(ctx, topicPoison)
	for _, r := range records {
		e.Poisoned = append(e.Poisoned, parsePoison(r))
	}
	return e, err
}
