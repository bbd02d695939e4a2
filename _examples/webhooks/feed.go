package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// remembered is how many attempts are there for a browser that comes late.
const remembered = 500

// feed streams the latest attempts as server-sent events, and goes on where a browser has lost it.
type feed struct {
	source    source
	heartbeat time.Duration
	run       string // makes the ids of another run of the program unknown to this one

	mu       sync.Mutex
	attempts []attempt // the last has the number next-1
	next     int
	changed  chan struct{} // closed, and a new one made, with each attempt
}

func newFeed(s source) *feed {
	return &feed{source: s, heartbeat: 15 * time.Second, run: rand.Text()[:8], changed: make(chan struct{})}
}

// add fits provider.attempted.
func (f *feed) add(a attempt) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attempts = append(f.attempts, a)
	f.attempts = f.attempts[max(0, len(f.attempts)-remembered):]
	f.next++
	close(f.changed)
	f.changed = make(chan struct{})
}

// delivery gives the delivery of that id, if it is among the latest.
func (f *feed) delivery(id string) (delivery, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.attempts {
		if a.id == id {
			return a.delivery, true
		}
	}
	return delivery{}, false
}

func (f *feed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	stream := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	seen, known := f.parse(r.Header.Get("Last-Event-ID"))
	if !known { // what the browser shows is not ours
		if _, err := fmt.Fprint(w, "retry: 1000\nevent: reset\ndata: {}\n\n"); err != nil {
			return
		}
	}
	beat := time.NewTicker(f.heartbeat)
	defer beat.Stop()
	for {
		attempts, last, changed := f.after(seen)
		for i, a := range attempts {
			if err := f.write(w, last-len(attempts)+1+i, a); err != nil {
				return
			}
		}
		if err := stream.Flush(); err != nil {
			return
		}
		seen = last
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		case <-beat.C: // keeps proxies from taking the stream for dead, and finds out when it is
			if _, err := fmt.Fprint(w, ": still here\n\n"); err != nil {
				return
			}
		}
	}
}

// parse reads an event's id: "run-number". It knows only those of this run, and whose next attempt it still has.
func (f *feed) parse(id string) (number int, known bool) {
	run, digits, _ := strings.Cut(id, "-")
	number, err := strconv.Atoi(digits)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil || run != f.run || number >= f.next || number < f.next-len(f.attempts)-1 {
		return -1, false
	}
	return number, true
}

// after gives the attempts beyond a number, the number of the last one, and what is closed when there are more.
func (f *feed) after(seen int) (attempts []attempt, last int, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fresh := min(len(f.attempts), f.next-1-seen)
	return append(attempts, f.attempts[len(f.attempts)-fresh:]...), f.next - 1, f.changed
}

func (f *feed) write(w http.ResponseWriter, number int, a attempt) error {
	eventType, _ := f.source.eventType(message.NewMessage(a.delivery.event.id, a.delivery.event.body)) // one without is shown without
	data, err := json.Marshal(struct {
		Delivery string    `json:"delivery"`
		Event    string    `json:"event"`
		Type     string    `json:"type"`
		Time     time.Time `json:"time"`
		Status   int       `json:"status"`
		Attempts int       `json:"attempts"`
		Replay   bool      `json:"replay"`
	}{a.id, a.delivery.event.id, eventType, a.at, a.status, a.number, a.delivery.replay})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "id: %s-%d\nevent: attempt\ndata: %s\n\n", f.run, number, data)
	return err
}
