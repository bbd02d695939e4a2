package broker_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/_examples/broker"
)

func TestGoodAddresses(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"gochannel://",
		"postgres://user:p%40ss@host:5432/db?sslmode=disable&batch=10&ack_wait=90s&poll=1s",
		"postgres:///db?host=/tmp&port=5433",
		"kafka://host:9092,other:9093?partitions=3&replication=3&tls=true",
		"kafka://user:password@[::1]:9092",
		"kafka://embedded?partitions=2",
		"nats://host",
		"nats://user:password@host,other:4223?ack_wait=30s&in_flight=10&replicas=3&tls=true",
		"amqp://host/%2Fvhost?prefetch=10",
		"amqps://user:password@host",
		"redis://host/3?ack_wait=30s",
		"rediss://:password@host:6380",
	} {
		require.NoError(t, broker.Check(address), address)
	}
}

// All that is wrong is told at once, and before anything connects: the hosts are not there.
func TestBadAddresses(t *testing.T) {
	t.Parallel()
	for address, faults := range map[string][]string{
		"":                  {"not a URL"},
		"localhost:9092":    {"not a URL"},
		"pulsar://host":     {`unknown scheme "pulsar"`, "kafka"},
		"gochannel://host":  {"neither host nor path"},
		"gochannel://?a=b":  {`unknown option "a": there are none`},
		"kafka://":          {"no host"},
		"kafka://:9092,h:x": {`":9092" is not host`, `"h:x" is not host`},
		"kafka://h/path?partitions=many&replication=-1&tls=yes&acks=0&partitions=1": {
			"no path", "partitions is not a number", "replication is not a number", "tls is neither", `unknown option "acks"`, "more than once",
		},
		"kafka://embedded?tls=true": {`unknown option "tls"`},
		"postgres://":               {"no host"},
		"postgres://h/db?batch=0&ack_wait=30&poll=fast&sslmod=off": {"batch is not", "ack_wait is not", "poll is not", `unknown option "sslmod"`},
		"postgres://h/db?sslmode=perhaps":                          {"sslmode"},
		"nats://h/path?in_flight=0&replicas=9&ack_wait=1":          {"no path", "in_flight is not", "replicas is not", "ack_wait is not"},
		"nats://h?prefetch=1":                                      {`unknown option "prefetch"`, "in_flight"},
		"amqp://":                                                  {"no host: use amqp://host:5672"},
		"amqps://h,i?prefetch=-1":                                  {"takes one host", "prefetch is not"},
		"redis://h:0/name?ack_wait=soon&a=b":                       {"not host", "number of a database", "ack_wait is not", `unknown option "a"`},
		"kafka://h?%zz":                                            {"name=value"},
		"kafka://us%er:secret@h":                                   {"not escaped"},
	} {
		start := time.Now()
		_, err := broker.Open(t.Context(), address, watermill.NopLogger{})
		require.Error(t, err, address)
		require.Less(t, time.Since(start), time.Second)
		for _, fault := range faults {
			require.ErrorContains(t, err, fault, address)
		}
		require.NotContains(t, err.Error(), "secret")
		require.EqualError(t, broker.Check(address), err.Error())
	}
}
