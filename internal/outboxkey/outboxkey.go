// Package outboxkey has the metadata keys of an outbox's messages, which the packages outbox and ordering agree on.
package outboxkey

const (
	Partition = "partition_key"   // the entity
	Sequence  = "outbox_sequence" // the offset, in decimal
)
