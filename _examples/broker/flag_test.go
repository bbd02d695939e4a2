package broker_test

import (
	"bytes"
	"flag"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/_examples/broker"
)

func TestFlag(t *testing.T) {
	parse := func(args ...string) (string, string) {
		var help bytes.Buffer
		flags := flag.NewFlagSet("program", flag.ContinueOnError)
		flags.SetOutput(&help)
		address := broker.Flag(flags, "gochannel://")
		_ = flags.Parse(append(args, "-help"))
		return *address, help.String()
	}
	address, help := parse()
	require.Equal(t, "gochannel://", address)
	require.Contains(t, help, "default gochannel://")

	t.Setenv("BROKER_URL", "kafka://user:secret@host")
	address, help = parse()
	require.Equal(t, "kafka://user:secret@host", address)
	require.NotContains(t, help, "secret")
	address, _ = parse("-broker", "nats://host")
	require.Equal(t, "nats://host", address)
}
