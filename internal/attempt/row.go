package attempt

// Row is one message on its way into an outbox table.
type Row struct {
	Table    string // quoted, ready to be spliced into SQL
	UUID     string
	Topic    string
	Key      string
	Payload  []byte
	Metadata string // a JSON object of strings

	// Lock is the id of the advisory lock that keeps the rows of one key in commit order; nil: the key is
	// the message's own UUID, and nothing needs to be kept in order.
	Lock *int64

	// Wake tells the outbox's relay that a row has been committed. May be nil.
	Wake func()
}
