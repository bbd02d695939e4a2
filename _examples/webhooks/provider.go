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

	accepted atomic.Int64 // genuine deliveries answered with 200, also where the answer was lost
	lost     atomic.Int64 // answers that did not arrive
	forged   atomic.Int64 // forgeries sent
	refused  atomic.Int64 // forgeries answered with 401
}

func newProvider(base string, endpoints int, secrets [][]byte) *provider {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 2 * senders
	p := &provider{client: &http.Client{Transport: transport, Timeout: 30 * time.Second}, secrets: secrets}
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
				atOnce.Go(func() error { return p.deliver(ctx, d) })
			}
			return atOnce.Wait()
		})
	}
	return group.Wait()
}

// deliver repeats a delivery until the endpoint takes it, for some seconds; a forgery it sends once.
func (p *provider) deliver(ctx context.Context, d delivery) error {
	if d.forged != nil {
		p.forged.Add(1)
	}
	for pause := 50 * time.Millisecond; ; pause *= 2 {
		status, err := p.post(ctx, d)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case d.forged != nil && status == http.StatusUnauthorized:
			p.refused.Add(1)
			return nil
		case d.forged != nil && err == nil:
			return nil // counted as sent and not as refused
		case status == http.StatusOK:
			p.accepted.Add(1)
			if d.lost {
				p.lost.Add(1)
			}
			return nil
		case pause > 5*time.Second:
			return fmt.Errorf("delivery of event %s: status %d (%v)", d.event.id, status, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (p *provider) post(ctx context.Context, d delivery) (status int, err error) {
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
	request.Header.Set(deliveryHeader, watermill.NewUUID()) // a new one each time
	response, err := p.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body) // for the connection to be used again
	return response.StatusCode, err
}
