package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/watermill-once/watermill-once/dedupe"
)

// client calls the payment provider, and the mail service. What matters is what it makes of errors: NotDone where there certainly
// was no effect, Final where there never will be one, and anything else where nobody knows.
type client struct {
	base  string
	agent string
	keys  bool
	http  *http.Client
}

func newClient(base, agent string, keys bool) client {
	// The timeout is short for the sake of a short run.
	return client{base, agent, keys, &http.Client{Timeout: 300 * time.Millisecond}}
}

func (c client) charge(ctx context.Context, key string, r chargeRequest) (outcome charged, err error) {
	if !c.keys {
		// The header is not harmless where nobody reads it: by it net/http takes a request for one that can be repeated, and does so by
		// itself when a connection breaks.
		key = ""
	}
	return outcome, c.call(ctx, http.MethodPost, "/charges", key, r, &outcome)
}

func (c client) mail(ctx context.Context, key string, r receipt) error {
	return c.call(ctx, http.MethodPost, "/mails", key, r, nil)
}

// lookUp gives what the provider knows of an order. Charge is "" where there is none, and Declined says why if the card was
// declined.
func (c client) lookUp(ctx context.Context, order string) (found finding, err error) {
	return found, c.call(ctx, http.MethodGet, "/charges?order="+url.QueryEscape(order), "", nil, &found)
}

type finding struct {
	Charge   string `json:"charge"`
	Declined string `json:"declined"`
}

func (c client) call(ctx context.Context, method, path, key string, body, answer any) error {
	payload, err := json.Marshal(body)
	if err != nil {
		return dedupe.NotDone(err)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(payload))
	if err != nil {
		return dedupe.NotDone(err)
	}
	request.Header.Set("User-Agent", c.agent)
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	response, err := c.http.Do(request)
	var network *net.OpError
	switch {
	case errors.As(err, &network) && network.Op == "dial":
		return dedupe.NotDone(err) // it was not sent
	case err != nil:
		return err // it may have arrived
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return err
	}
	switch response.StatusCode {
	case http.StatusOK:
		if answer == nil {
			return nil
		}
		return json.Unmarshal(text, answer)
	case http.StatusPaymentRequired:
		return dedupe.Final(fmt.Errorf("declined: %s", bytes.TrimSpace(text)))
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		return dedupe.NotDone(errors.New(response.Status)) // this provider says so before it does anything
	default:
		return errors.New(response.Status) // as with 500: it may have charged before it failed
	}
}
