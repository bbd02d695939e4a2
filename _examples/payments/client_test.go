package main

import (
	"errors"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/dedupe"
)

// A provider that knows no keys is not to be sent any: by that header net/http takes the request for one that it may repeat.
func TestKeyHeaderIsForThoseWhoHonourIt(t *testing.T) {
	t.Parallel()
	for _, sent := range []bool{false, true} {
		p := newProvider([]planned{{order: order{ID: "first"}}, {order: order{ID: "second"}, fault: hangUp}}, false, nil)
		server := httptest.NewServer(p.handler())
		c := newClient(server.URL, "test", sent)
		_, err := c.charge(t.Context(), "key-1", chargeRequest{Order: "first"})
		require.NoError(t, err)
		_, err = c.charge(t.Context(), "key-2", chargeRequest{Order: "second"}) // on the same connection
		if sent {
			require.NoError(t, err)
			require.Equal(t, 2, p.fact("second").charges, "charged twice, and nobody knows")
		} else {
			require.Error(t, err)
			require.Equal(t, 1, p.fact("second").charges)
		}
		c.http.CloseIdleConnections()
		server.Close()
	}
}

func TestClientTellsWhatIsKnown(t *testing.T) {
	t.Parallel()
	var notDone interface{ NotDone() bool }
	var final *dedupe.FinalError
	p := newProvider([]planned{
		{order: order{ID: "busy"}, fault: busy}, {order: order{ID: "poor"}, declined: true}, {order: order{ID: "error"}, fault: errorAfter},
		{order: order{ID: "silent"}, fault: silent}, {order: order{ID: "good"}},
	}, true, nil)
	server := httptest.NewServer(p.handler())
	c := newClient(server.URL, "test", true)
	defer c.http.CloseIdleConnections()
	charge := func(order string) (charged, error) {
		return c.charge(t.Context(), "key of "+order, chargeRequest{Order: order})
	}
	_, err := charge("busy")
	require.ErrorAs(t, err, &notDone)
	_, err = charge("poor")
	require.ErrorAs(t, err, &final)
	for _, doubtful := range []string{"error", "silent"} {
		_, err = charge(doubtful)
		require.Error(t, err)
		require.False(t, errors.As(err, &notDone) || errors.As(err, &final), doubtful)
	}
	first, err := charge("good")
	require.NoError(t, err)
	again, err := charge("good")
	require.NoError(t, err)
	require.Equal(t, first, again)
	found, err := c.lookUp(t.Context(), "good")
	require.NoError(t, err)
	require.Equal(t, finding{Charge: first.Charge}, found)
	require.Equal(t, 1, p.fact("good").charges)

	server.Close()
	_, err = charge("good")
	require.ErrorAs(t, err, &notDone, "nobody is there")
}
