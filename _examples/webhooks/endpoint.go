package main

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/outbox"
)

// deliveryHeader names one delivery of an event. It is worth a place in the logs, and no key: a replay has a new one.
const deliveryHeader = "Webhook-Delivery"

// maxBody is more than the provider sends.
const maxBody = 1 << 20

// endpoint takes deliveries and puts them on the broker. It does no more than that, for providers wait for seconds at most, and
// it answers 200 when the broker has the message and not before: from then on it is ours to lose.
//
// It looks for no duplicates. Whoever sends an event twice gets 200 twice, and the consumers see to the rest.
type endpoint struct {
	topic     string
	source    source
	publisher message.Publisher
	secrets   [][]byte // one, and for the days of a rotation two
	logger    watermill.LoggerAdapter
}

func (e endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			http.Error(w, "body too large", http.StatusRequestEntityTooLarge)
			return
		}
		http.Error(w, "body not readable", http.StatusBadRequest)
		return
	}
	// Before anything else looks at the body.
	if err := verify(r.Header.Get(signatureHeader), body, time.Now(), e.secrets...); err != nil {
		e.logger.Info("Delivery refused", watermill.LogFields{"reason": err.Error()})
		http.Error(w, errSignature.Error(), http.StatusUnauthorized)
		return
	}

	msg, err := e.message(body)
	if err != nil {
		e.logger.Error("Delivery without an event id", err, nil)
		http.Error(w, "no event id", http.StatusBadRequest)
		return
	}
	msg.Metadata.Set("delivery", r.Header.Get(deliveryHeader))
	msg.SetContext(r.Context())
	if err := e.publisher.Publish(e.topic, msg); err != nil {
		e.logger.Error("Delivery not published", err, watermill.LogFields{"event": msg.UUID})
		http.Error(w, "try again later", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// message has the event's id as its UUID, so that all deliveries of one event are one event to the consumers, and the card as
// its partition key, so that a broker with partitions keeps a card's events in one.
func (e endpoint) message(body []byte) (*message.Message, error) {
	msg := message.NewMessage("", body)
	id, err := e.source.eventID(msg)
	if err != nil {
		return nil, err
	}
	msg.UUID = id
	if position, err := e.source.position(msg); err == nil {
		msg.Metadata.Set(outbox.PartitionKeyKey, position.Entity)
	} // else it is for the consumers to say what is wrong with it
	return msg, nil
}
