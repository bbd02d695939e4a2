package broker_test

import (
	"strings"
	"testing"

	"github.com/watermill-once/watermill-once/_examples/broker"
)

// Whatever a person types, Check answers without a panic, in one line that no terminal minds and without the password.
func FuzzCheck(f *testing.F) {
	for _, address := range append(withPassword, "", "gochannel://", "kafka://embedded", "kafka://a:1,b:2?partitions=x&nope=1", "nats://", "://", "%", "amqp://\x00") {
		f.Add(address)
	}
	const password = "correct-horse-battery"
	f.Fuzz(func(t *testing.T, address string) {
		_ = broker.Check(address)
		scheme, rest, ok := strings.Cut(address, "://")
		if !ok || strings.ContainsAny(scheme, "/?#") {
			return
		}
		if err := broker.Check(scheme + "://user:" + password + "@" + rest); err != nil && strings.Contains(err.Error(), password) {
			t.Fatalf("the password of %q is in: %v", address, err)
		}
	})
}
