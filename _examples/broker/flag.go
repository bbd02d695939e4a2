package broker

import (
	"cmp"
	"flag"
	"os"
)

// Flag gives a program its -broker: the URL, by default that of the environment variable BROKER_URL, or else fallback. The value
// is there after flags.Parse. What the environment holds, a password perhaps, is not shown by -help.
func Flag(flags *flag.FlagSet, fallback string) *string {
	address := cmp.Or(os.Getenv("BROKER_URL"), fallback)
	flags.Func("broker", "`URL` of the broker (or BROKER_URL): gochannel://, postgres://host/db, kafka://host:9092, kafka://embedded,\n"+
		"nats://host, amqp://host, redis://host (default "+fallback+")", func(value string) error {
		address = value
		return nil
	})
	return &address
}
