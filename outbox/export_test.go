package outbox

// FetchSQL is the relay's query.
func FetchSQL(topic string) string { return fetchSQL(tableOf(topic)) }

// RemoveSQL is the relay's delete.
func RemoveSQL(topic string) string { return removeSQL(tableOf(topic)) }
