package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// ledger is where a process notes what it does, before it does it and when it knows how it ended: a file of its own that is only
// appended to, one line and one write for each note, so that kill -9 loses none. No fault touches the file.
type ledger struct {
	mu   sync.Mutex
	file *os.File
	who  string
}

// The notes, in the order of an event's life. What follows the id is for people, but for outcomes.
const (
	producing  = "producing"  // about to commit
	withdrawn  = "withdrawn"  // rolled back, though published
	produced   = "produced"   // COMMIT has been answered
	unproduced = "unproduced" // failed, or nobody knows
	forging    = "forging"    // about to be written to the topic by the rig itself
	sending    = "sending"    // by the relay
	sent       = "sent"
	unsent     = "unsent"
	delivered  = "delivered" // to a consumer
	attempted  = "attempted" // its handler begins
	outcome    = "outcome"   // fresh, duplicate, stale, failed
	faulted    = "fault"     // what was done, to whom; no id
)

func openLedger(dir, who string) (*ledger, error) {
	file, err := os.OpenFile(filepath.Join(dir, who), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	return &ledger{file: file, who: fmt.Sprintf("%s[%d]", who, os.Getpid())}, nil
}

// note writes a line. A process that cannot is of no use to anybody.
func (l *ledger) note(act, id, format string, args ...any) {
	more := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")
	line := fmt.Sprintf("%s\t%s\t%s\t%s\t%s\n", time.Now().UTC().Format(stamp), l.who, act, id, more)
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.file.WriteString(line); err != nil {
		fmt.Fprintln(os.Stderr, "ledger:", err)
		os.Exit(3)
	}
}

// stamp sorts as text.
const stamp = "15:04:05.000000"

// notes is what the ledgers tell in all.
type notes struct {
	counts map[string]int               // of each act; of outcomes, each kind
	told   map[string]map[string]string // consumer, or "producer" -> id -> who was told that it is committed
}

// readNotes reads all ledgers of a directory.
func readNotes(dir string) (notes, error) {
	n := notes{counts: map[string]int{}, told: map[string]map[string]string{}}
	return n, eachNote(dir, func(line []byte) {
		fields := bytes.SplitN(line, []byte("\t"), 5)
		if len(fields) < 5 {
			return // the process was killed within the write
		}
		who, act, id, more := string(fields[1]), string(fields[2]), string(fields[3]), string(fields[4])
		if act == outcome {
			act, _, _ = strings.Cut(more, " ")
		}
		n.counts[act]++
		if act == produced || act == "fresh" {
			role, _, _ := strings.Cut(who, "-")
			if n.told[role] == nil {
				n.told[role] = map[string]string{}
			}
			n.told[role][id] = who
		}
	})
}

// histories gives the lines about each of some ids, in the order of time.
func histories(dir string, ids ...string) ([]string, error) {
	var lines []string
	err := eachNote(dir, func(line []byte) {
		for _, id := range ids {
			if id != "" && bytes.Contains(line, []byte(id)) {
				lines = append(lines, string(line))
				return
			}
		}
	})
	slices.Sort(lines)
	return lines, err
}

func eachNote(dir string, f func(line []byte)) error {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<20) // an error may have much to say
		for lines.Scan() {
			f(lines.Bytes())
		}
		_ = file.Close()
		if err := lines.Err(); err != nil {
			return err
		}
	}
	return nil
}
