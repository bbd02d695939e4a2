package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"golang.org/x/sync/errgroup"
)

// provider sends deliveries, as the other side does.
type provider struct {
	client  *http.Client
	urls    []string // of the endpoints
	secrets [][]byte // the old one and the new one: it signs with both

	attempted func(attempt) // told of each attempt to deliver, forgeries aside

	accepted atomic.Int64 // genuine deliveries answered with 200, also where the answer was lost
	lost     atomic.Int64 // answers that did not arrive
	forged   atomic.Int64 // forgeries sent
	refused  atomic.Int64 // forgeries answered with 401
}

// attempt is one request of a delivery, and what came of it.
type attempt struct {
	delivery delivery
	id       string // the delivery's: all its attempts have it
	number   int    // from 1 up
	at       time.Time
	status   int // of the answer; 0: none arrived
}

func newProvider(base string, endpoints int, secrets [][]byte) *provider {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 2 * senders
	p := &provider{
		client:    &http.Client{Transport: transport, Timeout: 30 * time.Second},
		secrets:   secrets,
		attempted: func(attempt) {},
	}
	for i := range endpoints {
		p.urls = append(p.urls, base+endpointPath(i))
	}
	return p
}

// senders is how many steps the provider has under way at a time.
const senders = 8

// send makes all deliveries of a plan, and returns when each has its answer.
func (p *provider) send(ctx context.Context, steps []step) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(senders)
	for _, step := range steps {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			atOnce, ctx := errgroup.WithContext(ctx)
			for _, d := range step.deliveries {
				atOnce.Go(func() error {
					_, err := p.deliver(ctx, d)
					return err
				})
			}
			return atOnce.Wait()
		})
	}
	return group.Wait()
}

// deliver makes a new delivery and repeats it until the endpoint takes it, for some seconds; a forgery it sends once.
func (p *provider) deliver(ctx context.Context, d delivery) (id string, err error) {
	id = watermill.NewUUID()
	if d.forged != nil {
		return id, p.deliverForged(ctx, d, id)
	}
	pause := 50 * time.Millisecond
	for number := 1; ; number++ {
		at := time.Now()
		status, err := p.post(ctx, d, id)
		if ctx.Err() != nil {
			return id, context.Cause(ctx)
		}
		seen := attempt{delivery: d, id: id, number: number, at: at, status: status}
		if d.lost {
			seen.status = 0
		}
		p.attempted(seen)
		switch {
		case status == http.StatusOK:
			p.accepted.Add(1)
			if d.lost {
				p.lost.Add(1)
			}
			return id, nil
		case pause > 5*time.Second:
			return id, fmt.Errorf("delivery of event %s: status %d (%v)", d.event.id, status, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause *= 2
	}
}

func (p *provider) deliverForged(ctx context.Context, d delivery, id string) error {
	p.forged.Add(1)
	for {
		status, err := p.post(ctx, d, id)
		if err != nil {
			return err
		}
		if status == http.StatusUnauthorized {
			p.refused.Add(1)
		}
		if status != http.StatusServiceUnavailable { // which does not come from the endpoint: it looks at the signature first
			return nil
		}
	}
}

func (p *provider) post(ctx context.Context, d delivery, id string) (status int, err error) {
	now, body := time.Now(), d.event.body
	header := sign(body, now, p.secrets...)
	if d.forged != nil {
		header, body = d.forged(body, now, p.secrets[0])
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.urls[d.endpoint], bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set(signatureHeader, header)
	request.Header.Set(deliveryHeader, id)
	response, err := p.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body) // for the connection to be used again
	return response.StatusCode, err
}
