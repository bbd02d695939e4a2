package main

import (
	"encoding/json"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/dedupe"
	once "github.com/watermill-once/watermill-once/middleware"
)

// receipt is an e-mail to be sent.
type receipt struct {
	Order  string `json:"order"`
	Charge string `json:"charge"`
}

// message has a UUID that is the same however often it is made: that of the event.
func (r receipt) message() (*message.Message, error) {
	payload, err := json.Marshal(r)
	return message.NewMessage("receipt-"+r.Order, payload), err
}

// mailing configures the middleware of mailReceipt. The mail service honours keys, so what is unknown is repeated: the default.
func (s *service) mailing() once.LeasedConfig {
	return once.LeasedConfig{Consumer: receipts, Effects: dedupe.EffectsConfig{Lease: lease}}
}

// mailReceipt runs behind once.Leased: again after an error or a crash, and never once it has succeeded.
func (s *service) mailReceipt(msg *message.Message) error {
	var r receipt
	if err := json.Unmarshal(msg.Payload, &r); err != nil {
		return dedupe.Final(err)
	}
	key, ok := once.IdempotencyKey(msg.Context(), "mail")
	if !ok {
		return errors.New("not behind the middleware")
	}
	return s.provider.mail(msg.Context(), key, r)
}
