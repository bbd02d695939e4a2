package main

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
)

// goChannelBroker keeps messages in memory. So that none is lost with the program, Publish waits until every consumer has
// handled it: a provider whose delivery was under way gets no 200, and comes again. It also keeps the messages in order.
func goChannelBroker(logger watermill.LoggerAdapter) *broker {
	channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, logger)
	return &broker{
		publisher:  channel,
		subscriber: func(string) (message.Subscriber, error) { return channel, nil },
		close:      channel.Close,
	}
}
