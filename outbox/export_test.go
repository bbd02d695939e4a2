package outbox

// FetchSQL are the relay's queries for new messages.
func FetchSQL(topic string) (queries []string) {
	q := newRelaySQL(tableOf(topic), nil, RelayConfig{Shards: 16})
	for _, some := range q.fetch {
		for _, waiting := range some {
			queries = append(queries, waiting[:]...)
		}
	}
	return queries
}

// RefillSQL is the relay's query for more messages of a key.
func RefillSQL(topic string) string {
	return newRelaySQL(tableOf(topic), nil, RelayConfig{Shards: 16}).refill
}

// RefusesTransactions tells whether an error is that of a pooler in statement mode.
var RefusesTransactions = refusesTransactions

// SettleSQL are the relay's statements about what was sent: to delete or to keep it, waiting for locks or passing over them.
func SettleSQL(topic string) []string {
	remove := newRelaySQL(tableOf(topic), nil, RelayConfig{Shards: 16}).settle
	keep := newRelaySQL(tableOf(topic), nil, RelayConfig{Shards: 16, KeepSent: true}).settle
	return append(remove[:], keep[:]...)
}

// NoteSQL are those about what was not.
func NoteSQL(topic string) [2]string {
	return newRelaySQL(tableOf(topic), nil, RelayConfig{Shards: 16}).note
}

// Settings are those of the relay's session.
const Settings = settings
