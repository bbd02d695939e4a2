// Package ordering keeps an old event from overwriting what a newer one has written: an event is applied only if its
// position is beyond that of the last event applied to the same entity.
//
//	once.Config{
//		Dedupe:   dedupe.Config{Key: dedupe.JSONField("id")},
//		Ordering: ordering.Config{Position: ordering.JSONFields("data.object.id", "data.object.version")},
//	}
//
// or by hand, in any transaction of one's own, after the event has been claimed:
//
//	versions := ordering.Config{Position: ordering.JSONFields("data.object.id", "data.object.version")}
//	position, err := versions.PositionOf(msg)
//	if err != nil {
//		return err // errors.Is(err, ordering.ErrInvalidPosition): retrying will not help
//	}
//	applies, err := versions.Guard(ctx, tx, "cards", position, eventID)
//	if err != nil || !applies {
//		return err // stale: commit the claim, leave the rest
//	}
//	// the work, in tx
//
// # Where it sits
//
// Second in the transaction, after the claim: duplicate, then stale, then apply. The guard is one row of the table
// watermill_entity_versions for each consumer and entity, compared and set by one statement. That statement holds the
// row's lock until the transaction ends, whether the event applies or not. So two events of one entity never work at
// once, and what the second is compared with is what the first has committed.
//
// # Which position
//
// Best is a number that the producer counts up within the entity: a version, a sequence. Of equal numbers the later
// arrival is stale, for it is the same change once more.
//
// Second best is the time of the change, as RFC 3339 text or as a Unix time (PositionFunc.WithUnixTime). Two changes may
// bear the same time, and where it is in whole seconds they often do. Which of them came first is then unknown, and
// something has to be chosen:
//
//   - By default the later arrival is applied if it is another event. No change is lost, and where the broker keeps the
//     order the result is right. What it costs: of two that arrive in the wrong order the older wins; and when the older
//     one comes once more after its claim has been deleted, it is applied once more.
//   - With PositionFunc.WithTieBreak the greater tie-break is applied, compared bytewise, whatever the order of arrival. That
//     is right where the tie-break tells the order: a sequence number of fixed width, a ULID or UUIDv7 from one process.
//     What it costs where it is random: all consumers agree, but on the older event half of the time.
//   - With a PositionFunc of one's own that leaves Position.Clock false, times are treated as numbers and the later arrival
//     is stale. What it costs: the second of two changes within one tick of the clock, for good.
//
// # What it does not do
//
// It does not wait for events that are missing: what arrives is applied, and what it has overtaken is dropped. So an
// event has to carry the entity's state and not a change to it; amounts that add up need every event, and no guard.
//
// It does not tell a number from a time in the table. An entity whose producer changes from times to numbers stays stale
// until its rows are deleted, since a time in microseconds is far beyond any version; from numbers to times needs nothing.
package ordering
