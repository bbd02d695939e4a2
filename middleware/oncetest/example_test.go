package oncetest_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/middleware/oncetest"
)

// printer is a test that prints. In a test of yours, its t is what goes here.
type printer struct{ testing.TB }

func (printer) Helper()                           {}
func (printer) Context() context.Context          { return context.Background() }
func (printer) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (p printer) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	runtime.Goexit()
}

// A handler that takes an amount off a balance, and that nothing keeps from doing it twice.
func Example() {
	var t testing.TB = printer{}
	setup := func(t testing.TB, db oncetest.Database) message.HandlerFunc {
		_, err := db.Pool.Exec(t.Context(), `
			create table accounts (id text primary key, balance bigint);
			insert into accounts values ('a', 100), ('b', 100);`)
		if err != nil {
			t.Fatalf("tables: %v", err)
		}
		return func(msg *message.Message) ([]*message.Message, error) {
			_, err := db.Pool.Exec(msg.Context(), `update accounts set balance = balance - 30 where id = $1`, string(msg.Payload))
			return nil, err
		}
	}
	events := []*message.Message{
		message.NewMessage("evt-1", []byte("a")),
		message.NewMessage("evt-2", []byte("b")),
		message.NewMessage("evt-3", []byte("a")),
	}
	oncetest.Config{Seed: 1}.Replay(t, setup, events)
	// Output:
	// oncetest.Replay: event 1 (UUID "evt-1") changed something when it came again
	// the shortest sequence found that shows it (events given: 3):
	//   1. event 1 (UUID "evt-1")
	//   2. event 1 (UUID "evt-1") again
	// what differs:
	//   accounts (id=a), column balance: before 70, after 40
	// seed 1, 4 runs
}
