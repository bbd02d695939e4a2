package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/middleware/oncetest/pgserver"
)

func TestConsoleRefusesAPostOfAnotherSite(t *testing.T) {
	t.Parallel()
	console := serveConsole(t)
	first := readAttempt(t, console.stream(t, ""))
	for name, header := range map[string][2]string{
		"what browsers say":     {"Sec-Fetch-Site", "cross-site"},
		"what older ones say":   {"Origin", "https://elsewhere.example"},
		"a page of a subdomain": {"Sec-Fetch-Site", "same-site"},
	} {
		status := console.post(t, "/deliveries/"+first.delivery+"/replay", header[0], header[1])
		require.Equal(t, http.StatusForbidden, status, name)
	}
	require.Equal(t, http.StatusOK, console.post(t, "/deliveries/"+first.delivery+"/replay", "Sec-Fetch-Site", "same-origin"))
	require.Equal(t, http.StatusNotFound, console.post(t, "/deliveries/unknown/replay", "Sec-Fetch-Site", "same-origin"))
}

func TestConsoleAllowsThePageNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	response := serveConsole(t).get(t, "/", "")
	require.Equal(t, http.StatusOK, response.StatusCode)
	policy := response.Header.Get("Content-Security-Policy")
	require.Contains(t, policy, "default-src 'none'")
	require.NotContains(t, policy, "unsafe")
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NotContains(t, string(body), "http")
}

// A browser that has lost the stream gets what it has missed and nothing twice; one that comes from another run gets all.
func TestConsoleStreamGoesOn(t *testing.T) {
	t.Parallel()
	console := serveConsole(t)
	stream := console.stream(t, "")
	require.True(t, strings.HasPrefix(nextLine(t, stream), "retry: "))
	require.Equal(t, "event: reset", nextLine(t, stream))
	readAttempt(t, stream)
	second, third := readAttempt(t, stream), readAttempt(t, stream)

	resumed := console.stream(t, second.id)
	require.Equal(t, "id: "+third.id, nextLine(t, resumed))

	for _, unknown := range []string{"another-1", second.id + "000", "x"} {
		stream := console.stream(t, unknown)
		nextLine(t, stream)
		require.Equal(t, "event: reset", nextLine(t, stream), unknown)
	}
}

// The server's limit on reading a request is over when the first heartbeat comes.
func TestConsoleStreamHasNoDeadline(t *testing.T) {
	t.Parallel()
	feed := newFeed(cardSource)
	feed.heartbeat = 500 * time.Millisecond
	server := httptest.NewUnstartedServer(feed)
	server.Config.ReadTimeout = 100 * time.Millisecond
	server.Start()
	t.Cleanup(server.Close)

	stream := consoleAt{address: server.URL}.stream(t, "")
	for nextLine(t, stream) != ": still here" {
	}
	feed.add(attempt{id: "delivery", delivery: delivery{event: event{"event", []byte(`{}`)}}})
	require.Equal(t, "delivery", readAttempt(t, stream).delivery)
}

func TestDifferenceNamesWhatHasChanged(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	before := []storedRow{{"cards", "a", at, `{"status":"active"}`}, {"emails", "1", at, `{"id":1}`}}

	tables, changes := difference(before, before)
	require.Empty(t, changes)
	require.NotNil(t, changes) // [] in JSON, not null
	require.Equal(t, tableChange{"cards", summary{1, "2026-01-02 03:04:05.000006"}, summary{1, "2026-01-02 03:04:05.000006"}}, tables[0])
	require.Equal(t, tableChange{Table: "ledger_entries"}, tables[1])

	tables, changes = difference(before, []storedRow{
		{"cards", "a", at.Add(time.Second), `{"status":"paused"}`}, {"ledger_entries", "1", at, `{"amount":7}`},
	})
	require.Equal(t, []rowChange{
		{"cards", `{"status":"active"}`, `{"status":"paused"}`},
		{"ledger_entries", "", `{"amount":7}`},
		{"emails", `{"id":1}`, ""},
	}, changes)
	require.Equal(t, "2026-01-02 03:04:06.000006", tables[0].After.Newest)
	require.Equal(t, 0, tables[2].After.Rows)
}

// A stream has no end of its own, and must not hold up that of the program.
func TestConsoleEndsWithAStreamOpen(t *testing.T) {
	t.Parallel()
	console := serveConsole(t)
	stream := console.stream(t, "")
	readAttempt(t, stream)
	begun := time.Now()
	console.stop()
	for stream.Scan() { // until the server has ended it
	}
	require.NoError(t, <-console.ended)
	console.ended <- nil
	require.Less(t, time.Since(begun), shutdown)
}

// consoleAt is a console that runs, and the database behind it.
type consoleAt struct {
	address, database string
	deliveries        int // in its plan
	stop              func()
	ended             chan error
}

// serveConsole runs the program until the test ends.
func serveConsole(t *testing.T) consoleAt {
	t.Helper()
	server, err := pgserver.Start(t.Context(), pgserver.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	console := consoleAt{database: server.URL("postgres")}
	c := config{
		database: console.database, broker: "gochannel://", events: 14, seed: 1,
		serve: "127.0.0.1:0", pace: time.Millisecond, logger: watermill.NopLogger{},
	}
	_, _, steps, err := c.load()
	require.NoError(t, err)
	for _, step := range steps {
		for _, d := range step.deliveries {
			if d.forged == nil {
				console.deliveries++
			}
		}
	}

	ctx, stop := context.WithCancel(t.Context())
	printed := make(chan string, 1)
	console.stop, console.ended = stop, make(chan error, 1)
	go func() {
		console.ended <- run(ctx, c, writer(func(p []byte) (int, error) {
			printed <- string(p)
			return len(p), nil
		}))
	}()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-console.ended)
	})
	select {
	case line := <-printed:
		console.address = strings.TrimSuffix(strings.TrimPrefix(line, "console: "), "/\n")
	case err := <-console.ended:
		console.ended <- err
		require.Fail(t, "the console has ended", "%v", err)
	}
	return console
}

func (c consoleAt) get(t *testing.T, path, lastEventID string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.address+path, nil)
	require.NoError(t, err)
	if lastEventID != "" {
		request.Header.Set("Last-Event-ID", lastEventID)
	}
	return do(t, request)
}

// post gives the status of the answer.
func (c consoleAt) post(t *testing.T, path, header, value string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.address+path, nil)
	require.NoError(t, err)
	request.Header.Set(header, value)
	return do(t, request).StatusCode
}

func do(t *testing.T, request *http.Request) *http.Response {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	response, err := client.Do(request)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

func (c consoleAt) stream(t *testing.T, lastEventID string) *bufio.Scanner {
	t.Helper()
	response := c.get(t, "/events", lastEventID)
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
	return bufio.NewScanner(response.Body)
}

// nextLine skips the empty ones.
func nextLine(t *testing.T, stream *bufio.Scanner) string {
	t.Helper()
	for stream.Scan() {
		if line := stream.Text(); line != "" {
			return line
		}
	}
	require.NoError(t, stream.Err())
	require.Fail(t, "the stream has ended")
	return ""
}

// sent is an attempt as the stream has it.
type sent struct{ id, delivery string }

func readAttempt(t *testing.T, stream *bufio.Scanner) (s sent) {
	t.Helper()
	for {
		name, value, _ := strings.Cut(nextLine(t, stream), ": ")
		switch {
		case name == "id":
			s.id = value
		case name == "data" && s.id != "":
			var data struct{ Delivery string }
			require.NoError(t, json.Unmarshal([]byte(value), &data))
			s.delivery = data.Delivery
			return s
		}
	}
}
