package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/_examples/broker"
)

type config struct {
	broker   string
	database string // "": a server is started
	events   int    // in each round
}

// longest is how long one round may take.
const longest = 2 * time.Minute

// run kills the service at each point, and once more not at all. It returns nil only if the totals are right after each round.
func run(ctx context.Context, c config, out io.Writer) (err error) {
	if c.events <= crashAfter {
		return fmt.Errorf("-events %d: more than %d are needed", c.events, crashAfter)
	}
	if c.broker == "kafka://embedded" || strings.HasPrefix(c.broker, "gochannel:") {
		return errors.New("-broker: one within this program does not outlive a service of another process")
	}
	db, err := openDatabase(ctx, c.database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	if c.broker == ownDatabase {
		c.broker = db.url
	}
	b, err := broker.Open(ctx, c.broker, logger())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	s := service{Database: db.url, Broker: c.broker, Run: db.schema}
	err = errors.Join(
		b.Create(ctx, s.payments(), "payments"),
		b.Create(ctx, s.receipts(), "receipts"),
		b.Create(ctx, s.poison(), "poison"), // for a person to look at
	)
	if err != nil {
		return err
	}

	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "killed\tevents\tpaid by then\tpaid in the end\tbalance\treceipts\t")
	expected, wrong := totals{}, 0
	for round, point := range append(crashPoints, "") {
		if err := send(b.Publisher, s.payments(), round, c.events, &expected); err != nil {
			return err
		}
		s.Crash = point
		atKill, after, err := s.playRound(ctx, db, expected)
		if err != nil {
			return fmt.Errorf("round %d (%s): %w", round+1, point, err)
		}
		verdict := "ok"
		if after != expected {
			verdict = "WRONG"
			wrong++
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%d\t%d\t%s\n",
			name(point), expected.payments, atKill, after.payments, after.balance, after.receipts, verdict)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if wrong > 0 {
		return fmt.Errorf("the totals of %d rounds are wrong", wrong)
	}
	_, err = fmt.Fprintf(out, "\nkilled %d times, and each of %d events was paid once and has one receipt\n",
		len(crashPoints), expected.payments)
	return err
}

func name(point string) string {
	if point == "" {
		return "not at all"
	}
	return point
}

// playRound has the service killed, starts it again and waits until all is done. It gives how many payments there were when it
// was killed, and the totals at the end.
func (s service) playRound(ctx context.Context, db *database, expected totals) (atKill string, after totals, err error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	atKill = "-"
	if s.Crash != "" {
		c, err := start(s)
		if err != nil {
			return "", totals{}, err
		}
		if err := c.waitKilled(ctx); err != nil {
			return "", totals{}, err
		}
		t, err := db.totals(ctx)
		if err != nil {
			return "", totals{}, err
		}
		atKill = fmt.Sprint(t.payments)
	}
	s.Crash = ""
	c, err := start(s)
	if err != nil {
		return "", totals{}, err
	}
	// Stopped before the totals are read: what it would still do in vain is in them, if it does anything.
	if err := errors.Join(db.settle(ctx, expected), c.stop()); err != nil {
		return "", totals{}, err
	}
	after, err = db.totals(ctx)
	return atKill, after, err
}

// send publishes the events of a round, all but the last of them twice, and adds them to what is to come out.
func send(publisher message.Publisher, topic string, round, events int, expected *totals) error {
	for i := range events {
		p := payment{Amount: int64(100*round + i)}
		payload, err := json.Marshal(p)
		if err != nil {
			return err
		}
		copies := 2
		if i == events-1 {
			copies = 1 // when it is handled, so is what was sent before it
		}
		for range copies {
			msg := message.NewMessage(fmt.Sprintf("event-%d-%d", round+1, i+1), payload)
			if err := publisher.Publish(topic, msg); err != nil {
				return err
			}
		}
		expected.payments++
		expected.balance += p.Amount
		expected.receipts++
	}
	return nil
}
