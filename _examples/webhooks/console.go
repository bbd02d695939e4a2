package main

import (
	"context"
	"embed"
	"encoding/json"
	"io/fs"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

//go:embed page
var page embed.FS

// console is the provider's side for a person to look at: its deliveries as they are made, and a button to replay each.
type console struct {
	service  *service
	provider *provider
	feed     *feed
	asked    chan request
}

// request is a replay that somebody has asked for.
type request struct {
	delivery delivery
	answer   chan<- answer // has room for it: nobody may be waiting any more
}

type answer struct {
	comparison comparison
	err        error
}

func newConsole(s *service, p *provider) *console {
	c := &console{service: s, provider: p, feed: newFeed(s.source), asked: make(chan request)}
	p.attempted = c.feed.add
	return c
}

// atOnce is how many steps are made before the first pause, for the page not to begin empty.
const atOnce = 10

// run makes the steps of the plan, and between them the replays that are asked for. It does one thing at a time and lets all
// that follows from it be done, so that what has changed by then has changed by it.
func (c *console) run(ctx context.Context, steps []step, pace time.Duration) {
	next := time.NewTimer(0)
	defer next.Stop()
	for made := 0; ; {
		select {
		case <-ctx.Done():
			return
		case r := <-c.asked:
			comparison, err := c.compare(ctx, r.delivery)
			r.answer <- answer{comparison, err}
		case <-next.C:
			if made == len(steps) {
				continue
			}
			if err := c.step(ctx, steps[made]); err != nil && ctx.Err() == nil {
				c.service.logger.Error("Step of the plan", err, nil)
			}
			if made++; made < atOnce {
				next.Reset(0)
			} else {
				next.Reset(pace)
			}
		}
	}
}

func (c *console) step(ctx context.Context, s step) error {
	if err := c.provider.send(ctx, []step{s}); err != nil {
		return err
	}
	return c.service.settle(ctx, c.provider, 0)
}

// handler serves the page. Its requests end when ctx does: a stream of events has no other end.
func (c *console) handler(ctx context.Context) (http.Handler, error) {
	files, err := fs.Sub(page, "page")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	mux.Handle("GET /events", c.feed)
	mux.HandleFunc("POST /deliveries/{id}/replay", c.replay)
	// A page of somebody else's must not press the button.
	sameOrigin := http.NewCrossOriginProtection().Handler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		until, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		w.Header().Set("Content-Security-Policy",
			"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
				"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "no-referrer")
		w.Header().Set("Cache-Control", "no-store")
		sameOrigin.ServeHTTP(w, r.WithContext(until))
	}), nil
}

// replay sends the event of a delivery once more, and answers with what that has changed.
func (c *console) replay(w http.ResponseWriter, r *http.Request) {
	d, known := c.feed.delivery(r.PathValue("id"))
	if !known {
		http.Error(w, "There is no such delivery, or it is too long ago.", http.StatusNotFound)
		return
	}
	answered := make(chan answer, 1)
	select {
	case c.asked <- request{d, answered}:
	case <-r.Context().Done():
		return
	}
	select {
	case a := <-answered:
		if a.err != nil {
			c.service.logger.Error("Replay", a.err, watermill.LogFields{"event": d.event.id})
			http.Error(w, "The replay was not handled; the log says why.", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(a.comparison); err != nil {
			c.service.logger.Info("Replay not answered", watermill.LogFields{"reason": err.Error()})
		}
	case <-r.Context().Done():
	}
}
