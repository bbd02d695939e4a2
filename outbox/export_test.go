package outbox

// FetchSQL are the relay's queries for new messages.
func FetchSQL(topic string) (queries []string) {
	q := newRelaySQL(tableOf(topic), nil, RelayConfig{Shards: 16})
	return append(q.fetch[0][:], q.fetch[1][:]...)
}

// RemoveSQL is the relay's delete.
func RemoveSQL(topic string) string { return removeSQL(tableOf(topic)) }

// Settings are those of the relay's session.
const Settings = settings
