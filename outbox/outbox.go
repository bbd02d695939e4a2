package outbox

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Config names an outbox and says what orders its messages. The zero value is the outbox in the table watermill_outbox.
type Config struct {
	// Topic names the outbox: its table is "watermill_" and this name. The letters a to z and A to Z, digits and
	// - $ : . _ may be used, 42 bytes at most. Set it where one database has several outboxes.
	// Defaults to "outbox".
	Topic string

	// Key tells which messages must leave in the order of their commits: those whose key is the same, whatever
	// their topics. A key is 1 to 512 bytes of UTF-8 without NUL. Messages whose key is their own UUID are ordered
	// with no others, and wait for none.
	// Defaults to PartitionKey.
	Key func(topic string, msg *message.Message) (string, error)
}

// Validate reports all faults at once.
func (c Config) Validate() error {
	c.setDefaults()
	return checkName(c.Topic)
}

// Table is the name of the outbox's table, quoted for use in SQL.
func (c Config) Table() string {
	c.setDefaults()
	return tableOf(c.Topic)
}

func (c *Config) setDefaults() {
	if c.Topic == "" {
		c.Topic = "outbox"
	}
	if c.Key == nil {
		c.Key = PartitionKey
	}
}

// maxName leaves room for the longest name derived from it, watermill_<topic>_offset_seq, within PostgreSQL's 63 bytes.
const maxName = 42

// checkName applies watermill-sql's rule for topics, which its Publisher and Subscriber would otherwise apply at every
// call. It also keeps quotes out of what is spliced into SQL.
func checkName(topic string) error {
	var faults []error
	if len(topic) > maxName {
		faults = append(faults, fmt.Errorf("the topic %q is %d bytes long, longer than %d", topic, len(topic), maxName))
	}
	for i := range len(topic) {
		if !allowedInName(topic[i]) {
			faults = append(faults, fmt.Errorf("the topic %q holds other than letters, digits and - $ : . _", topic))
			break
		}
	}
	return errors.Join(faults...)
}

func allowedInName(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	case c == '-', c == '$', c == ':', c == '.', c == '_':
		return true
	}
	return false
}

func tableOf(topic string) string {
	return `"` + tableNameOf(topic) + `"`
}

func tableNameOf(topic string) string {
	return "watermill_" + topic
}
