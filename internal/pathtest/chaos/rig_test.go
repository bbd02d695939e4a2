package main

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == childArgument {
		fmt.Fprintln(os.Stderr, runChild(os.Args[2]))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// The short form. It is not parallel, nor are the others: each has the machine to itself.
func TestChaos(t *testing.T) {
	var out bytes.Buffer
	_, err := run(t.Context(), settings{
		seed: uint64(time.Now().UnixNano()), length: 30 * time.Second, events: 2000, patience: 3 * time.Minute,
	}, &out)
	require.NoError(t, err, out.String())
	t.Log(out.String())
}

// The rig catches what it is made to catch: each mistake, with the faults that bring it to light.
func TestSabotage(t *testing.T) {
	often := func(f fault) (plan []fault) {
		for range 3 {
			f.At += 1500 * time.Millisecond
			plan = append(plan, f)
		}
		return plan
	}
	for saboteur, want := range sabotages {
		t.Run(string(saboteur), func(t *testing.T) {
			var plan []fault
			switch saboteur {
			case noDedupe:
				plan = often(fault{Kind: repeatRecords, Target: topicEvents, N: 50, Draw: 0.1})
			case noOrdering:
				plan = often(fault{Kind: lateEvents, N: 30, Draw: 0.3})
			case deleteFirst:
				plan = often(fault{Kind: crashBroker, For: 2 * time.Second})
			case poisonAll:
				plan = often(fault{Kind: crashDatabase, For: 500 * time.Millisecond})
			}
			plan = append(plan, fault{At: 5 * time.Second, Kind: badEvents, N: 1}) // which is right
			var out bytes.Buffer
			violations, err := run(t.Context(), settings{
				length: 5 * time.Second, events: 500, patience: 30 * time.Second, sabotage: saboteur, plan: plan, dir: t.TempDir(),
			}, &out)
			require.ErrorIs(t, err, errViolated, out.String())
			var rules []rule
			for _, v := range violations {
				rules = append(rules, v.Rule)
			}
			require.Contains(t, rules, want, out.String())
			require.Contains(t, out.String(), "VIOLATION: "+string(want))
			require.Regexp(t, `(?m)^    [0-9:.]+\t[a-z0-9-]+\[\d+\]\t(producing|forging)\t`, out.String(), "the history of an event")
		})
	}
}
