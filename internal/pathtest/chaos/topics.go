package main

import (
	"github.com/watermill-once/watermill-once/ordering"
)

// The topics, each with a prefix that is the run's own where the broker is shared.
const (
	topicEvents = "events"
	topicOut    = "out"
	topicPoison = "poison"
)

// producer is who makes events, as if a consumer of nothing.
const producer = "producer"

// consumers are the services under test. Each is a consumer group of two processes, one of which uses pgx and the other one
// database/sql.
var consumers = []consumer{
	{Name: "totals", Topic: topicEvents, Complete: true, Produces: true},
	{Name: "state", Topic: topicEvents, Ordered: true, Produces: true},
	{Name: "downstream", Topic: topicOut, Ordered: true, Complete: true},
}

// position tells a consumer where an event belongs. Downstream there are no versions but the outbox's own.
func (c consumer) position() ordering.PositionFunc {
	if c.Topic == topicOut {
		return ordering.OutboxSequence
	}
	return ordering.JSONFields("entity", "version")
}

// tables are the business tables. Nothing in them keeps an event from having two effects: that is for the product to do.
const tables = `
create table accounts (
  entity  text primary key,
  version bigint not null
);
create table effects (
  consumer text not null,
  event_id text not null,
  entity   text not null,
  version  bigint not null,
  n        bigint not null, -- counts a consumer's effects on an entity, in the order of their commits
  uuid     text not null,   -- of the message that leaves with it
  maker    text not null    -- the process
);
create index on effects (maker) where consumer = 'producer';
create table counters (
  consumer text,
  entity   text,
  n        bigint not null,
  primary key (consumer, entity)
);`

// apply is the business transaction of producers and consumers alike. The counter stays locked until COMMIT.
const apply = `
with counted as (
  insert into counters as c (consumer, entity, n)
  values ($1, $3, 1)
  on conflict (consumer, entity) do update
  set n = c.n + 1
  returning n
)
insert into effects (consumer, event_id, entity, version, n, uuid, maker)
select $1, $2, $3, $4, n, $5, $6
from counted`
