package main

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/outbox"
)

var testSecret = []byte("secret")

func TestEndpointPublishesEachDelivery(t *testing.T) {
	t.Parallel()
	var published recorder
	handler := newEndpoint(&published)

	// With the spaces and the order of keys in which it was signed.
	body := []byte(`{ "id":"evt_1", "created_at":"2026-01-02T03:04:05Z", "data":{"status":"active","card":"card_7"} }`)
	for range 2 {
		require.Equal(t, http.StatusOK, post(handler, body, sign(body, time.Now(), testSecret)))
	}
	require.Equal(t, "in", published.topic)
	require.Len(t, published.messages, 2)
	for _, msg := range published.messages {
		require.Equal(t, "evt_1", msg.UUID)
		require.Equal(t, "card_7", msg.Metadata[outbox.PartitionKeyKey])
		require.Equal(t, body, []byte(msg.Payload))
	}
}

func TestEndpointTakesWhatTheConsumersMustJudge(t *testing.T) {
	t.Parallel()
	var published recorder
	body := []byte(`{"id":"evt_1","data":{}}`)
	require.Equal(t, http.StatusOK, post(newEndpoint(&published), body, sign(body, time.Now(), testSecret)))
	require.Len(t, published.messages, 1)
	require.NotContains(t, published.messages[0].Metadata, outbox.PartitionKeyKey)
}

func TestEndpointRefuses(t *testing.T) {
	t.Parallel()
	body := []byte(`{"id":"evt_1"}`)
	large := bytes.Repeat([]byte(" "), maxBody+1)
	noID := []byte(`{"card":"card_7"}`)
	noJSON := []byte(`id=evt_1`)
	for name, test := range map[string]struct {
		body   []byte
		header string
		status int
	}{
		"a wrong signature":  {body, sign(body, time.Now(), []byte("guessed")), http.StatusUnauthorized},
		"no signature":       {body, "", http.StatusUnauthorized},
		"an old delivery":    {body, sign(body, time.Now().Add(-time.Hour), testSecret), http.StatusUnauthorized},
		"a large body":       {large, sign(large, time.Now(), testSecret), http.StatusRequestEntityTooLarge},
		"no event id":        {noID, sign(noID, time.Now(), testSecret), http.StatusBadRequest},
		"a body of no JSON":  {noJSON, sign(noJSON, time.Now(), testSecret), http.StatusBadRequest},
		"junk with no proof": {noJSON, "t=1", http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var published recorder
			require.Equal(t, test.status, post(newEndpoint(&published), test.body, test.header))
			require.Empty(t, published.messages)
		})
	}
}

func TestEndpointRefusesEachForgery(t *testing.T) {
	t.Parallel()
	genuine := []byte(`{"id":"evt_1"}`)
	for _, forge := range forgers {
		var published recorder
		header, body := forge(genuine, time.Now(), testSecret)
		require.Equal(t, http.StatusUnauthorized, post(newEndpoint(&published), body, header))
		require.Empty(t, published.messages)
	}
}

func TestEndpointAnswersWithSuccessOnlyOncePublished(t *testing.T) {
	t.Parallel()
	body := []byte(`{"id":"evt_1"}`)
	status := post(newEndpoint(&recorder{err: errors.New("down")}), body, sign(body, time.Now(), testSecret))
	require.Equal(t, http.StatusServiceUnavailable, status)
}

func newEndpoint(publisher message.Publisher) http.Handler {
	return endpoint{
		topic: "in", source: cardSource, publisher: publisher, secrets: [][]byte{testSecret}, logger: watermill.NopLogger{},
	}
}

func post(handler http.Handler, body []byte, header string) (status int) {
	request := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
	request.Header.Set(signatureHeader, header)
	response := httptest.NewRecorder()
	handler.ServeHTTP(response, request)
	return response.Code
}

// recorder is a message.Publisher that keeps what it is given.
type recorder struct {
	topic    string
	messages []*message.Message
	err      error
}

func (r *recorder) Publish(topic string, messages ...*message.Message) error {
	if r.err != nil {
		return r.err
	}
	r.topic = topic
	r.messages = append(r.messages, messages...)
	return nil
}

func (r *recorder) Close() error { return nil }
