package outbox

// FetchSQL is the relay's query.
func FetchSQL(topic string) string { return fetchSQL(tableOf(topic)) }
